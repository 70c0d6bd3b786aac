"""
What cells write through Python: collected, attributed, shipped in few events.

An asyncio task keeps the id of the cell that spawned it for life (a context variable); what other
threads write belongs to nobody, whether or not they run in a copied context. Order holds among
Python writes of both streams, and among raw bytes of one fd, not between the two.
"""

import io
import itertools
import operator
import os
import sys
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TextIO

from rlm_protocol.limits import OUTPUT_EVENT_BYTES

from . import _clock, _frames, _protect
from ._cells import exact
from ._interrupt import Interrupter
from ._page import high_fd
from ._watch import Watch
from ._wire import Wire

cell_id: ContextVar[str | None] = ContextVar("rlm_cell", default=None)
_MAIN = threading.main_thread().ident
_sys = vars(sys)
_ORIGIN = operator.itemgetter(0, 1)
_SPAWNS = frozenset(
    ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")
)

_FLUSH_S = 0.1
_FLUSH_BURST_S = 16 * _FLUSH_S
"""Sixteen flushes in a row are shipped at once, then one each tenth of a second."""


def author() -> str | None:
    """Give the id of the request that the running code belongs to; None in other threads."""
    return cell_id.get() if get_ident() == _MAIN else None


class Outbox:
    """Text that was written and has not been shipped. Appending needs no lock: see `write`."""

    def __init__(self, wire: Wire, flusher: Watch) -> None:
        self._wire = wire
        self._flusher = flusher
        self.items: deque[tuple[str, str | None, str]] = deque()
        self._chars = 0
        self._flushed_until = 0.0  # each flush takes up its time, in advance if need be
        self._lock = threading.Lock()
        self._shipper = 0

    def __bool__(self) -> bool:
        return bool(self.items)

    def write(self, stream: str, text: str) -> None:
        """Take text. Ships, and so waits for the host, when an event's worth has come together."""
        owner = cell_id.get() if get_ident() == _MAIN else None
        self.items.append((stream, owner, text))  # one step: no other writer comes between
        self._chars += len(text)
        if self._chars >= OUTPUT_EVENT_BYTES:
            self.ship()
        elif not self._flusher.awake:
            self._flusher.wake()

    def flush(self) -> None:
        """
        Ship now: what comes next may hold the GIL for long, and the flusher then cannot.

        Left to the flusher all the same when flushes come thick, or when the host does not read.
        """
        now = _clock.monotonic()
        if self._flushed_until > now + _FLUSH_BURST_S:
            return
        if not self.items and not self._shipper:
            return  # else another thread has taken it, and may need the GIL to write it
        self._flushed_until = max(self._flushed_until, now) + _FLUSH_S
        if self._wire.takes_more():
            self.ship()

    def ship(self) -> None:
        """Write out everything that was taken."""
        if self._shipper == get_ident():
            return  # a finaliser printed while this thread was shipping: it is shipped next time
        with self._lock:
            self._shipper = get_ident()
            try:
                for frame in self._frames():
                    self._wire.put(frame)
            finally:
                self._shipper = 0

    def take(self) -> bytes:
        """Give the frames of everything that was taken, for the caller to write."""
        if not self.items:
            return b""
        if self._chars >= OUTPUT_EVENT_BYTES:
            self.ship()
            return b""
        with self._lock:
            self._shipper = get_ident()
            try:
                return b"".join(self._frames())
            finally:
                self._shipper = 0

    def _frames(self) -> Iterator[bytes]:
        self._chars = 0
        items = self.items
        taken = [items.popleft() for _ in range(len(items))]
        for (stream, owner), texts in itertools.groupby(taken, _ORIGIN):
            yield from _frames.output(stream, owner, "".join([text for _, _, text in texts]))


