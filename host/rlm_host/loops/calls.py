"""
Running the same logic for callers with and without an event loop.

A kernel's logic is a generator of calls: it yields each call to a store or to a caller's function
and is sent the result. `drive` makes them one after the other; `adrive` awaits them.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
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
    while call is not None:
        try:
            if isinstance(call, StoreCall):
                answer = await stores.call(call.function)
            else:
                answer = await _user(call, hold)
        except BaseException as why:
            call = progress.after(None, why)
        else:
            call = progress.after(answer)
    return progress.result


async def _user(call: UserCall, hold: Hold) -> Any:
    """Await a coroutine function; run any other in a thread, and end neither before it returns."""
    if _is_async(call.function):
        return await call.function(*call.arguments)
    in_thread = anyio.to_thread.run_sync(
        lambda: call.function(*call.arguments), limiter=anyio.CapacityLimiter(1)
    )
    answer = await _outcome(asyncio.ensure_future(in_thread), on_cancel=hold.abort)
    return await answer if inspect.isawaitable(answer) else answer


async def _outcome(
    future: "asyncio.Future[T]", *, on_cancel: Callable[[], None] = lambda: None
) -> T:
    """Await a future that must not be left alone; a cancellation is raised when it is done."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError as why:
        cancelled = why
        on_cancel()
    while not future.done():
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([future])
        except asyncio.CancelledError as why:
            cancelled = why
    future.exception()  # seen: nobody else will look at it
    raise cancelled


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 -- the method itself is wanted
    )


class _Job(NamedTuple):
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class StoreThread:
    """
    Makes the store calls of all tasks, those that wait together with one sync.

    The thread lives while somebody is inside `async with`.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._users = 0
        self._running = False

    async def __aenter__(self) -> "StoreThread":
        with self._changed:
            self._users += 1
            if not self._running:
                self._running = True
                threading.Thread(target=self._serve, name="loop-store", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._changed:
            self._users -= 1
            self._changed.notify()

    async def call(self, function: Callable[[], T]) -> T:
        """Make one call. A cancellation waits until its outcome is known."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._changed:
            self._jobs.append(_Job(function, loop, future))
            self._changed.notify()
        return await _outcome(future)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or not self._users)
                if not self._jobs:
                    self._running = False
                    return
                jobs = [self._jobs.popleft() for _ in range(len(self._jobs))]
            outcomes: Sequence[Any]
            try:
                outcomes = self._store.together([job.function for job in jobs])
            except BaseException as why:  # nobody may wait for ever
                outcomes = [why] * len(jobs)
            for loop in {job.loop for job in jobs}:
                mine = [
                    (job.future, outcome)
                    for job, outcome in zip(jobs, outcomes, strict=True)
                    if job.loop is loop
                ]
                loop.call_soon_threadsafe(_settle, mine)


def _settle(outcomes: "Sequence[tuple[asyncio.Future[Any], Any]]") -> None:
    for future, outcome in outcomes:
        if future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
