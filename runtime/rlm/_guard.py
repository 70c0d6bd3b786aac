"""
The guard: the parent half of a kernel, which outlives it and leaves nothing of it behind.

It pumps fds 1 and 2 of the kernel (outside its GIL), watches the kernel's owner and the kernel by
pidfd, kills the whole tree when either ends, tells the host the exit status, and ends as the kernel
ended. It is a fork of the runtime taken before any slow import, so it costs no second interpreter.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import os
import select
import sys
import time
from collections.abc import Callable, Sequence

from . import _linux
from ._page import Page, high_fd

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import NoReturn

READ_BYTES = 64 * 1024
EOF_GRACE_S = 2.0
"""After the host closed our stdin, the kernel may take this long to end by itself."""
DRAIN_S = 1.0
"""After the kernel ended, its last captured bytes may take this long to leave."""
NAMES = (b"stdout", b"stderr")


class Channels:
    """What the kernel half gets: private fds and the page it shares with its guard."""

    def __init__(
        self,
        requests: int,
        events: int,
        captured: tuple[int, int],
        pipes: tuple[int, int],
        page: Page,
        guard_pid: int,
    ) -> None:
        self.requests, self.events = requests, events
        self.captured = captured
        """Read ends of the pipes behind fds 1 and 2, for FIONREAD."""
        self.pipes = pipes
        """Write ends; `capture` puts them on fds 1 and 2."""
        self.page = page
        self.guard_pid = guard_pid


def split(*, control: int | None, owner_fd: int | None, private: Sequence[int] = ()) -> Channels:
    """
    Fork. The child returns as the kernel; the parent becomes its guard and never returns.

    fds 0 and 1 are taken as the protocol's channels. In the kernel, fd 0 is the null device and fd
    1 goes where fd 2 goes until `capture` is called, so that nothing can precede `ready`.

    Args:
        control: a SOCK_SEQPACKET fd of the host, or None; the guard owns it.
        owner_fd: pidfd of the process whose end ends the kernel; None when there is none to be had.
        private: what the kernel alone keeps.
    """
    requests, events = high_fd(0, close=False), high_fd(1, close=False)
    _linux.widen_pipe(requests)
    _linux.widen_pipe(events)
    pipes = [os.pipe() for _ in NAMES]
    reads = (high_fd(pipes[0][0]), high_fd(pipes[1][0]))
    writes = (high_fd(pipes[0][1]), high_fd(pipes[1][1]))
    page = Page()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    _linux.become_subreaper()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # until the runtime's handler stands
        os.setsid()
        _linux.die_with_parent()
        if os.getppid() != me:
            os._exit(125)
        _linux.offer_to_oom_killer()
        _linux.drop_inspection()
        for fd in (control, owner_fd):
            if fd is not None:
                os.close(fd)
        os.dup2(2, 1)
        return Channels(requests, events, reads, writes, page, me)
    os.dup2(0, 1)
    for fd in (*writes, *private):
        os.close(fd)
    _Guard(pid, control, owner_fd, requests, _Pump(reads, events, page)).run()


def watch_parent() -> int | None:
    """Give a pidfd of the process that started this one, or None; ends when it is gone already."""
    owner = os.getppid()
    owner_fd = _linux.pidfd(owner)
    if os.getppid() != owner:
        os._exit(125)
    return owner_fd


def capture(channels: Channels) -> None:
    """Put the captured pipes on fds 1 and 2 of the kernel."""
    for number, fd in enumerate(channels.pipes, start=1):
        os.dup2(fd, number)


class _Pump:
    """Turn what arrives on the captured pipes into events. Runs in a thread of the guard."""

    def __init__(self, reads: tuple[int, int], events: int, page: Page) -> None:
        self._reads = dict(zip(reads, range(2), strict=True))
        self.events = events
        self._page = page
        self._frame: Callable[[bytes, str], bytes | bytearray] = _frame
        self._data = memoryview(bytearray(READ_BYTES + 3))  # a read, after what the last one left
        self._deaf = False  # the host's end is gone: read on, so that no cell blocks
        self._orphaned = False
        self._ended = _thread.allocate_lock()
        self._ended.acquire()

    def start(self) -> None:
        """Pump in a thread until every writer of both pipes has gone."""
        _thread.start_new_thread(self._run, ())

    def finish(self, seconds: float) -> None:
        """Wait for the last words, after the whole tree has ended. The host may not read them."""
        self._orphaned = True
        self._page.break_lock()
        self._ended.acquire(timeout=seconds)

    def _run(self) -> None:
        poller = select.poll()
        for fd in self._reads:
            poller.register(fd, select.POLLIN)
        open_ = len(self._reads)
        while open_:
            for fd, what in poller.poll():
                if what & select.POLLIN:
                    self._ship(fd)
                else:
                    poller.unregister(fd)
                    open_ -= 1
        self._ended.release()

    def _ship(self, fd: int) -> None:
        """Move one read of `fd` into the event stream."""
        stream = self._reads[fd]
        self._page.acquire()
        try:
            text, size = self._read(fd, stream)
            if text:
                head = b'{"event":"%b","id":%b,"text":' % (NAMES[stream], self._page.author())
                self._write(self._frame(head, text))
        finally:
            if not self._orphaned:
                self._page.release()
        if size == READ_BYTES and self._frame is _frame:
            self._frame = _fast_frame()

    def _read(self, fd: int, stream: int) -> tuple[str, int]:
        """Read once. Gives the whole characters; the page keeps what is not whole yet."""
        import _codecs

        data, rest = self._data, self._page.partial(stream)
        data[: len(rest)] = rest
        size = os.readv(fd, [data[len(rest) : len(rest) + READ_BYTES]])
        end = len(rest) + size
        text, used = _codecs.utf_8_decode(data[:end], "replace", False)
        if rest or used < end:
            self._page.set_partial(stream, bytes(data[used:end]))
        return text, size

    def _write(self, frame: bytes | bytearray) -> None:
        if self._orphaned:  # the kernel may have died in the middle of a frame: close it first
            frame = b"\n" + frame
        view = memoryview(frame)
        while view and not self._deaf:
            try:
                view = view[os.write(self.events, view) :]
            except OSError:
                self._deaf = True


def _frame(head: bytes, text: str) -> bytes | bytearray:
    """Close a frame, without importing anything: a quiet kernel's guard stays small."""
    import _json

    return head + _json.encode_basestring_ascii(text).encode("ascii") + b"}\n"


