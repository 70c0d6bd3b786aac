"""
Handlers, begun at once: each runs in the callback that starts it, up to its first wait.

To make a task costs more than most handlers take (measured: 60 µs in a task group with a cancel
scope, 3 µs so). So a handler begins inside a spare task that exists already, and only one that has
to wait takes this task for itself: what it sees as the current task never changes, and timeouts and
cancel scopes work as everywhere. Python 3.12 calls that an eager task. The functions that tell
asyncio which task runs are those of "Extending asyncio" (Python library reference).
"""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]
AGAIN_S = 0.3
"""Work that does not end when it is cancelled is cancelled again after so long."""


class _Body(Work):
    """What a spare task runs: nothing, until it takes work that has begun; then the rest of it."""

    def __init__(self, parking: "asyncio.Future[None]") -> None:
        self._parking = parking
        self._parked = parking.__await__()
        self._on_end: Callable[[], None] = lambda: None
        self._work: Work | None = None
        self._waits_for: list[Any] = []  # what the work waits for, until the task does

    def take(self, work: Work, waits_for: Any, on_end: Callable[[], None]) -> None:
        """Go on with `work`, which has stopped at `waits_for`; `on_end`: it has ended well."""
        self._work, self._on_end = work, on_end
        self._waits_for.append(waits_for)
        self._parking.set_result(None)

    def send(self, value: None) -> Any:
        """Do the task's next step."""
        if self._work is None:
            return next(self._parked)
        if self._waits_for:
            return self._waits_for.pop()
        try:
            return self._work.send(value)
        except StopIteration:
            self._on_end()
            raise

    def throw(self, *why: Any) -> Any:
        """Do the task's next step, which begins with an error: it is cancelled."""
        if self._work is None:
            return self._parked.throw(*why)
        if self._waits_for:
            # Cancelled before the task has waited once: as if it had, so that what the work waits
            # for is cancelled first.
            waits_for = self._waits_for.pop()
            if waits_for is not None and waits_for.cancel():
                return waits_for
        return self._work.throw(*why)

    def close(self) -> None:
        """End without a result."""
        if self._work is not None:
            self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise NotImplementedError("only a task runs this")


class Workers:
    """
    Owns whatever work waits. An async context manager; leaving it cancels and ends all of it.

    Work must handle its own errors: one that ends with one is a bug, and is logged.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._spare = self._new()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=AGAIN_S)

    def start(self, work: Work) -> "asyncio.Task[None] | None":
        """
        Run up to the first wait. Call it in a callback of the loop, not in a task.

        Returns:
            The task in which the rest runs, to be cancelled; None when there is no rest.
        """
        task, body, context = self._spare
        asyncio._enter_task(self._loop, task)
        try:
            waits_for = context.run(work.send, None)
        except StopIteration:
            return None
        finally:
            asyncio._leave_task(self._loop, task)
        body.take(work, waits_for, functools.partial(self._ended_well, task))
        self._spare = self._new()
        return task

    def _new(self) -> tuple["asyncio.Task[None]", _Body, contextvars.Context]:
        context = contextvars.copy_context()
        body = _Body(self._loop.create_future())
        task = self._loop.create_task(body, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task, body, context

    def _ended_well(self, task: "asyncio.Task[None]") -> None:
        """Spare the loop the pass in which it would call `_ended`, which has nothing to say."""
        task.remove_done_callback(self._ended)
        self._tasks.discard(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("a request's work failed with a bug", exc_info=bug)
