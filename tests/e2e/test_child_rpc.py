"""agent/* and session/tree over the wire, against a real host process."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rlm_host.client import HostClient
from rlm_protocol import agent as a
from rlm_protocol import errors as e
from rlm_protocol import session as s

pytestmark = pytest.mark.anyio


async def test_a_client_drives_children(tmp_path: Path) -> None:
    env = {"RLM_HOME": str(tmp_path / "home"), "RLM_KERNEL_PYTHON": sys.executable}
    async with HostClient.spawn(env=env) as client:
        created = await client.request(
            "session/create", {"cwd": str(tmp_path), "model": "scripted/python"}
        )
        root = created["session"]["id"]
        task = [{"call": "await rlm.submit_result({'n': 7})"}, {"text": "seven"}]

        async def ask(method: str, **params: Any) -> Any:
            return await client.request(method, {"sessionId": root, **params})

        async with client.notifications("turn/completed", session_id=root) as turns:
            options = {"model": "scripted/steps", "name": "w", "result": {}}
            spawn = {"prompt": json.dumps(task), "options": options, "idempotencyKey": "k1"}
            first = await ask("agent/spawn", **spawn)
            assert first["agent"]["status"] == "queued"
            again = await ask("agent/spawn", **spawn)
            assert again["agent"]["childId"] == first["agent"]["childId"]
            async for event in turns:
                assert event.params["status"] == "completed"
                break
        listed = await ask("agent/list")
        [agent] = listed["agents"]
        assert (agent["name"], agent["status"], agent["generation"]) == ("w", "completed", 1)
        assert await ask("agent/result", target="w") == {"value": {"n": 7}, "generation": 1}
        seen = await ask("agent/observe", target="w", limit=1, maxChars=80)
        assert seen["messages"][0]["text"] == "seven"
        tree = await client.call("session/tree", {"sessionId": root}, s.SessionTreeResult)
        [node] = tree.root.children
        assert (node.name, node.status, node.id) == ("w", "completed", agent["sessionId"])
        assert tree.root.own + node.own == tree.root.subtree
        sent = await ask("agent/send", target="w", message=json.dumps([{"wait_ms": 60_000}]))
        assert sent["messageId"].startswith("task-")
        stopped = await client.call(
            "agent/cancel", {"sessionId": root, "target": "w"}, a.AgentResultOf
        )
        assert (stopped.agent.status, stopped.agent.generation) == ("cancelled", 2)
        gone = await ask("agent/delete", target=agent["childId"])
        assert gone["agent"]["status"] == "deleted"
        with pytest.raises(e.AgentNotFound):
            await ask("agent/observe", target=agent["childId"])
        with pytest.raises(e.ContractRequired):
            await ask("agent/spawn", prompt="x", options={"model": "scripted/echo"})
        with pytest.raises(e.SessionNotFound):
            await client.request("session/read", {"sessionId": agent["sessionId"]})