class Sink(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of the cells. Cannot be closed, detached or blocked for ever."""

    encoding = "utf-8"
    errors = "replace"
    line_buffering = True

    def __init__(self, name: str, fd: int, outbox: Outbox, interrupter: Interrupter) -> None:
        self.name = f"<{name}>"
        self._stream = name
        self._fd = fd
        self._outbox = outbox
        self._interrupter = interrupter
        self.forked = False
        self.buffer = _RawSink(self)

    def write(self, text: str) -> int:
        """Take text. An interrupt that comes meanwhile is raised on the way out, never inside."""
        if type(text) is not str:
            if not isinstance(text, str):
                raise TypeError(f"write() takes text, not {type(text).__name__}")
            text = exact(text)
        if self.forked:
            _write_all(self._fd, text.encode("utf-8", "replace"))
        elif text:
            self._outbox.write(self._stream, text)
            if self._interrupter.wanted is not None:
                self._interrupter.checkpoint(sys._getframe(1))
        return len(text)

    def flush(self) -> None:
        """Show what was written now, not only within 10 ms."""
        if not self.forked:
            self._outbox.flush()

    def close(self) -> None:
        """Do nothing: the next cell prints too."""

    def detach(self) -> Any:
        """Refuse, as a stream without a separate buffer does."""
        raise io.UnsupportedOperation("detach")

    def reconfigure(self, **_options: Any) -> None:
        """Accept what `io.TextIOWrapper` accepts; the stream stays UTF-8."""

    def writable(self) -> bool:
        """Tell that this stream takes text."""
        return True

    def fileno(self) -> int:
        """Give the captured fd: what is written to it appears as output too."""
        return self._fd

    def isatty(self) -> bool:
        """Tell that nobody types here."""
        return False

    def ship(self) -> None:
        """Ship before raw bytes go out, so that print-then-bytes keeps its order."""
        if not self.forked:
            self._outbox.ship()


class _RawSink(io.RawIOBase):
    """`sys.stdout.buffer`: bytes to the captured fd."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: Any) -> int:
        self._sink.ship()
        return _write_all(self._sink.fileno(), data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._sink.fileno()

    def close(self) -> None:
        """Do nothing, like the text stream above."""


def _write_all(fd: int, data: Any) -> int:
    view = memoryview(data).cast("B")
    size = len(view)
    while view:
        view = view[os.write(fd, view) :]
    return size


def _empty() -> TextIO:
    """Give the `sys.stdin` of cells: at its end from the start."""
    fd = high_fd(os.open(os.devnull, os.O_RDONLY))
    _protect.protect([fd])
    return open(fd, encoding="utf-8")


class Streams:
    """The two sinks, and `sys.std*`, which cells may close, rebind or lose."""

    def __init__(self, outbox: Outbox, interrupter: Interrupter) -> None:
        self.outbox = outbox
        self._interrupter = interrupter
        self.stdout = Sink("stdout", 1, outbox, interrupter)
        self.stderr = Sink("stderr", 2, outbox, interrupter)
        self._nothing = _empty()
        self._bound = {"stdin": self._nothing, "stdout": self.stdout, "stderr": self.stderr}
        self.install()
        vars(sys).update(__stdin__=self._nothing, __stdout__=self.stdout, __stderr__=self.stderr)
        _on_spawn(self._before_spawn)

    def install(self) -> None:
        """Bind `sys.stdin`, `sys.stdout` and `sys.stderr` (again)."""
        try:
            lost = self._nothing.closed
        except ValueError:  # of its buffer a cell has made another stream
            lost = True
        if lost:
            self._bound["stdin"] = self._nothing = _empty()
        _sys.update(self._bound)

    def after_fork(self) -> None:
        """Write straight to the fds: this process may not speak the protocol."""
        self.stdout.forked = self.stderr.forked = True

    def _before_spawn(self) -> None:
        if self.stdout.forked:
            return
        self.outbox.ship()  # what was printed before a child starts is shown before its output
        if get_ident() == _MAIN:
            self._interrupter.before_spawn()


def _on_spawn(hook: Callable[[], None]) -> None:
    """
    Have `hook` called before any other process is started, for good.

    Every cell has two audit events: a plain function costs a third of what a bound method does.
    """

    def audit(event: str, _args: object) -> None:
        if event in _SPAWNS:
            hook()

    sys.addaudithook(audit)
