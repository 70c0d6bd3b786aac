"""A recorded cell: what of it is durable when, and what that costs."""

import asyncio
from pathlib import Path

import pytest

from rlm_host.sessions import cells
from rlm_host.sessions.files import Files
from rlm_protocol.item import ItemCompleted, ItemStarted
from support.sessions import bench, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Counting(Files):
    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


async def test_a_short_cell_costs_one_sync_and_is_told_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "LINGER_MS", 60_000)
    files = Counting()
    async with bench(tmp_path, files=files) as b:
        actor = await b.create()
        await b.listen(actor)
        before = files.syncs
        result = await asyncio.wait_for(actor.execute_cell("say hello"), 30)
        assert files.syncs - before == 1
        assert b.kinds(actor)[-3:] == ["CellStarted", "KernelStarted", "ItemCompleted"]
    told = [(method, getattr(payload, "item_id", "")) for method, payload in b.heard]
    about = [method for method, _ in told if method.startswith("item/")]
    assert about == ["item/started", "item/delta", "item/completed"]
    assert ("item/delta", result.cell_id) in told


async def test_the_start_of_a_cell_that_goes_on_is_told_while_it_runs(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create()
        await b.listen(actor)
        running = asyncio.ensure_future(actor.execute_cell("wait"))
        await until(lambda: any(isinstance(told, ItemStarted) for _, told in b.heard))
        await until(lambda: any(method == "item/delta" for method, _ in b.heard))
        assert "CellStarted" in b.kinds(actor)
        assert not running.done()
        actor.kernel.interrupt()
        assert (await running).status == "interrupted"
    assert any(isinstance(told, ItemCompleted) for _, told in b.heard)


async def test_what_a_session_owns_goes_on_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    async def caller() -> None:
        await actor.beside(work())

    async with bench(tmp_path) as b:
        actor = await b.create()
        asked = asyncio.ensure_future(caller())
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        go.set()
        await asyncio.wait_for(done.wait(), 30)


@pytest.mark.parametrize("passes", [0, 2])
async def test_whoever_waits_for_what_a_session_owns_hears_of_its_end(
    tmp_path: Path, passes: int
) -> None:
    """Ended before it has begun, or while it runs."""
    async with bench(tmp_path) as b:
        actor = await b.create()
        before = asyncio.all_tasks()
        asked = actor.beside(asyncio.sleep(60))
        (owned,) = asyncio.all_tasks() - before
        for _ in range(passes):
            await asyncio.sleep(0)
        owned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asked, 30)


async def test_whoever_waits_for_what_a_session_owns_hears_of_its_failure(tmp_path: Path) -> None:
    async def work() -> None:
        raise ValueError("mine")

    async with bench(tmp_path) as b:
        actor = await b.create()
        with pytest.raises(ValueError, match="mine"):
            await asyncio.wait_for(actor.beside(work()), 30)
