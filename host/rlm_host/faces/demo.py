"""
`rlm-host demo [FILE]`: the whole product on one file, without a key.

The demo is a client like any other: it starts `rlm-host` as a subprocess and says everything over
JSON-RPC. A scripted model spawns four children that measure a part of the file each. Then a durable
loop searches how to store the file in the fewest bytes; the host is killed inside the apply of
generation 4, started again, and goes on. What is left behind: the session's journal and artifacts.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from rlm_host.client import HostClient
from rlm_protocol.errors import HostLost, RlmError

from ..models.scripted_demo import PARTS, root_prompt
from . import interruptible
from .console import Console
from .demo_step import GENERATIONS
from .demo_view import DemoView

MODEL = "scripted/demo"
KILL_AT = 4
"""The host is killed inside the apply of this generation."""
MEASURED_BYTES = 16 * 1024 * 1024
SEARCHED_BYTES = 512 * 1024
"""Of a larger file only the first bytes are used, and the demo says so."""
PATIENCE_S = 120


class DemoFailed(Exception):
    """The demo cannot go on; the text says why and what to do."""


class DemoFile(msgspec.Struct, frozen=True):
    """The file, and how much of it is used."""

    path: Path
    size_bytes: int

    @property
    def measured_bytes(self) -> int:
        """Bytes that the children measure."""
        return min(self.size_bytes, MEASURED_BYTES)


def choose_file(given: str | None) -> DemoFile:
    """
    Give the file of the demo; without one, this module's own source.

    Raises:
        DemoFailed: there is nothing to measure in it.
    """
    path = Path(given or __file__)
    try:
        path = path.resolve()
        if path.is_dir():
            raise DemoFailed(f"{given} is a directory. Name a file.")
        if not path.is_file():
            found = "is not a regular file" if path.exists() else "does not exist"
            raise DemoFailed(f"{given} {found}. Name a file that can be read.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not file.read(1):
                raise DemoFailed(f"{given} is empty: there is nothing to measure in it.")
    except (OSError, ValueError, RuntimeError) as why:
        reason = getattr(why, "strerror", None) or why
        raise DemoFailed(f"{given} cannot be read: {reason}.") from why
    return DemoFile(path, size)


class Applied:
    """
    What the loop made live, in a folder of the session's artifacts.

    Applying is idempotent for (run, generation): the file of a generation is written under its own
    name and replaced as a whole, so a repeat changes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[int] = []

    def apply(self, params: dict[str, Any]) -> None:
        """Write the accepted pipeline as the current one."""
        context, observation = params["context"], params["observation"]
        self.asked.append(context["generation"])
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = {
            "run": context["runId"],
            "generation": context["generation"],
            "pipeline": observation["artifactId"],
            **observation["evidence"],
        }
        for name in (f"generation-{context['generation']}.json", "current.json"):
            fresh = self.folder / f".{name}.new"
            fresh.write_text(json.dumps(chosen))
            fresh.replace(self.folder / name)

    def generations(self) -> list[int]:
        """Give the generations that are in effect, from what lies on disk."""
        return sorted(int(p.stem.split("-")[1]) for p in self.folder.glob("generation-*.json"))


@asynccontextmanager
async def _host(view: DemoView) -> AsyncIterator[HostClient]:
    async with HostClient.spawn() as client:
        view.say(f"rlm-host runs as process {client.pid}")
        yield client


async def _measure(client: HostClient, file: DemoFile, view: DemoView) -> dict[str, Any]:
    """Let the scripted model measure the file through four children; give what came of it."""
    created = await client.request(
        "session/create",
        {"cwd": str(file.path.parent), "model": MODEL, "name": f"demo {file.path.name}"[:64]},
    )
    session = created["session"]
    prompt = root_prompt(str(file.path), file.measured_bytes)
    async with client.notifications() as notifications:
        await client.request(
            "turn/start",
            {"sessionId": session["id"], "input": [{"type": "text", "text": prompt}]},
        )
        async for note in notifications:
            if note.params.get("sessionId") != session["id"]:
                continue
            if note.method == "item/completed":
                view.item(note.params["item"])
            elif note.method == "turn/completed" and note.params["status"] != "completed":
                raise DemoFailed(f"The turn ended as {note.params['status']}: {note.params}")
            elif note.method == "session/quiet":
                break
    agents = (await client.request("agent/list", {"sessionId": session["id"]}))["agents"]
    parts = [
        (
            await client.request(
                "agent/result", {"sessionId": session["id"], "target": agent["childId"]}
            )
        )["value"]
        for agent in agents
    ]
    items = (await client.request("session/items", {"sessionId": session["id"], "limit": 1000}))[
        "items"
    ]
    answers = [item["text"] for item in items if item["type"] == "agentMessage"]
    if len(parts) != PARTS or not answers:
        raise DemoFailed(f"Only {len(parts)} of {PARTS} children came back.")
    return {"session": session, "agents": agents, "parts": parts, "answer": answers[-1]}


