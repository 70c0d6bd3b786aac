"""The configuration over the wire, and what sessions take from it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol.errors import RlmError
from rlm_protocol.methods import RESERVED
from support.fake_client import spawned

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_client_reads_and_writes_it_and_the_next_host_obeys(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        before = await client.request("config/read")
        assert before["config"] == {}
        write = {
            "changes": [
                {"path": ["model"], "value": "scripted/python"},
                {"path": ["kernel", "python"], "value": sys.executable},
            ],
            "expectedDigest": before["digest"],
            "idempotencyKey": "k",
        }
        after = await client.request("config/write", write)
        assert after["restartNeeded"] is True
        assert await client.request("config/write", write) == after
        stale = {**write, "changes": [{"path": ["model"], "value": "scripted/echo"}]}
        with pytest.raises(RlmError) as refused:
            await client.request("config/write", stale)
        assert refused.value.kind == "conflict"
        wrong = {"changes": [{"path": ["kernel", "pythn"], "value": "x"}]}
        with pytest.raises(RlmError, match=r"kernel\.pythn") as refused:
            await client.request("config/write", wrong)
        assert refused.value.kind == "configInvalid"
    async with spawned(tmp_path) as client:
        read = await client.request("config/read")
        assert read == {**after, "restartNeeded": False}
        session: dict[str, Any] = await client.request("session/create", {"cwd": str(tmp_path)})
        assert session["session"]["model"] == "scripted/python"
        ran = await client.request(
            "repl/execute",
            {"sessionId": session["session"]["id"], "code": "import sys; sys.executable"},
        )
        assert ran["result"] == repr(sys.executable)


async def test_names_that_wait_for_a_later_revision_are_unsupported_not_unknown(
    tmp_path: Path,
) -> None:
    async with spawned(tmp_path) as client:
        for method in (*sorted(RESERVED), "session/compact"):
            with pytest.raises(RlmError) as refused:
                await client.request(method, {"sessionId": "s"})

            assert refused.value.kind == "unsupported", method
