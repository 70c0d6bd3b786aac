"""Loops over the wire: commands, the client as the place of a step, and a host that is killed."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rlm_host.client import HostClient
from rlm_protocol.errors import ConfigInvalid, HostLost, InvalidParams, RunNotFound

STEP = """
import json, sys
context = json.load(sys.stdin)
print(json.dumps({"reward": [0.1, 0.5, 0.3, 0.7][context["generation"]], "artifactId": "a"}))
"""


def environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "RLM_HOME": str(home)}


def submission(**more: Any) -> dict[str, Any]:
    return {
        "config": {"tenant": "t", "workspace": "w", "maxGenerations": 4},
        "step": {"kind": "command", "argv": [sys.executable, "-c", STEP]},
        **more,
    }


async def completed(client: HostClient, run_id: str) -> dict[str, Any]:
    async with client.notifications("loop/completed") as events:
        await client.request("loop/run", {"runId": run_id})
        async for event in events:
            if event.params["runId"] == run_id:
                return event.params
    raise AssertionError("the subscription ended")


@pytest.mark.anyio
async def test_a_run_of_commands(tmp_path: Path) -> None:
    async with HostClient.spawn(env=environment(tmp_path)) as client:
        run = (await client.request("loop/submit", submission()))["run"]
        async with client.notifications("loop/generation") as told:
            end = await completed(client, run["runId"])
            assert end["error"] is None
            assert end["run"]["status"] == "completed"
            assert end["run"]["bestReward"] == 0.7
            actions = []
            async for event in told:
                actions.append(event.params["generation"]["action"])
                if len(actions) == 4:
                    break
        assert actions == ["accept", "accept", "reject", "accept"]
        page = await client.request("loop/report", {"runId": run["runId"], "limit": 3})
        assert page["nextAfter"] == 2
        rest = await client.request("loop/report", {"runId": run["runId"], "after": 2})
        assert [g["generation"] for g in rest["generations"]] == [3]
        assert rest["nextAfter"] is None
        log = (await client.request("loop/decisions", {"limit": 3}))["decisions"]
        assert [row["id"] for row in log] == [f"{log[0]['runId']}:generation:{n}" for n in range(3)]
        assert log[0]["decision"]["action"] == actions[0]


@pytest.mark.anyio
async def test_the_client_makes_the_step_and_a_killed_host_repeats_only_the_apply(
    tmp_path: Path,
) -> None:
    asked: list[tuple[str, int]] = []

    async def step(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(("step", params["context"]["generation"]))
        return {"reward": float(params["context"]["generation"])}

    async def fatal_apply(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(("apply", params["context"]["generation"]))
        if params["context"]["generation"] == 1:
            os.kill(client.pid, signal.SIGKILL)
        return {}

    async def apply(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(("apply", params["context"]["generation"]))
        return {}

    env, handlers = environment(tmp_path), {"loop/step": step, "loop/apply": fatal_apply}
    submitted = submission(step={"kind": "client"}, apply={"kind": "client"}, runId="run-1")
    async with HostClient.spawn(env=env, handlers=handlers) as client:
        await client.request("loop/submit", submitted)
        with pytest.raises(HostLost):
            await completed(client, "run-1")
    async with HostClient.spawn(env=env, handlers={**handlers, "loop/apply": apply}) as client:
        end = await completed(client, "run-1")
    assert end["run"]["status"] == "completed"
    assert [what for what in asked if what[0] == "step"] == [("step", n) for n in range(4)]
    applied = [n for what, n in asked if what == "apply"]
    assert applied == [0, 1, 1, 2, 3]


@pytest.mark.anyio
async def test_what_is_wrong_is_said_with_its_kind(tmp_path: Path) -> None:
    async with HostClient.spawn(env=environment(tmp_path)) as client:
        with pytest.raises(RunNotFound):
            await client.request("loop/run", {"runId": "nobody"})
        bad = submission(config={"tenant": "t", "workspace": "w", "maxGenerations": 0})
        with pytest.raises(ConfigInvalid):
            await client.request("loop/submit", bad)
        with pytest.raises(InvalidParams):
            await client.request("loop/submit", submission(step={"kind": "nowhere"}))
        assert (await client.request("loop/list"))["runs"] == []
