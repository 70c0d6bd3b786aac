"""
The event loop: asyncio's own, which hands requests over where it waits for them.

While nothing but requests is waited for, one costs a wait and its work, and no turn of the loop.
What cells have asked their host in one turn leaves in one write, before the loop waits.
"""

import asyncio
import select
import selectors
import time
from collections import deque
from collections.abc import Callable, Collection
from contextvars import Context
from typing import Any, TypeVarTuple

from ._interrupt import turns_the_loop
from ._wire import Inbox

_Args = TypeVarTuple("_Args")
Events = list[tuple[selectors.SelectorKey, int]]


class Selector(selectors.DefaultSelector):
    """
    What the loop waits on. The inbox is served, not reported.

    Calls `serve` when requests have come, with the number of reads after which they were seen.
    Before it waits, it calls `end_turn`, with whether the loop has nothing to do now, if there is
    anything in `due`.
    """

    def __init__(
        self,
        inbox: Inbox,
        serve: Callable[[int], None],
        end_turn: Callable[[bool], None],
        due: tuple[Collection[Any], ...],
    ) -> None:
        super().__init__()
        self._inbox = inbox
        self._serve = serve
        self._end_turn = end_turn
        self._due = due
        self.kept = {inbox.fd}
        """What cannot be unregistered."""
        self._poll = select.epoll.fromfd(self.fileno()).poll if hasattr(select, "epoll") else None

    @turns_the_loop
    def select(self, timeout: float | None = None) -> Events:
        """Wait as every selector does."""
        if any(self._due):
            self._end_turn(timeout is None or timeout > 0)
        reads = self._inbox.reads
        ready = super().select(timeout)
        for at, (key, _) in enumerate(ready):
            if key.fd == self._inbox.fd:
                del ready[at]
                self._serve(reads)
                self._forget_ended()
                break
        return ready

    @turns_the_loop
    def serve_next(self) -> bool:
        """Wait, and serve the requests that have come. False when it was something else."""
        if self._poll is None:
            return False
        if any(self._due):
            self._end_turn(True)
        inbox = self._inbox
        reads = inbox.reads
        if self._poll(-1, 1)[0][0] != inbox.fd:
            return False
        self._serve(reads)
        if inbox.ended:
            self._forget_ended()
        return True

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget a descriptor. What the loop lives on is no cell's to remove: it is not there."""
        if fileobj in self.kept:
            raise KeyError(fileobj)
        return super().unregister(fileobj)

    def _forget_ended(self) -> None:
        if self._inbox.ended:
            self.kept.discard(self._inbox.fd)
            self.unregister(self._inbox.fd)  # its end is readable for ever


class Loop(asyncio.SelectorEventLoop):
    """
    asyncio's loop, with two of its methods made shorter for what is nearly always the case.

    Their long forms, asyncio's own, serve whenever there is more to look at. Its clock goes on when
    a cell stops `time.monotonic`.
    """

    time = staticmethod(time.monotonic)
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _closed: bool
    _debug: bool

    def __init__(self, selector: Selector) -> None:
        super().__init__(selector)
        self._serve_next = selector.serve_next

    @turns_the_loop
    def _run_once(self) -> None:
        """
        Run one turn. Requests are served without one while nothing else is there.

        A turn without timers is: wait, then run what is ready now.
        """
        ready = self._ready
        if ready or self._scheduled or self._stopping or self._debug:
            super()._run_once()  # type: ignore[misc]
            return
        while not (ready or self._scheduled or self._stopping):
            if not self._serve_next():
                super()._run_once()  # type: ignore[misc]
                return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def call_soon(
        self, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
    ) -> asyncio.Handle:
        """Have `callback` called in the next turn."""
        if self._debug or self._closed:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle


def new(selector: Selector, inbox: Inbox) -> tuple[Loop, tuple[int, ...]]:
    """Make a loop that serves the inbox, the current one of this thread; and its descriptors."""
    loop = Loop(selector)
    asyncio.set_event_loop(loop)
    selector.register(inbox.fd, selectors.EVENT_READ, (None, None))  # the form of the loop's own
    wakes = getattr(loop, "_ssock", None)
    if wakes is not None:
        selector.kept.add(wakes.fileno())
    own: list[Any] = [selector, *(getattr(loop, name, None) for name in ("_ssock", "_csock"))]
    return loop, tuple(one.fileno() for one in own if hasattr(one, "fileno"))
