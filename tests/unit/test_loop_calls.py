"""Store calls of many tasks: together, in order, and answered when they are durable."""

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from rlm_host.loops.calls import MANY, StoreThread
from rlm_host.loops.stores.base import nothing
from rlm_host.loops.stores.sqlite import SqliteRunStore
from support.loop_stores import submitted

pytestmark = pytest.mark.anyio
PATIENCE_S = 30


async def test_whoever_is_answered_finds_the_write_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite3"
    store = SqliteRunStore(path)
    elsewhere = apsw.Connection(str(path))

    async def submit(task: int) -> None:
        for n in range(3):
            name = f"run-{task}-{n}"
            await thread.call(lambda name=name: store.submit(name, submitted(name)))
            found = elsewhere.execute("SELECT 1 FROM runs WHERE run_id=?", (name,)).get
            assert found == 1, "acknowledged before it was durable"

    async with StoreThread(store) as thread:
        await asyncio.gather(*map(submit, range(3 * MANY)))
    elsewhere.close()
    store.close()


class SlowDisk:
    """A store whose syncs last until a task has gone on with an answer that it got before."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gone_on = threading.Event()

    def together(self, calls, *, meanwhile=nothing):
        results = [call() for call in calls]
        meanwhile()
        if self.sizes:
            assert self.gone_on.wait(PATIENCE_S), "nobody works while the disk does"
        self.sizes.append(len(calls))
        return results


async def test_one_half_of_many_calls_works_while_the_other_is_synced() -> None:
    store, at_work, all_wait = SlowDisk(), threading.Event(), threading.Event()

    def first() -> None:
        at_work.set()
        all_wait.wait(PATIENCE_S)

    async def call(function) -> None:
        await thread.call(function)
        store.gone_on.set()

    async with StoreThread(store) as thread, asyncio.TaskGroup() as tasks:
        tasks.create_task(call(first))
        assert await asyncio.to_thread(at_work.wait, PATIENCE_S)
        for _ in range(2 * MANY):
            tasks.create_task(call(lambda: None))
        await asyncio.sleep(0)
        all_wait.set()
    assert store.sizes == [1, MANY + 1, MANY - 1]


async def test_a_cancelled_call_ends_when_it_has_been_made() -> None:
    store, made, may_end = SlowDisk(), [], threading.Event()
    store.gone_on.set()

    async with StoreThread(store) as thread:
        task = asyncio.create_task(thread.call(lambda: made.append(may_end.wait(PATIENCE_S))))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert made == [True]


async def test_a_store_that_breaks_down_leaves_nobody_waiting() -> None:
    class Broken:
        def together(self, calls, *, meanwhile=nothing):
            raise MemoryError("no room for so many")

    async with StoreThread(Broken()) as thread:
        told = await asyncio.gather(
            *(thread.call(lambda: None) for _ in range(3)), return_exceptions=True
        )
    assert [type(one) for one in told] == [MemoryError] * 3
