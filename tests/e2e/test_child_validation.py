"""A schema that takes for ever is the child's problem, never the host's."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.validation import Validation
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.spawn import Processes
from rlm_host.sessions import checking
from rlm_protocol.child import ResultContract
from rlm_protocol.errors import ResultInvalid
from support.processes import my_children

pytestmark = pytest.mark.anyio


async def check(tmp_path: Path, schema: dict[str, Any], value: Any) -> None:
    processes = Processes(Ledger(tmp_path))
    await Validation(processes).check(ResultContract(schema=schema), value)


async def test_patterns_are_checked_beside_the_host(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"pattern": "^x+$"}}}
    await check(tmp_path, schema, {"a": "xxx"})
    with pytest.raises(ResultInvalid) as caught:
        await check(tmp_path, schema, {"a": "xyx"})
    assert caught.value.data == {"path": "$.a", "rule": "pattern"}


async def test_a_pattern_without_end_is_stopped_and_the_host_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "TIME_MS", 1_500)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    started = time.monotonic()
    with pytest.raises(ResultInvalid, match="could not be checked in"):
        await check(tmp_path, {"pattern": "^(a+)+$"}, "a" * 60 + "!")
    assert time.monotonic() - started < 30
    assert ticks > 10
    ticking.cancel()
    assert not my_children()
