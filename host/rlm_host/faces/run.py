"""`rlm-host run PROMPT`: one session, one input, watched to its end."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlm_protocol.errors import RlmError

from ..client import HostClient, Subscription
from .cli_client import exit_code
from .console import Console
from .terminal import TerminalView

STOP_S = 0.8
"""After a signal, how long the turn may take to end by itself; then the host is ended."""


class Watched:
    """What came of the input."""

    def __init__(self) -> None:
        self.session: dict[str, Any] = {}
        self.turn_id = ""
        self.status = "failed"
        self.text = ""
        self.error: dict[str, Any] | None = None
        self.usage: dict[str, Any] = {}

    @property
    def kept(self) -> str:
        """Say what outlives the command."""
        where = self.session.get("journalPath")
        return f"What was acknowledged is in {where}." if where else "Nothing was kept."


async def run(
    options: argparse.Namespace, prompt: str, view: TerminalView | None, watched: Watched
) -> None:
    """
    Start a host, give it the prompt, watch until the session is quiet; fill `watched`.

    Without a view every notification is a JSON line on stdout. When it is cancelled the session is
    stopped in order.

    Raises:
        RlmError: the host or one of its answers; what was acknowledged is in the journal.
    """
    settings = ("--config", str(options.config.absolute())) if options.config else ()
    async with HostClient.spawn(arguments=settings) as client:
        params: dict[str, Any] = {"cwd": str(options.cwd.absolute()), "model": options.model}
        if options.thinking:
            params["thinking"] = options.thinking
        if recipe := _recipe(options):
            params["options"] = {"recipe": recipe}
        created = await client.request("session/create", {**params, "ephemeral": options.ephemeral})
        watched.session = created["session"]
        session_id = watched.session["id"]
        async with client.notifications(session_id=session_id) as events:
            started = await client.request(
                "turn/start",
                {"sessionId": session_id, "input": [{"type": "text", "text": prompt}]},
            )
            watched.turn_id = started["turnId"]
            watching = asyncio.ensure_future(_watch(events, watched, view))
            try:
                await asyncio.shield(watching)
            except asyncio.CancelledError:
                await _stop(client, session_id, watching)
                raise
            watched.usage = await client.request("usage/read", {"sessionId": session_id})


def _recipe(options: argparse.Namespace) -> dict[str, Any]:
    """Give the kernel's recipe: what was named, and nothing of the rest."""
    named = {
        "python": options.python,
        "sandbox": options.sandbox,
        "network": options.network or None,
        "memoryBytes": options.memory_bytes,
    }
    return {name: value for name, value in named.items() if value is not None}


async def _watch(events: Subscription, watched: Watched, view: TerminalView | None) -> None:
    ended = False
    async for event in events:
        params = event.params
        if view is None:
            sys.stdout.write(json.dumps({"method": event.method, "params": params}) + "\n")
            sys.stdout.flush()
        else:
            view.notification(event.method, params)
        if event.method == "item/completed" and params["item"]["type"] == "agentMessage":
            watched.text = params["item"]["text"]
        elif event.method == "turn/completed":
            ended = True
            watched.status, watched.error = params["status"], params.get("error")
        elif event.method == "session/quiet" and ended:
            return


async def _stop(client: HostClient, session_id: str, watching: "asyncio.Future[None]") -> None:
    """Stop the session and all below it; what does not end in time ends with the host."""
    try:
        async with asyncio.timeout(STOP_S):
            await client.request("turn/interrupt", {"sessionId": session_id, "subtree": True})
            await watching
    except (TimeoutError, RlmError):
        watching.cancel()


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when the turn completed, 1 when it failed, 128 + n when signal n came."""
    parser = argparse.ArgumentParser(prog="rlm-host run", description=__doc__)
    parser.add_argument("prompt", help="what to do; - reads it from stdin")
    parser.add_argument("--model", required=True, metavar="PROVIDER/MODEL")
    parser.add_argument("--cwd", type=Path, default=Path(), help="the workspace; default: here")
    parser.add_argument("--thinking", help="off, minimal, low, medium, high, xhigh or max")
    parser.add_argument("--python", help="the interpreter of cells, or a virtual environment")
    parser.add_argument("--sandbox", choices=["workspace"], help="run cells in it, or none")
    parser.add_argument("--network", action="store_true", help="let the sandbox reach the network")
    parser.add_argument("--memory-bytes", type=int, metavar="N", help="limit of a kernel's memory")
    parser.add_argument("--ephemeral", action="store_true", help="keep nothing")
    parser.add_argument("--config", type=Path, metavar="FILE", help="instead of config.toml")
    parser.add_argument("--json", action="store_true", help="print notifications as JSON lines")
    options = parser.parse_args(argv)
    given = sys.stdin.buffer.read() if options.prompt == "-" else os.fsencode(options.prompt)
    prompt = given.decode("utf-8", "replace")  # whatever the terminal's encoding is
    if not options.cwd.is_dir():
        parser.error(f"{options.cwd} is not a folder")
    view = None if options.json else TerminalView(Console())
    watched = Watched()
    work = _main(options, prompt, view, watched)
    return exit_code("rlm-host run", work, kept=lambda: watched.kept)


async def _main(
    options: argparse.Namespace, prompt: str, view: TerminalView | None, watched: Watched
) -> int:
    try:
        await run(options, prompt, view, watched)
    finally:
        if view is not None:
            view.close()
    return _say_end(view, watched)


def _say_end(view: TerminalView | None, watched: Watched) -> int:
    if view is None:
        last = {
            "sessionId": watched.session["id"],
            "status": watched.status,
            "text": watched.text,
            "error": watched.error,
            "usage": watched.usage,
            "journalPath": watched.session.get("journalPath"),
        }
        sys.stdout.write(json.dumps(last) + "\n")
    else:
        if watched.error is not None:
            view.problem(watched.error)
        view.summary(watched.usage, watched.session)
    sys.stdout.flush()
    return 0 if watched.status == "completed" else 1
