"""
The kernel's end of the protocol: `Wire` writes frames, `Inbox` reads requests, in any thread.

A frame goes out while the page's lock is held, so it is never torn by the guard or another thread;
the code objects in here are marked as uninterruptible, so it is never torn by an interrupt.
"""

import functools
import os
import select
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from typing import Any

from rlm_protocol.framing import LineReceiver, NeedData, Refused
from rlm_protocol.limits import KERNEL_REQUEST_BYTES

from . import _clock
from ._guard import NAMES
from ._page import Page, high_fd

READ_BYTES = 64 * 1024
_read, _write = os.read, os.write  # as they were before any cell
_FIRST_READ_BYTES = 8 * 1024
"""Room for a request; only more than that is worth a large buffer."""


class Wire:
    """Writes frames in the order of its calls. Owns its fd and a poller; the page is shared."""

    def __init__(self, fd: int, page: Page, captured: tuple[int, int]) -> None:
        self.fd = fd
        self.page = page
        self._captured = _Looker(captured)
        self._holder = 0
        self._waiting: deque[bytes] = deque()
        self.silent = False  # a forked child of a cell, or the host's end is gone

    @property
    def own_fds(self) -> tuple[int, ...]:
        """What a cell must not close."""
        return (self.fd, *self._captured.own_fds)

    def takes_more(self) -> bool:
        """Tell whether a little can be written without waiting for the host."""
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT)
        return bool(poller.poll(0))

    def put(self, frames: bytes) -> None:
        """Write whole frames, waiting for the host. Lost silently when the host is gone."""
        if self.silent:
            return  # a child of a cell must not even touch the lock
        self._waiting.append(frames)
        me = get_ident()
        while self._waiting and self._holder != me:
            # Held by this thread: a finaliser printed while it was writing, that goes out next.
            self.page.acquire()
            self._holder = me
            self._flush_and_release()

    def fence(self) -> None:
        """
        Take the lock at a moment when every byte captured before has been written.

        Until `finish` gives it back nobody else writes. From then on captured bytes are nobody's.
        """
        self.page.acquire()
        pause = 0.0
        while self._captured.look():
            self.page.release()  # the guard reads under this lock, and nobody else reads
            _clock.sleep(pause)
            pause = min(0.001, pause + 0.00005)
            self.page.acquire()
        self._holder = get_ident()

    def finish(self, json_id: bytes, frames: bytes) -> None:
        """Write the last frames of the request `json_id`, after a `fence`."""
        page = self.page
        if page.has_partial():
            self._close_partials(json_id)
        page.set_nobody()
        if self._waiting:
            self._waiting.append(frames)
        elif not self.silent:
            self._write(frames)
        self._flush_and_release()

    def _close_partials(self, json_id: bytes) -> None:
        """Show unfinished characters as such, never joined with a later cell's bytes."""
        for stream, name in enumerate(NAMES):
            if self.page.partial(stream):
                self._waiting.append(b'{"event":"%b","id":%b,"text":"\\ufffd"}\n' % (name, json_id))
                self.page.set_partial(stream, b"")

    def _flush_and_release(self) -> None:
        try:
            while self._waiting:
                data = self._waiting.popleft()
                if not self.silent:
                    self._write(data)
        finally:
            self._holder = 0
            self.page.release()

    def _write(self, data: bytes) -> None:
        try:
            sent = _write(self.fd, data)
            if sent < len(data):
                view = memoryview(data)[sent:]
                while view:
                    view = view[_write(self.fd, view) :]
        except OSError:
            self.silent = True


class Inbox:
    """Reads request lines from the host without ever blocking. One reader at a time."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._receiver = LineReceiver(max_frame_bytes=KERNEL_REQUEST_BYTES)
        self._lock = allocate_lock()
        self._again = False
        self._whole = True  # nothing of an unfinished line is in the receiver
        self._looker = _Looker((fd,))
        self._ready_at = -1
        self.reads = 0
        self.ended = False

    @property
    def own_fds(self) -> tuple[int, ...]:
        """What a cell must not close."""
        return (self.fd, *self._looker.own_fds)

    def take(self, limit: int = 64) -> list[bytes | Refused]:
        """
        Give the lines that have arrived; [] when there are none or another context is reading.

        At most `limit` reads: whoever calls serves what it got before it asks again. Afterwards
        `ended` tells whether the stream is over.
        """
        if not self._lock.acquire(False):
            self._again = True  # whoever reads now looks once more
            return []
        lines: list[bytes | Refused] = []
        size = _FIRST_READ_BYTES
        try:
            while True:
                self._again = False
                more = self._read(lines, size)
                limit -= 1
                if not limit or not (more or self._again):
                    return lines
                size = READ_BYTES
        finally:
            self._lock.release()

    def seen_ready(self, reads: int) -> None:
        """Note that bytes lay unread after so many reads: if it is still as many, they still do."""
        self._ready_at = reads

    def waiting(self) -> bool:
        """Tell whether bytes lie unread."""
        return not self.ended and bool(self._looker.look())

    def _read(self, lines: list[bytes | Refused], size: int) -> bool:
        """Read once and add the lines that are whole now. True when there may be more to read."""
        if self.ended or not (self._ready_at == self.reads or self._looker.look()):
            return False
        try:
            data = _read(self.fd, size)
        except OSError:
            data = b""
        self.reads += 1
        if not data:
            self.ended = True
        ends_whole = data.endswith(b"\n")
        if self._whole and ends_whole:
            lines += data[:-1].split(b"\n")  # no line lies across two reads: most of the time
            return len(data) == size
        self._receiver.receive_data(data)
        while (line := self._receiver.next_frame()) is not None:
            if isinstance(line, NeedData):
                break
            lines.append(line)
        self._whole = ends_whole
        return len(data) == size


class _Looker:
    """Tells whether any of some descriptors is readable, and never waits."""

    def __init__(self, fds: tuple[int, ...]) -> None:
        self.own_fds: tuple[int, ...] = ()
        self.look: Callable[[], Any]
        """Look once; what it gives is true when any is readable."""
        if hasattr(select, "epoll"):  # half the time of `select`, at the price of a descriptor
            with select.epoll() as low:
                self.own_fds = (high_fd(low.fileno(), close=False),)
            epoll = select.epoll.fromfd(self.own_fds[0])
            for fd in fds:
                epoll.register(fd, select.EPOLLIN)
            self.look = functools.partial(epoll.poll, 0)
        else:
            self.look = lambda: select.select(fds, (), (), 0)[0]
