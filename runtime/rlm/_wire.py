"""
The kernel's end of the protocol: `Wire` writes frames, `Inbox` reads requests, in any thread.

A frame goes out while the page's lock is held, so it is never torn by the guard; the code objects
in here are marked as uninterruptible, so it is never torn by an interrupt.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from rlm_protocol.framing import LineReceiver, NeedData, Refused
from rlm_protocol.limits import KERNEL_REQUEST_BYTES

from . import _frames
from ._page import Page

READ_BYTES = 64 * 1024


class Wire:
    """Writes frames in the order of its calls. Owns nothing but its fd; the page is shared."""

    def __init__(self, fd: int, page: Page, captured: tuple[int, int]) -> None:
        self.fd = fd
        self.page = page
        self._pipes = select.poll()
        for end in captured:
            self._pipes.register(end, select.POLLIN)
        self._lock = threading.Lock()
        self._holder = 0
        self._waiting: deque[bytes] = deque()
        self.silent = False  # a forked child of a cell, or the host's end is gone

    def put(self, frames: bytes) -> None:
        """Write whole frames, waiting for the host. Lost silently when the host is gone."""
        self._waiting.append(frames)
        if self._holder == threading.get_ident():
            return  # a finaliser that printed while this thread was writing: it goes out next
        with self._lock:
            self._holder = threading.get_ident()
            self.page.acquire()
            try:
                self._flush()
            finally:
                self.page.release()
                self._holder = 0

    def end(self, id_: str, frames: bytes, close: Callable[[], bytes]) -> None:
        """
        Write `frames` and what `close` gives, once every byte captured before has been written.

        `close` is called at that moment. From then on captured bytes belong to nobody.
        """
        with self._lock:
            self._holder = threading.get_ident()
            self._fence()
            try:
                if self.page.has_partial():
                    self._close_partials(id_)
                self.page.set_author(b"null")
                self._waiting.append(frames + close())
                self._flush()
            finally:
                self.page.release()
                self._holder = 0

    def _close_partials(self, id_: str) -> None:
        """Show unfinished characters as such, never joined with a later cell's bytes."""
        for stream, name in enumerate(("stdout", "stderr")):
            if self.page.partial(stream):
                self._waiting.append(b"".join(_frames.output(name, id_, "\ufffd")))
                self.page.set_partial(stream, b"")

    def _fence(self) -> None:
        """Take the page's lock at a moment when both captured pipes are empty."""
        pause = 0.0
        while True:
            self.page.acquire()
            if not self._pipes.poll(0):
                return
            self.page.release()  # the guard reads under this lock, and nobody else reads
            time.sleep(pause)
            pause = min(0.001, pause + 0.00005)

    def _flush(self) -> None:
        while self._waiting:
            data = self._waiting.popleft()
            if self.silent:
                continue
            try:
                sent = os.write(self.fd, data)
                if sent < len(data):
                    view = memoryview(data)[sent:]
                    while view:
                        view = view[os.write(self.fd, view) :]
            except OSError:
                self.silent = True


class Inbox:
    """Reads request lines from the host without ever blocking. One reader at a time."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._receiver = LineReceiver(max_frame_bytes=KERNEL_REQUEST_BYTES)
        self._lock = threading.Lock()
        self._again = False
        self._whole = True  # nothing of an unfinished line is in the receiver
        self._poll = _poller(fd)  # used under the lock
        self._peek = _poller(fd)  # used by the watch only: a poll object serves one thread
        self.reads = 0
        self.ended = False

    def take(self, limit: int = 64) -> list[bytes | Refused]:
        """
        Give the lines that have arrived; [] when there are none or another context is reading.

        At most `limit` reads: whoever calls serves what it got before it asks again. Afterwards
        `ended` tells whether the stream is over.
        """
        if not self._lock.acquire(blocking=False):
            self._again = True  # whoever reads now looks once more
            return []
        lines: list[bytes | Refused] = []
        try:
            while True:
                self._again = False
                more = self._read(lines)
                limit -= 1
                if not limit or not (more or self._again):
                    return lines
        finally:
            self._lock.release()

    def waiting(self) -> bool:
        """Tell whether bytes lie unread. For one thread only."""
        return not self.ended and bool(self._peek.poll(0))

    def _read(self, lines: list[bytes | Refused]) -> bool:
        """Read once and add the lines that are whole now. True when there may be more to read."""
        if self.ended or not self._poll.poll(0):
            return False
        try:
            data = os.read(self.fd, READ_BYTES)
        except OSError:
            data = b""
        self.reads += 1
        if not data:
            self.ended = True
        ends_whole = data.endswith(b"\n")
        if self._whole and ends_whole:
            lines += data[:-1].split(b"\n")  # no line lies across two reads: most of the time
            return len(data) == READ_BYTES
        self._receiver.receive_data(data)
        while (line := self._receiver.next_frame()) is not None:
            if isinstance(line, NeedData):
                break
            lines.append(line)
        self._whole = ends_whole
        return len(data) == READ_BYTES


def _poller(fd: int) -> select.poll:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return poller
