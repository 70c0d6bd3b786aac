"""Work that begins in a callback and goes on in the same task: what a handler may rely on."""

import asyncio
import contextlib
import contextvars
import gc
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from rlm_host.rpc.workers import Work, Workers

pytestmark = pytest.mark.anyio
DEADLINE_S = 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def in_callback(act: Callable[[], Any]) -> Any:
    """Run `act` as the loop runs a reader: in no task."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Any] = loop.create_future()
    loop.call_soon(lambda: told.set_result(act()))
    return await asyncio.wait_for(told, DEADLINE_S)


async def test_what_does_not_wait_is_over_at_once_and_needs_no_task() -> None:
    ran = []

    async def work() -> None:
        ran.append(asyncio.current_task())

    async with Workers() as workers:
        started = await in_callback(lambda: [workers.start(work()) for _ in range(3)])
    assert started == [None] * 3
    assert len({id(task) for task in ran}) == 1
    assert ran[0] is not None


async def test_the_task_is_the_same_before_and_after_the_first_wait() -> None:
    seen, go = [], asyncio.Event()

    async def work() -> None:
        seen.append(asyncio.current_task())
        await go.wait()
        seen.append(asyncio.current_task())

    async with Workers() as workers:
        first, second = await in_callback(lambda: [workers.start(work()) for _ in range(2)])
        assert first is not second
        go.set()
        await asyncio.wait_for(asyncio.gather(first, second), DEADLINE_S)
    assert sorted(map(id, seen)) == sorted(map(id, [first, second] * 2))


async def test_time_limits_and_groups_that_begin_before_the_first_wait_hold_after_it() -> None:
    ended = []

    async def work() -> None:
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(0.01) as limit:
                async with asyncio.timeout(DEADLINE_S):
                    await anyio.sleep_forever()
            ended.append(limit.cancelled_caught)
            group.start_soon(anyio.lowlevel.checkpoint)

    async with Workers() as workers:
        task = await in_callback(lambda: workers.start(work()))
        await asyncio.wait_for(task, DEADLINE_S)
    assert ended == [True]


async def test_context_variables_last_over_the_first_wait() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    seen = []

    async def work() -> None:
        variable.set("mine")
        await asyncio.sleep(0)
        seen.append(variable.get())

    async with Workers() as workers:
        await asyncio.wait_for(await in_callback(lambda: workers.start(work())), DEADLINE_S)
    assert seen == ["mine"]
    assert variable.get(None) is None


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
async def test_a_cancel_reaches_what_the_work_waits_for_however_early_it_comes(passes: int) -> None:
    """In the same callback as the start (0), or so many passes of the loop later."""
    inner: list[asyncio.Task[None]] = []
    heard = []

    async def work() -> None:
        inner.append(asyncio.ensure_future(asyncio.sleep(DEADLINE_S)))
        try:
            await inner[0]
        except asyncio.CancelledError:
            heard.append(inner[0].cancelled())
            raise

    def start() -> asyncio.Task[None]:
        task = workers.start(work())
        assert task is not None
        if passes == 0:
            task.cancel()
        return task

    async with Workers() as workers:
        task = await in_callback(start)
        for _ in range(passes):
            await asyncio.sleep(0)
        if passes:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, DEADLINE_S)
    assert heard == [True]


async def test_a_cancel_that_comes_when_the_wait_is_over_is_not_lost() -> None:
    """The future is done, the cancel comes, and only then does the task do its first step."""
    heard = []

    async def work(ready: "asyncio.Future[None]") -> None:
        try:
            await ready
            heard.append("result")
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    def start() -> asyncio.Task[None]:
        ready = asyncio.get_running_loop().create_future()
        task = workers.start(work(ready))
        assert task is not None
        ready.set_result(None)
        task.cancel()
        return task

    async with Workers() as workers:
        await asyncio.wait([await in_callback(start)], timeout=DEADLINE_S)
    assert heard == ["cancelled"]


async def test_leaving_ends_what_waits_even_what_will_not_be_cancelled_once() -> None:
    ended = []

    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("stubborn")

    async def idle() -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        finally:
            ended.append("idle")

    before = asyncio.all_tasks()
    async with Workers() as workers:
        await in_callback(lambda: [workers.start(work()) for work in (stubborn, idle)])
    assert sorted(ended) == ["idle", "stubborn"]
    assert asyncio.all_tasks() == before


async def test_nothing_is_kept_of_work_that_has_ended() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    async with Workers() as workers:
        task = await in_callback(lambda: workers.start(work()))
        await asyncio.wait_for(task, DEADLINE_S)
        ended = weakref.ref(task)
        del task
        gc.collect()
        assert ended() is None


async def test_a_bug_is_logged_and_the_next_work_runs(caplog: pytest.LogCaptureFixture) -> None:
    ran = []

    async def bug() -> None:
        await asyncio.sleep(0)
        raise ValueError("mine")

    async def fine() -> None:
        ran.append(1)

    async with Workers() as workers:
        task = await in_callback(lambda: workers.start(bug()))
        await asyncio.wait([task], timeout=DEADLINE_S)
        await in_callback(lambda: workers.start(fine()))
    assert ran == [1]
    assert "failed with a bug" in caplog.text


async def test_work_that_raises_at_once_raises_at_its_starter() -> None:
    async def bug() -> None:
        raise ValueError("mine")

    def start() -> Work | None:
        with pytest.raises(ValueError, match="mine"):
            workers.start(bug())
        return None

    async with Workers() as workers:
        await in_callback(start)