def _fast_frame() -> Callable[[bytes, str], bytes | bytearray]:
    """Give the same done faster; it is worth its import as soon as output comes in bulk."""
    from . import _codec

    _codec.load()
    import msgspec

    encode_into = msgspec.json.Encoder().encode_into
    buffer = bytearray()  # used again each time, so that its memory stays

    def frame(head: bytes, text: str) -> bytes | bytearray:
        buffer[: len(head)] = head
        encode_into(text, buffer, len(head))
        buffer.extend(b"}\n")
        return buffer if text.isascii() else escape_separators(bytes(buffer))

    return frame


def escape_separators(line: bytes) -> bytes:
    """Escape U+2028 and U+2029, where some hosts split lines. Exact: they stand in strings only."""
    # Most lines have none, and single bytes are found fifty times faster than three.
    if line.find(b"\xe2") < 0 or (line.find(b"\xa8") < 0 and line.find(b"\xa9") < 0):
        return line
    return line.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


class _Guard:
    """The watch. One poll loop; the only place of the tree that reaps and kills."""

    def __init__(
        self, kernel: int, control: int | None, owner_fd: int | None, requests: int, pump: _Pump
    ) -> None:
        self._kernel = kernel
        self._control = control
        self._owner_fd = owner_fd
        self._requests = requests
        self._pump = pump
        self._in_band = control is None and os.environ.get("RLM_CONTROL") == "in-band"
        self._code: int | None = None
        self._memory_bytes: int | None = None
        self._out_of_memory = False

    def run(self) -> "NoReturn":
        """Watch until the kernel, its owner or an order ends the tree; then end as it ended."""
        forced = True
        try:
            forced = self._watch()
        finally:
            _linux.kill_descendants(self._reap)
            if not forced:
                self._pump.finish(DRAIN_S)
            self._leave()

    def _watch(self) -> bool:
        """Return True when the end was forced, False when the kernel ended by itself."""
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
            _signal.signal(number, self._forward)
        _signal.signal(_signal.SIGCHLD, lambda *_: self._reap())
        woken = _wakeup()
        kernel_fd = _linux.pidfd(self._kernel)
        self._tell(b"pid %d" % self._kernel)
        self._pump.start()
        if self._in_band:
            from . import _inband

            ring = (self._requests, lambda: self._signal_kernel(_signal.SIGINT))
            _thread.start_new_thread(_inband.ring_for_unread, ring)
        self._limit_memory(os.environ.get("RLM_MEMORY_BYTES", ""))
        poller = select.poll()
        for fd in (self._owner_fd, kernel_fd, self._control, woken):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        poller.register(self._requests, select.POLLRDHUP if hasattr(select, "POLLRDHUP") else 0)
        blind = kernel_fd is None
        deadline: float | None = None
        owner = os.getppid()
        while True:
            events = dict(poller.poll(_wait_ms(deadline, blind=blind)))
            if woken in events:
                os.read(woken, READ_BYTES)
            self._reap()
            if self._code is not None:
                return False
            if self._owner_fd in events or (blind and os.getppid() != owner):
                return True
            if self._control in events and self._order():
                return True
            if self._requests in events:
                poller.unregister(self._requests)
                deadline = time.monotonic() + EOF_GRACE_S
            if deadline is not None and time.monotonic() >= deadline:
                return True

    def _order(self) -> bool:
        """Carry out one order of the host. Returns True when the tree must end."""
        assert self._control is not None
        try:
            order = os.read(self._control, 64)
        except OSError:
            order = b""
        if order == b"int":
            self._signal_kernel(_signal.SIGINT)
        elif order == b"term":
            self._signal_kernel(_signal.SIGTERM)
        elif order.startswith(b"memory "):
            self._limit_memory(order[7:].decode("ascii", "replace"))
        return order in (b"kill", b"")  # an empty read: the host's end is gone

    def _limit_memory(self, text: str) -> None:
        """Watch what the tree holds. The host says the limit too: a fork of a template needs it."""
        if not text.isdecimal() or self._memory_bytes is not None:
            return
        from . import _limits

        self._memory_bytes = int(text)
        _thread.start_new_thread(_limits.watch, (self._memory_bytes, self._too_much))

    def _too_much(self) -> None:
        self._out_of_memory = True
        self._signal_kernel(_signal.SIGKILL)

    def _forward(self, number: int, _frame: object) -> None:
        if number != _signal.SIGHUP:
            self._signal_kernel(number)

    def _signal_kernel(self, number: int) -> None:
        if self._code is None:  # not reaped: the pid is still the kernel's
            os.kill(self._kernel, number)

    def _reap(self) -> bool:
        """Reap everything that ended. Returns True while there is any child."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._kernel:
                self._code = os.waitstatus_to_exitcode(status)

    def _tell(self, datagram: bytes) -> None:
        if self._control is not None:
            try:
                os.write(self._control, datagram)
            except OSError:
                return  # the host is gone; the owner's pidfd or EOF says the same

    def _leave(self) -> "NoReturn":
        code = self._code if self._code is not None else -_signal.SIGKILL
        if self._out_of_memory:
            self._tell(b"oom")
        self._tell(b"exit %d" % code)
        if self._in_band:
            from . import _inband

            _inband.say_exit(self._pump.events, code, out_of_memory=self._out_of_memory)
        if code < 0:
            _linux.end_by_signal(-code)
        os._exit(code)


def _wakeup() -> int:
    """
    Give a descriptor that each signal makes readable.

    A signal that comes after Python has last looked for one and before `poll` sleeps interrupts
    nothing: without this its handler would wait for the next event, a SIGTERM perhaps for ever.
    """
    read_end, write_end = map(high_fd, os.pipe())
    for fd in (read_end, write_end):
        os.set_blocking(fd, False)
    _signal.set_wakeup_fd(write_end)
    return read_end


def _wait_ms(deadline: float | None, *, blind: bool) -> int | None:
    waits = [] if deadline is None else [max(0.0, deadline - time.monotonic())]
    if blind:
        waits.append(0.25)  # no pidfd here: look instead of being told
    return None if not waits else int(min(waits) * 1000) + 1


def control_from_environment() -> int | None:
    """Take the host's control fd out of the environment (`RLM_GUARD_FD`)."""
    text = os.environ.pop("RLM_GUARD_FD", None)
    if text is None:
        return None
    try:
        fd = int(text)
        if not _is_socket(fd):  # a launcher that closes what it inherits may open others
            raise ValueError
    except (ValueError, OSError):
        sys.stderr.write(f"rlm: RLM_GUARD_FD={text!r} is no open socket; it is ignored.\n")
        return None
    os.set_inheritable(fd, False)
    return fd


def _is_socket(fd: int) -> bool:
    import _stat

    return bool(_stat.S_ISSOCK(os.fstat(fd).st_mode))
