"""One task that does one thing after the other, for as many callers as there are."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from rlm_protocol.errors import InternalError, RlmError, SessionClosed

log = logging.getLogger(__name__)
T = TypeVar("T")


class _Job(msgspec.Struct, eq=False):
    do: Callable[[], Awaitable[Any]]
    future: asyncio.Future[Any]


class Worker:
    """
    Owns a queue and the task that serves it. The task starts with the first job.

    A job whose caller has given up before its turn is skipped; one that runs is not cancelled by
    it. An unexpected exception is our bug: its caller gets InternalError with the log's token.
    """

    def __init__(
        self, between: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]
    ) -> None:
        """
        Set up the queue; start nothing.

        Args:
            between: awaited before each job and after each `poke`.
            end: awaited last, however the task ends.
        """
        self._between = between
        self._end = end
        self._jobs: deque[_Job] = deque()
        self._current: _Job | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._finished = False

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._jobs)

    @property
    def running(self) -> bool:
        """Whether a job has begun and not ended."""
        return self._current is not None

    def put(self, do: Callable[[], Awaitable[T]], *, first: bool = False) -> asyncio.Future[T]:
        """Queue a job, at the end or before all others. Raises SessionClosed."""
        if self._closed:
            raise SessionClosed
        return self._put(do, first)

    def withdraw(self, future: asyncio.Future[Any]) -> bool:
        """Take a job out before it has begun. False: it is not waiting."""
        for job in self._jobs:
            if job.future is future:
                self._jobs.remove(job)
                return True
        return False

    def poke(self) -> None:
        """Have `between` run soon."""
        self._wake.set()

    def close(self) -> bool:
        """
        Take no more jobs; what waits fails with SessionClosed.

        Returns:
            False when nothing was ever begun: there is nothing to finish.
        """
        self._closed = True
        while self._jobs:
            settle(self._jobs.popleft().future, error=SessionClosed())
        return self._task is not None

    async def last(self, do: Callable[[], Awaitable[None]], *, limit_ms: int) -> bool:
        """Do one more thing after `close`, behind what runs. False: not done in time."""
        assert self._task is not None
        future = self._put(do, first=False)
        await asyncio.wait(
            {future, self._task}, timeout=limit_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        if future.done():
            return True
        future.cancel()
        return False

    async def finish(self, *, patience_ms: int | None = None) -> None:
        """Wait for the task's end; after `patience_ms` what runs is cancelled."""
        if self._task is None:
            return
        self._finished = True
        self._wake.set()
        timeout = None if patience_ms is None else patience_ms / 1000
        await asyncio.wait({self._task}, timeout=timeout)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        for job in (self._current, *self._jobs):
            if job is not None:
                settle(job.future, error=SessionClosed())

    def _put(self, do: Callable[[], Awaitable[T]], first: bool) -> asyncio.Future[T]:
        job = _Job(do=do, future=asyncio.get_running_loop().create_future())
        if first:
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
        return job.future

    async def _serve(self) -> None:
        try:
            while True:
                await self._tidy()
                if self._jobs:
                    self._current = self._jobs.popleft()
                    await _do(self._current)
                    self._current = None
                elif self._finished:
                    return
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            await self._end()

    async def _tidy(self) -> None:
        try:
            await self._between()
        except Exception:
            # Nobody waits for this: the next job must not suffer from it.
            log.exception("a kernel's worker failed between its jobs")


async def _do(job: _Job) -> None:
    if job.future.done():
        return
    try:
        result = await job.do()
    except RlmError as why:
        settle(job.future, error=why)
    except Exception:
        token = secrets.token_hex(4)
        log.exception("a kernel's worker failed [%s]", token)
        settle(job.future, error=InternalError(token=token))
    else:
        settle(job.future, result=result)


def settle(
    future: asyncio.Future[Any], *, result: object = None, error: RlmError | None = None
) -> None:
    """Answer a caller, if it still waits."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
