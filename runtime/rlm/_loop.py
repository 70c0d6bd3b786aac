"""
The event loop: asyncio's own, on a selector that hands requests over where it sees them.

A request then costs one turn of the loop and no callback of its own, and what cells have asked
their host in one turn leaves in one write, before the loop waits.
"""

import asyncio
import select
import selectors
import time
from collections.abc import Callable
from typing import Any

from ._interrupt import turns_the_loop
from ._wire import Inbox

Events = list[tuple[selectors.SelectorKey, int]]


class Selector(selectors.DefaultSelector):
    """
    What the loop waits on.

    Calls `end_turn` first, with whether the loop has nothing to do now, and `serve` when requests
    have come.
    """

    def __init__(
        self, inbox: Inbox, serve: Callable[[], None], end_turn: Callable[[bool], None]
    ) -> None:
        super().__init__()
        self._inbox = inbox
        self._serve = serve
        self._end_turn = end_turn
        self._epoll = select.epoll.fromfd(self.fileno()) if hasattr(select, "epoll") else None

    @turns_the_loop
    def select(self, timeout: float | None = None) -> Events:
        """Wait as every selector does. The inbox is served, not reported."""
        self._end_turn(timeout is None or timeout > 0)
        inbox = self._inbox
        reads = inbox.reads
        if timeout is None and self._epoll is not None:  # the loop is idle: mostly it is a request
            if self._epoll.poll(-1, 1)[0][0] == inbox.fd:
                self._serve_inbox(reads)
                return []
            timeout = 0
        ready = super().select(timeout)
        for at, (key, _) in enumerate(ready):
            if key.fd == inbox.fd:
                del ready[at]
                self._serve_inbox(reads)
                break
        return ready

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget a descriptor. The inbox is no cell's to remove: to the cell it is not there."""
        if fileobj == self._inbox.fd and not self._inbox.ended:
            raise KeyError(fileobj)
        return super().unregister(fileobj)

    def _serve_inbox(self, reads: int) -> None:
        self._inbox.seen_ready(reads)
        self._serve()
        if self._inbox.ended:
            self.unregister(self._inbox.fd)  # its end is readable for ever


class Loop(asyncio.SelectorEventLoop):
    """asyncio's loop, whose clock goes on when a cell stops `time.monotonic`."""

    time = staticmethod(time.monotonic)


def new(
    inbox: Inbox, serve: Callable[[], None], end_turn: Callable[[bool], None]
) -> tuple[Loop, tuple[int, ...]]:
    """Make a loop that serves the inbox, the current one of this thread; and its descriptors."""
    selector = Selector(inbox, serve, end_turn)
    loop = Loop(selector)
    asyncio.set_event_loop(loop)
    selector.register(inbox.fd, selectors.EVENT_READ, (None, None))  # the form of the loop's own
    own: list[Any] = [selector, *(getattr(loop, name, None) for name in ("_ssock", "_csock"))]
    return loop, tuple(one.fileno() for one in own if hasattr(one, "fileno"))
