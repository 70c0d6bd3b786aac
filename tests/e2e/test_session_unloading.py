"""A host lets go of what nobody uses: kernels and sessions end, and come back with their names."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from support.fake_client import FakeClient, spawned

pytestmark = pytest.mark.anyio
DEADLINE_S = 60


async def until_status(host: FakeClient, **wanted: int) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        status = await host.request("host/status")
        if all(status[name] == count for name, count in wanted.items()):
            return
        assert time.monotonic() < end, status
        await asyncio.sleep(0.1)


async def test_a_parent_and_its_child_are_let_go_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "rlm").mkdir(mode=0o700)
    (tmp_path / "rlm/config.toml").write_text("[sessions]\nunload_after_s = 1\n")
    async with spawned(tmp_path) as host:
        params = {"cwd": str(tmp_path), "model": "scripted/echo"}
        root = (await host.request("session/create", params))["session"]["id"]

        async def run(session_id: str, code: str) -> Any:
            asked = {"sessionId": session_id, "code": code}
            return (await host.request("repl/execute", asked))["result"]

        await run(root, "x = 41")
        task = json.dumps([{"call": "y = [1]\nalias = y"}, {"text": "done"}])
        options = {"model": "scripted/steps", "result": {}}
        spawn = {"sessionId": root, "prompt": task, "options": options}
        child = (await host.request("agent/spawn", spawn))["agent"]["sessionId"]
        await host.until("session/quiet", lambda told: told["sessionId"] == root)
        await until_status(host, sessions=1, kernels=1)  # nobody is attached to the child
        await host.request("session/detach", {"sessionId": root})
        await until_status(host, sessions=0, kernels=0)

        assert await run(child, "y.append(2)\nalias") == "[1, 2]"
        resumed = await host.request("session/resume", {"sessionId": root})
        assert resumed["session"]["status"] == "idle"
        assert await run(root, "x + 1") == "42"
        items = (await host.request("session/items", {"sessionId": root}))["items"]
        assert [item["kernel"] for item in items if item["type"] == "replCell"] == [1, 2]
        agents = (await host.request("agent/list", {"sessionId": root}))["agents"]
        assert [agent["status"] for agent in agents] == ["completed"]
