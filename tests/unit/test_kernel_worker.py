import asyncio

import pytest

from rlm_host.kernels.worker import Worker
from rlm_host.processes.pipes import to_the_end
from rlm_protocol.errors import DepthLimit, InternalError, SessionClosed

pytestmark = pytest.mark.anyio


async def nothing() -> None:
    pass


def worker(log: list[str] | None = None) -> Worker:
    async def between() -> None:
        if log is not None:
            log.append("between")

    async def end() -> None:
        if log is not None:
            log.append("end")

    return Worker(between, end)


async def test_jobs_run_in_order_and_one_at_a_time() -> None:
    log: list[object] = []

    def job(name: str) -> object:
        async def do() -> str:
            log.append((name, "begin"))
            await asyncio.sleep(0)
            log.append((name, "end"))
            return name

        return do

    made = worker()
    futures = [made.put(job(n)) for n in "abc"] + [made.put(job("first"), first=True)]
    assert await asyncio.gather(*futures) == ["a", "b", "c", "first"]
    names = ["first", "a", "b", "c"]
    assert log == [(n, step) for n in names for step in ("begin", "end")]
    made.close()
    await made.finish()


async def test_a_declared_error_is_the_callers_and_a_bug_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse() -> None:
        raise DepthLimit

    async def bug() -> None:
        raise ZeroDivisionError

    made = worker()
    with pytest.raises(DepthLimit):
        await made.put(refuse)
    with pytest.raises(InternalError) as failed:
        await made.put(bug)
    assert failed.value.data["token"] in caplog.text
    made.close()
    await made.finish()


async def test_a_job_whose_caller_gave_up_is_skipped() -> None:
    ran: list[str] = []
    gate = asyncio.Event()

    async def mark() -> None:
        ran.append("x")

    made = worker()
    first, second, third = made.put(gate.wait), made.put(mark), made.put(mark)
    second.cancel()
    assert made.withdraw(third)
    assert not made.withdraw(third)
    gate.set()
    await first
    made.close()
    await made.finish()
    assert ran == []


async def test_closing_refuses_what_waits_and_what_comes_and_finishes_what_runs() -> None:
    log: list[str] = []
    gate = asyncio.Event()
    made = worker(log)
    running = made.put(gate.wait)
    await asyncio.sleep(0.01)
    waiting = made.put(nothing)
    assert made.close()
    with pytest.raises(SessionClosed):
        await waiting
    with pytest.raises(SessionClosed):
        made.put(nothing)
    assert not await made.last(nothing, limit_ms=10)
    gate.set()
    assert await made.last(nothing, limit_ms=10_000)
    await made.finish()
    assert await running
    assert log[-1] == "end"


async def test_what_does_not_end_is_cancelled_and_its_caller_told() -> None:
    log: list[str] = []
    made = worker(log)
    running = made.put(asyncio.Event().wait)
    await asyncio.sleep(0.01)
    made.close()
    await made.finish(patience_ms=10)
    with pytest.raises(SessionClosed):
        await running
    assert log[-1] == "end"


async def test_closing_a_worker_that_never_began_is_nothing() -> None:
    made = worker()
    assert not made.close()
    await made.finish()


async def test_work_to_the_end_is_not_cut_short_by_a_cancellation() -> None:
    done: list[int] = []

    async def work() -> None:
        for n in range(3):
            await asyncio.sleep(0.01)
            done.append(n)

    task = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert done == [0, 1, 2]


async def test_work_to_the_end_gives_its_result_or_its_error() -> None:
    async def answer() -> int:
        return 3

    async def fail() -> None:
        raise ValueError

    assert await to_the_end(answer()) == 3
    with pytest.raises(ValueError):  # noqa: PT011
        await to_the_end(fail())
