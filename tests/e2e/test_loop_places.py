"""Where steps happen, on a real host: cells in a kernel, turns of an agent, a client that leaves."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_host.client import HostClient
from support.cli import DEADLINE_S, end, processes_of, serve
from support.fake_client import host_env

pytestmark = pytest.mark.anyio
CONFIG = {"tenant": "t", "workspace": "w", "maxGenerations": 2, "stepAttempts": 1}
SLEEPER = "600.125"
"""What the processes of a step are known by."""


async def session(client: HostClient, folder: Path) -> str:
    params = {"cwd": str(folder), "model": "scripted/steps"}
    return str((await client.request("session/create", params))["session"]["id"])


async def submit(client: HostClient, **more: Any) -> str:
    submitted = {"config": CONFIG, **more}
    return str((await client.request("loop/submit", submitted))["run"]["runId"])


async def completed(client: HostClient, run_id: str) -> dict[str, Any]:
    async with client.notifications("loop/completed") as events:
        await client.request("loop/run", {"runId": run_id})
        async for event in events:
            if event.params["runId"] == run_id:
                return event.params["run"]
    raise AssertionError("the subscription ended")


async def generations(client: HostClient, run_id: str) -> list[dict[str, Any]]:
    return (await client.request("loop/report", {"runId": run_id}))["generations"]


async def tree_of(client: HostClient, session_id: str) -> dict[str, Any]:
    return (await client.request("session/tree", {"sessionId": session_id}))["root"]


async def until(met: Any, what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := met()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)
    return found


def sleepers(home: Path) -> list[int]:
    """Give the processes that a step has started."""
    found = []
    for pid in processes_of(home):
        try:
            if SLEEPER in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
        except OSError:
            continue
    return found


async def test_cells_of_a_kernel_are_steps_and_applies(tmp_path: Path) -> None:
    async with HostClient.spawn(env=host_env(tmp_path)) as client:
        session_id = await session(client, tmp_path)
        run_id = await submit(
            client,
            step={
                "kind": "repl",
                "sessionId": session_id,
                "code": "seen = globals().get('seen', 0) + 1\n"
                "observation = {'reward': context['generation'] + 0.5, 'cost': 9.0, 'artifactId': f'a{seen}'}",
            },
            apply={
                "kind": "repl",
                "sessionId": session_id,
                "code": "live = globals().get('live', []) + [(action, observation['artifactId'], context['token'])]",
            },
        )
        assert (await completed(client, run_id))["bestReward"] == 1.5
        told = await generations(client, run_id)
        assert [(g["artifactId"], g["applied"], g["cost"]) for g in told] == [
            ("a1", True, 0.0), ("a2", True, 0.0),
        ]  # fmt: skip
        shown = await client.request("repl/execute", {"sessionId": session_id, "code": "live"})
        assert shown["result"] == "[('apply', 'a1', 1), ('apply', 'a2', 1)]"


async def test_an_agents_turns_are_charged_what_its_sessions_were_metered(tmp_path: Path) -> None:
    """A step and an apply, each with a child that spends as well, whatever the verifier says."""
    child = json.dumps([{"text": "a word of a child"}])
    spawn = f"await (await rlm({child!r}, model='scripted/steps', unguarded=True)).result()"
    prompt = json.dumps([{"call": spawn}, {"text": "improved"}])
    async with HostClient.spawn(env=host_env(tmp_path)) as client:
        session_id = await session(client, tmp_path)
        step = {
            "kind": "agent",
            "sessionId": session_id,
            "prompt": prompt,
            "verify": "observation = {'reward': context['generation'], 'cost': 1e9}",
        }
        applying = {**step, "verify": "pass"}
        run_id = await submit(client, step=step, apply=applying)
        run = await completed(client, run_id)
        assert run["status"] == "completed", run
        told = await generations(client, run_id)
        assert all(g["applied"] and g["cost"] > 0 for g in told)
        tree = await tree_of(client, session_id)
        metered = tree["subtree"]["costNanoUsd"] / 1e9
        assert run["cost"] == pytest.approx(metered)
        assert sum(g["cost"] for g in told) == pytest.approx(metered)
        assert len(tree["children"]) == 4, "each turn had a child of its own"
        assert tree["own"]["costNanoUsd"] < tree["subtree"]["costNanoUsd"]


@pytest.mark.parametrize("ends", ["cancel", "timeout"])
async def test_a_cell_that_is_ended_leaves_no_process_and_a_usable_kernel(
    tmp_path: Path, ends: str
) -> None:
    cell = (
        "import subprocess, time\n"
        f"subprocess.Popen(['sh', '-c', 'setsid sleep {SLEEPER} & sleep {SLEEPER}'])\n"
        "time.sleep(600)"
    )
    async with HostClient.spawn(env=host_env(tmp_path)) as client:
        session_id = await session(client, tmp_path)
        await client.request("repl/execute", {"sessionId": session_id, "code": "kept = 41"})
        step: dict[str, Any] = {"kind": "repl", "sessionId": session_id, "code": cell}
        if ends == "timeout":
            step["timeoutMs"] = 3_000
        run_id = await submit(client, step=step)
        ended = asyncio.ensure_future(completed(client, run_id))
        await until(lambda: len(sleepers(tmp_path)) >= 2, "the processes of the step")
        if ends == "cancel":
            await client.request("loop/cancel", {"runId": run_id, "reason": "enough"})
        run = await ended
        assert run["status"] == ("cancelled" if ends == "cancel" else "running")
        await until(lambda: not sleepers(tmp_path), "the end of the step's processes")
        shown = await client.request("repl/execute", {"sessionId": session_id, "code": "kept + 1"})
        assert shown["result"] == "42"


async def test_a_cancelled_agents_turn_is_gone_with_what_it_started(tmp_path: Path) -> None:
    prompt = json.dumps([{"call": f"print(await bash('sleep {SLEEPER}'))"}, {"text": "never"}])
    async with HostClient.spawn(env=host_env(tmp_path)) as client:
        session_id = await session(client, tmp_path)
        step = {"kind": "agent", "sessionId": session_id, "prompt": prompt, "verify": "pass"}
        run_id = await submit(client, step=step)
        ended = asyncio.ensure_future(completed(client, run_id))
        await until(lambda: sleepers(tmp_path), "the process of the step")
        await client.request("loop/cancel", {"runId": run_id, "reason": "enough"})
        run = await ended
        assert (run["status"], run["stoppedReason"]) == ("cancelled", "enough")
        await until(lambda: not sleepers(tmp_path), "the end of the step's processes")
        assert await generations(client, run_id) == []


@pytest.mark.parametrize("phase", ["turn", "verifier", "cell"])
async def test_a_cancelled_step_is_gone_with_the_kernels_of_its_children(
    tmp_path: Path, phase: str
) -> None:
    daemon = f"import subprocess; subprocess.Popen(['setsid', 'sleep', '{SLEEPER}'])"
    child = json.dumps([{"call": f"{daemon}\nawait bash('sleep {SLEEPER}')"}, {"text": "never"}])
    spawn = (
        f"import asyncio\nawait rlm({child!r}, model='scripted/steps', unguarded=True)\n"
        "await asyncio.sleep(600)"
    )
    turn = json.dumps([*([{"call": spawn}] if phase == "turn" else []), {"text": "done"}])
    step: dict[str, Any] = {"kind": "agent", "prompt": turn, "verify": spawn}
    if phase == "cell":
        step = {"kind": "repl", "code": spawn}
    async with HostClient.spawn(env=host_env(tmp_path)) as client:
        session_id = await session(client, tmp_path)
        run_id = await submit(client, step={**step, "sessionId": session_id})
        ended = asyncio.ensure_future(completed(client, run_id))
        await until(lambda: len(sleepers(tmp_path)) >= 2, "the processes of the child")
        await client.request("loop/cancel", {"runId": run_id, "reason": "enough"})
        assert (await ended)["status"] == "cancelled"
        assert sleepers(tmp_path) == []
        tree = await tree_of(client, session_id)
        assert [one["status"] for one in tree["children"]] == ["cancelled"]


async def test_a_cancelled_command_is_gone_with_its_tree(tmp_path: Path) -> None:
    argv = ["sh", "-c", f"sleep {SLEEPER} & setsid sleep {SLEEPER} & wait"]
    async with HostClient.spawn(env=host_env(tmp_path)) as client:
        run_id = await submit(client, step={"kind": "command", "argv": argv})
        ended = asyncio.ensure_future(completed(client, run_id))
        await until(lambda: len(sleepers(tmp_path)) >= 2, "the processes of the step")
        await client.request("loop/cancel", {"runId": run_id})
        assert (await ended)["status"] == "cancelled"
        assert sleepers(tmp_path) == []


# --- a client that leaves -------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "s.sock"
    process = serve(tmp_path, path)
    try:
        yield path
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 143
    finally:
        end(process)
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.parametrize("leaves_in", ["loop/step", "loop/apply"])
async def test_a_client_that_comes_back_is_asked_again_for_what_it_left(
    served: Path, leaves_in: str
) -> None:
    asked: list[tuple[str, str, int]] = []
    reached = asyncio.Event()

    def handlers(name: str, stuck: str | None) -> dict[str, Any]:
        async def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
            generation = params["context"]["generation"]
            asked.append((name, method, generation))
            if method == stuck and generation == 1:
                reached.set()
                await asyncio.Event().wait()
            return {"reward": float(generation)} if method == "loop/step" else {}

        async def step(params: dict[str, Any]) -> dict[str, Any]:
            return await answer("loop/step", params)

        async def apply(params: dict[str, Any]) -> dict[str, Any]:
            return await answer("loop/apply", params)

        return {"loop/step": step, "loop/apply": apply}

    async with HostClient.attach(served, handlers=handlers("first", leaves_in)) as first:
        run_id = await submit(first, step={"kind": "client"}, apply={"kind": "client"})
        await first.request("loop/run", {"runId": run_id})
        async with asyncio.timeout(DEADLINE_S):
            await reached.wait()
    async with HostClient.attach(served, handlers=handlers("second", None)) as second:
        run = await completed(second, run_id)
    assert (run["status"], run["bestReward"]) == ("completed", 1.0)
    before = [("first", "loop/step", 0), ("first", "loop/apply", 0), ("first", "loop/step", 1)]
    after = [("second", "loop/step", 1), ("second", "loop/apply", 1)]
    if leaves_in == "loop/apply":
        before.append(("first", "loop/apply", 1))
        after = after[1:]
    assert asked == before + after