async def _search_until_killed(
    client: HostClient, run_id: str, applied: Applied, view: DemoView
) -> None:
    """Run the loop with an apply that kills the host in the middle of generation `KILL_AT`."""

    async def apply(params: dict[str, Any]) -> dict[str, Any]:
        applied.apply(params)
        if params["context"]["generation"] == KILL_AT:
            os.kill(client.pid, signal.SIGKILL)
        return {}

    client.handle("loop/apply", apply)
    try:
        async with client.notifications() as notifications:
            await client.request("loop/run", {"runId": run_id})
            async for note in notifications:
                if note.method == "loop/completed":
                    raise DemoFailed(f"The loop ended before it was killed: {note.params}")
    except HostLost:
        view.say(f"SIGKILL to the host inside the apply of generation {KILL_AT}: it is gone")


async def _search_to_the_end(client: HostClient, run_id: str, applied: Applied) -> None:
    async def apply(params: dict[str, Any]) -> dict[str, Any]:
        applied.apply(params)
        return {}

    client.handle("loop/apply", apply)
    async with client.notifications() as notifications:
        await client.request("loop/run", {"runId": run_id})
        async for note in notifications:
            if note.method == "loop/completed":
                if note.params.get("error"):
                    raise DemoFailed(f"The loop failed: {note.params['error']}")
                return


def _submission(file: DemoFile, session_id: str) -> dict[str, Any]:
    limit = str(min(file.size_bytes, SEARCHED_BYTES))
    argv = [sys.executable, "-P", "-m", "rlm_host.faces.demo_step", str(file.path), limit]
    return {
        "config": {"tenant": "demo", "workspace": session_id, "maxGenerations": GENERATIONS},
        "step": {"kind": "command", "argv": argv},
        "apply": {"kind": "client"},
    }


def _check(report: dict[str, Any], applied: Applied) -> None:
    """Hold the history against what is in effect."""
    generations = report["generations"]
    numbers = [g["generation"] for g in generations]
    recorded = [g["generation"] for g in generations if g["action"] == "accept"]
    if numbers != list(range(GENERATIONS)):
        raise DemoFailed(f"Generations are missing or doubled: {numbers}")
    if recorded != applied.generations():
        raise DemoFailed(f"Accepted {recorded}, but {applied.generations()} are in effect.")


async def run_demo(file: DemoFile, view: DemoView) -> dict[str, Any]:
    """
    Run the whole demo; give its summary as plain data.

    Raises:
        DemoFailed, RlmError: something did not hold. The journal and the artifacts stay.
    """
    with anyio.fail_after(PATIENCE_S):
        view.step(f"1. One agent, four children, one file: {file.path.name}")
        if file.size_bytes > MEASURED_BYTES:
            view.say(f"The file is large: only its first {MEASURED_BYTES:,} bytes are used.")
        view.say("The model is scripted and needs no key; kernels, children and results are real.")
        async with _host(view) as client:
            measured = await _measure(client, file, view)
            session = measured["session"]
            applied = Applied(Path(session["artifactsPath"]) / "compression")

            view.step(f"2. A durable loop of {GENERATIONS} generations, killed on the way")
            submitted = await client.request("loop/submit", _submission(file, session["id"]))
            run_id = submitted["run"]["runId"]
            await _search_until_killed(client, run_id, applied, view)
        async with _host(view) as client:
            resumed = await client.request("session/resume", {"sessionId": session["id"]})
            await _search_to_the_end(client, run_id, applied)
            report = await client.request("loop/report", {"runId": run_id, "limit": 1000})
            tree = await client.request("session/tree", {"sessionId": session["id"]})
    _check(report, applied)
    asked_twice = applied.asked.count(KILL_AT)
    view.say(
        f"resumed: {GENERATIONS} generations recorded, none lost; generation {KILL_AT} was asked "
        f"for {asked_twice} times and is in effect once"
    )
    view.step("3. What it left")
    view.tree(tree["root"])
    view.loop(report["generations"])
    view.say(f"journal    {resumed['session']['journalPath']}")
    view.say(f"artifacts  {resumed['session']['artifactsPath']}")
    return {
        "file": str(file.path),
        "measuredBytes": file.measured_bytes,
        "searchedBytes": min(file.size_bytes, SEARCHED_BYTES),
        "answer": measured["answer"],
        "parts": measured["parts"],
        "agents": measured["agents"],
        "tree": tree["root"],
        "run": report["run"],
        "generations": report["generations"],
        "asked": applied.asked,
        "inEffect": applied.generations(),
        "current": json.loads((applied.folder / "current.json").read_text()),
        "session": resumed["session"],
    }


def main(argv: Sequence[str]) -> int:
    """Run the command; give its exit code."""
    parser = argparse.ArgumentParser(prog="rlm-host demo", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", nargs="?", help="any file; default: the demo's own source")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON only")
    options = parser.parse_args(argv)
    view = DemoView(Console(stderr=options.json))
    try:
        summary = interruptible.run(run_demo(choose_file(options.file), view))
    except interruptible.Stopped as stopped:
        return interruptible.say_stopped("rlm-host demo", stopped)
    except (DemoFailed, RlmError) as why:
        sys.stderr.write(f"rlm-host demo: {why}\n")
        return 1
    except TimeoutError:
        sys.stderr.write(
            f"rlm-host demo: not done within {PATIENCE_S} s. What was recorded is kept; "
            "`rlm-host doctor` says what is going on.\n"
        )
        return 1
    if options.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    return 0
