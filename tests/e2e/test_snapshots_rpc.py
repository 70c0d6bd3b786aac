"""A session's snapshots over the wire: listed, the last one and an earlier one restored."""

from pathlib import Path
from typing import Any

import pytest

from rlm_protocol.errors import RlmError
from support.fake_client import FakeClient, spawned

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def run(client: FakeClient, where: dict[str, str], code: str) -> Any:
    return (await client.request("repl/execute", {**where, "code": code}))["result"]


def change_one_bit(folder: Path, name: str) -> None:
    (file,) = folder.rglob(name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


async def test_an_earlier_snapshot_is_found_and_brought_back(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        created = await client.request("session/create", {"cwd": str(tmp_path)})
        where = {"sessionId": created["session"]["id"]}
        assert (await client.request("repl/snapshots", where))["snapshots"] == []
        with pytest.raises(RlmError) as none:
            await client.request("repl/restore", where)
        assert none.value.kind == "snapshotFailed"
        taken = []
        for value in (1, 2, 3):
            await run(client, where, f"x = {value}")
            taken.append((await client.request("repl/snapshot", where))["id"])
        listed = (await client.request("repl/snapshots", where))["snapshots"]
        assert [one["id"] for one in listed] == taken[::-1]
        assert [one["current"] for one in listed] == [True, False, False]
        assert all(one["sizeBytes"] > 0 and one["takenAtMs"] > 0 for one in listed)

        back = await client.request("repl/restore", {**where, "snapshotId": taken[0]})
        assert "x" in back["restored"]
        assert await run(client, where, "x") == "1"
        await client.request("repl/restart", {**where, "restore": True})
        assert await run(client, where, "x") == "1", "the one that was restored is the last one now"
        assert await client.request("repl/restore", {**where, "snapshotId": taken[2]})
        assert await run(client, where, "x") == "3"
        for lost in ("0" * 32, "x"):
            with pytest.raises(RlmError) as gone:
                await client.request("repl/restore", {**where, "snapshotId": lost})
            assert gone.value.kind == "snapshotFailed"
        assert await run(client, where, "x") == "3", "a refusal changes nothing"


async def test_an_earlier_snapshot_that_somebody_changed_is_not_loaded(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        created = await client.request("session/create", {"cwd": str(tmp_path)})
        where = {"sessionId": created["session"]["id"]}
        await run(client, where, "x = 1")
        first = (await client.request("repl/snapshot", where))["id"]
        await run(client, where, "x = 2")
        await client.request("repl/snapshot", where)
        change_one_bit(tmp_path, f"kernel-state.{first}.dill")
        with pytest.raises(RlmError) as refused:
            await client.request("repl/restore", {**where, "snapshotId": first})
        assert refused.value.kind == "snapshotFailed"
        assert await run(client, where, "x") == "2"
