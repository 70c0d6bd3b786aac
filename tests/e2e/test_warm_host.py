"""A host forks its kernels when it can, unless its user says otherwise."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlm_host.app import kernel_host
from rlm_host.config import parse
from rlm_host.processes import facts
from support.fake_client import DEADLINE_S, FakeClient, spawned

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not facts.can_fork_guards(), reason="kernels start cold on this machine"),
]


async def origin(client: FakeClient, cwd: Path) -> int:
    """Start a session's kernel; give the parent of its guard."""
    created = await client.request("session/create", {"cwd": str(cwd)})
    params = {"sessionId": created["session"]["id"], "code": "import os; os.getppid()"}
    guard = int((await client.request("repl/execute", params))["result"])
    return facts.process(guard).parent


def until_late() -> Iterator[None]:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        yield


async def test_after_the_first_kernel_sessions_get_forked_ones(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        host = await origin(client, tmp_path)
        for _ in until_late():
            if (template := await origin(client, tmp_path)) != host:
                break
        assert facts.process(template).parent == host
    assert facts.process(template) is None or facts.process(template).zombie


def test_the_user_may_have_them_start_cold(tmp_path: Path) -> None:
    def templates(**kernel: object) -> object:
        config = parse({"kernel": kernel}, source=tmp_path / "config.toml")
        return kernel_host(config, {}, home=tmp_path).templates

    assert templates(warm=False) is None
    assert templates(preload=["json"]).preload == ("json",)
