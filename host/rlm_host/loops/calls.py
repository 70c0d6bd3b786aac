"""
Running the same logic for callers with and without an event loop.

A kernel's logic is a generator of calls: it yields each call to a store or to a caller's function
and is sent the result. `drive` makes them one after the other; `adrive` awaits them.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from .leases import Hold
from .stores.base import RunStore

T = TypeVar("T")


class StoreCall(NamedTuple):
    """A call that reads or writes a store. It is short, and its outcome must be known."""

    function: Callable[[], Any]
    arguments: tuple[()] = ()


class UserCall(NamedTuple):
    """A call of a step, gate, apply or rollback. It may take long and may be a coroutine's."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


Call = StoreCall | UserCall
Logic = Generator[Call, Any, T]


class _Progress(Generic[T]):
    """How far some logic has come: `after` an answer or error it wants a call, or is done."""

    def __init__(self, logic: Logic[T]) -> None:
        self._logic = logic
        self.result: T

    def after(self, answer: Any, error: BaseException | None = None) -> Call | None:
        try:
            return self._logic.send(answer) if error is None else self._logic.throw(error)
        except StopIteration as end:
            self.result = end.value
            return None


def drive(logic: Logic[T]) -> T:
    """Make the calls in this thread and give the logic's result."""
    progress = _Progress(logic)
    call = progress.after(None)
    while call is not None:
        try:
            answer = call.function(*call.arguments)
        except BaseException as why:
            call = progress.after(None, why)
        else:
            call = progress.after(answer)
    return progress.result


async def adrive(logic: Logic[T], stores: "StoreThread", hold: Hold) -> T:
    """Make the calls on behalf of this task and give the logic's result."""
    progress = _Progress(logic)
    call = progress.after(None)
    known: dict[int, bool] = {}
    while call is not None:
        try:
            if isinstance(call, StoreCall):
                answer = await stores.call(call.function)
            elif _is_async(call.function, known):
                answer = await call.function(*call.arguments)
            else:
                answer = await _in_thread(call, hold)
        except BaseException as why:
            call = progress.after(None, why)
        else:
            call = progress.after(answer)
    return progress.result


async def _in_thread(call: UserCall, hold: Hold) -> Any:
    """Run a function in a thread, and do not end before it returns."""
    in_thread = anyio.to_thread.run_sync(
        lambda: call.function(*call.arguments), limiter=anyio.CapacityLimiter(1)
    )
    answer = await _outcome(asyncio.ensure_future(in_thread), on_cancel=hold.abort)
    return await answer if inspect.isawaitable(answer) else answer


async def _outcome(future: "asyncio.Future[T]", *, on_cancel: Callable[[], None]) -> T:
    """Await a future that must not be left alone; a cancellation is raised when it is done."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        on_cancel()
        await _done(future)
        future.exception()  # seen: nobody else will look at it
        raise


async def _done(future: "asyncio.Future[Any]") -> None:
    """Wait until a future is done, whatever is cancelled meanwhile: the caller raises that."""
    while not future.done():
        with anyio.CancelScope(shield=True), contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])


def _is_async(function: Callable[..., Any], known: dict[int, bool]) -> bool:
    """Look once, which takes long: the logic keeps its functions, so that an id stays theirs."""
    if (found := known.get(id(function))) is None:
        method = getattr(function, "__call__", None)  # noqa: B004 -- the method itself is wanted
        found = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)
        known[id(function)] = found
    return found


class _Job(NamedTuple):
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


MANY = 32
"""Waiting calls for which two syncs, with work going on during them, are better than one."""
_Jobs = SimpleQueue[_Job | None]
"""Jobs in the order of their making; None after the last."""


class StoreThread:
    """
    Makes the store calls of all tasks, those that wait together with one sync.

    The thread lives while somebody is inside `async with`.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._entering = threading.Lock()
        self._users = 0
        self._jobs: _Jobs = SimpleQueue()

    async def __aenter__(self) -> "StoreThread":
        with self._entering:
            if not self._users:
                self._jobs = SimpleQueue()
                threading.Thread(
                    target=self._serve, args=(self._jobs,), name="loop-store", daemon=True
                ).start()
            self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._entering:
            self._users -= 1
            if not self._users:
                self._jobs.put(None)

    async def call(self, function: Callable[[], T]) -> T:
        """Make one call. A cancellation waits until its outcome is known."""
        try:
            answer: T = await self._put(function)
            return answer
        except asyncio.CancelledError:
            # Nobody can take the call back; what comes behind it is made after it.
            await _done(self._put(lambda: None))
            raise

    def _put(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(function, loop, future))
        return future

    def _serve(self, jobs: _Jobs) -> None:
        earlier = _Made([], [])
        while (first := jobs.get()) is not None:
            waiting = jobs.qsize()
            if waiting >= MANY:
                # All together they would wait for the disk; so one half works while the other does.
                waiting = min(waiting, (waiting + len(earlier)) // 2)
            # No user is in here any more when None comes, so it comes alone.
            batch = [first, *(job for _ in range(waiting) if (job := jobs.get()))]
            outcomes: Sequence[Any]
            try:
                outcomes = self._store.together(
                    [job.function for job in batch], meanwhile=earlier.tell
                )
            except BaseException as why:  # nobody may wait for ever
                outcomes = [why] * len(batch)
            earlier.tell()
            earlier = _Made(batch, outcomes)
            if jobs.empty():
                earlier.tell()


class _Made:
    """Calls that were made, until those who wait for them are told."""

    def __init__(self, batch: Sequence[_Job], outcomes: Sequence[Any]) -> None:
        self._untold = list(zip(batch, outcomes, strict=True))

    def __len__(self) -> int:
        return len(self._untold)

    def tell(self) -> None:
        untold, self._untold = self._untold, []
        for loop in {job.loop for job, _ in untold}:
            mine = [(job.future, outcome) for job, outcome in untold if job.loop is loop]
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits there any more
                loop.call_soon_threadsafe(_settle, mine)


def _settle(outcomes: "Sequence[tuple[asyncio.Future[Any], Any]]") -> None:
    for future, outcome in outcomes:
        if future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
