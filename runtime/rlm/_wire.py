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
_FIRST_READ_BYTES = 8 * 1024
"""Room for a request; only more than that is worth a large buffer."""
_READS = 64


class Wire:
    """Writes frames in the order of its calls. Owns its fd and a poller; the page is shared."""

    # Bound here, where no cell replaces it, as tests of a user do in every module that has it.
    _os_write = staticmethod(os.write)

    def __init__(self, fd: int, page: Page, captured: tuple[int, int]) -> None:
        self.fd = fd
        self.page = page
        self._acquire, self._release = page.acquire, page.release
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
            self._acquire()
            self._holder = me
            self._flush_and_release()

    def fence(self) -> None:
        """
        Take the lock at a moment when every byte captured before has been written.

        Until `finish` gives it back nobody else writes. From then on captured bytes are nobody's.
        """
        self._acquire()
        if self._captured.look():
            self._await_guard()
        self._holder = get_ident()

    def _await_guard(self) -> None:
        pause = 0.0
        while self._captured.look():
            self._release()  # the guard reads under this lock, and nobody else reads
            _clock.sleep(pause)
            pause = min(0.001, pause + 0.00005)
            self._acquire()

    def finish(self, json_id: bytes, frames: bytes) -> None:
        """Write the last frames of the request `json_id`, after a `fence`."""
        if self.page.set_nobody():
            self._close_partials(json_id)
        self._waiting.append(frames)
        self._flush_and_release()

    def _close_partials(self, json_id: bytes) -> None:
        """Show unfinished characters as such, never joined with a later cell's bytes."""
        for stream, name in enumerate(NAMES):
            if self.page.partial(stream):
                self._waiting.append(b'{"event":"%b","id":%b,"text":"\\ufffd"}\n' % (name, json_id))
                self.page.set_partial(stream, b"")

    def _flush_and_release(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                data = waiting.popleft()
                if not self.silent and (sent := self._os_write(self.fd, data)) < len(data):
                    self._write_rest(memoryview(data)[sent:])
        except OSError:
            self.silent = True
            waiting.clear()
        finally:
            self._holder = 0
            self._release()

    def _write_rest(self, view: memoryview) -> None:
        while view:
            view = view[self._os_write(self.fd, view) :]


class Inbox:
    """Reads request lines from the host without ever blocking. One reader at a time."""

    _os_read = staticmethod(os.read)  # see `Wire._os_write`

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._receiver = LineReceiver(max_frame_bytes=KERNEL_REQUEST_BYTES)
        self._lock = allocate_lock()
        self._main = get_ident()
        self._main_inside = False
        self._wanted = False  # to read, by a context that could not
        self._whole = True  # nothing of an unfinished line is in the receiver
        self._looker = _Looker((fd,))
        self.reads = 0
        self.ended = False

    @property
    def own_fds(self) -> tuple[int, ...]:
        """What a cell must not close."""
        return (self.fd, *self._looker.own_fds)

    def take(self, seen_after: int = -1) -> list[bytes | Refused] | None:
        """
        Give the lines that have arrived, and keep other contexts from reading until `release`.

        None when another context is at it: to a signal's handler, the main thread that it has
        interrupted; to other threads, whoever came first. The main thread waits for those, which
        may need the GIL to be done: it may be on its way back to code that never gives it up.

        At most `_READS` reads: whoever calls serves what it got before it asks again. Afterwards
        `ended` tells whether the stream is over.

        Args:
            seen_after: bytes lay unread after so many reads; if it is still as many, they still do.
        """
        if not self._enter():
            self._wanted = True
            return None
        try:
            self._wanted = False
            if seen_after != self.reads and not self.waiting():
                return []
            lines, more = self._read(_FIRST_READ_BYTES)
            if more:
                self._read_on(lines)
            return lines
        except BaseException:
            self.release()
            raise

    def release(self) -> bool:
        """Let others read. True when one of them wanted to: take again, and in its place."""
        self._lock.release()
        if get_ident() == self._main:
            self._main_inside = False
        return self._wanted

    def _enter(self) -> bool:
        if get_ident() != self._main:
            return self._lock.acquire(False)
        if self._main_inside:
            return False
        self._main_inside = True
        return self._lock.acquire()

    def _read_on(self, lines: list[bytes | Refused]) -> None:
        """Add what else has arrived."""
        more = True
        for _ in range(_READS - 1):
            if not more or not self.waiting():
                return
            others, more = self._read(READ_BYTES)
            lines += others

    def waiting(self) -> bool:
        """Tell whether bytes lie unread."""
        return not self.ended and bool(self._looker.look())

    def _read(self, size: int) -> tuple[list[bytes | Refused], bool]:
        """Read once, as bytes lie there. Gives what lines are whole now; whether there is more."""
        try:
            data = self._os_read(self.fd, size)
        except OSError:
            data = b""
        self.reads += 1
        lines: list[bytes | Refused]
        if data[-1:] == b"\n" and self._whole:  # no line lies across two reads: nearly always
            lines = data[:-1].split(b"\n")  # type: ignore[assignment]
        else:
            lines = self._assembled(data)
        return lines, len(data) == size

    def _assembled(self, data: bytes) -> list[bytes | Refused]:
        """Give the lines that end in `data`, the first and last of which may lie across reads."""
        if not data:
            self.ended = True
            return self._received(data)
        start, lines = 0, []
        if not self._whole:
            start = data.find(b"\n") + 1 or len(data)
            lines = self._received(data[:start])
        end = data.rfind(b"\n", start) + 1
        if end:
            lines += data[start : end - 1].split(b"\n")
            start = end
        if start < len(data):
            lines += self._received(data[start:])
        self._whole = data.endswith(b"\n")
        return lines

    def _received(self, data: bytes) -> list[bytes | Refused]:
        self._receiver.receive_data(data)
        lines = []
        while (line := self._receiver.next_frame()) is not None:
            if isinstance(line, NeedData):
                break
            lines.append(line)
        return lines


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
            self.look = functools.partial(epoll.poll, 0, 1)
        else:
            self.look = lambda: select.select(fds, (), (), 0)[0]
