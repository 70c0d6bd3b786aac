"""One command under test: its process, its three pipes, and the certainty that it ends."""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .promise import Broken

CHUNK_BYTES = 256 * 1024
STDERR_TAIL_BYTES = 8 * 1024
START_S = 30.0
"""A process that has written nothing yet may still be starting: it is given this long."""
_TURN_MS = 5
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Child:
    """
    Owns one command for the length of a `with` block.

    The three pipes are pumped together and never waited for longer than said, so that neither side
    can block the other for good. Leaving the block ends the process: end of stdin, `grace_s`
    seconds, SIGTERM, one second, SIGKILL to its process group.
    """

    def __init__(
        self,
        argv: Sequence[str],
        on_data: Callable[[bytes], None],
        *,
        env: Mapping[str, str] | None = None,
        grace_s: float = 3.0,
    ) -> None:
        """
        Start the command; `on_data` gets what it writes to stdout, in order.

        Raises:
            Broken: it cannot be started.
        """
        self._on_data = on_data
        self._grace_s = grace_s
        self._outbox = bytearray()
        self._closing = False
        self._stderr = bytearray()
        self.reading = True
        self.ended = False
        self._silent, self._started_s = True, time.monotonic()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        except OSError as why:
            raise Broken(f"the command cannot be started: {why}") from None
        self._pipes = {
            pipe.fileno(): pipe
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
            if pipe is not None
        }
        self._in, self._out, self._err = self._pipes
        self._open = set(self._pipes)
        for fd in self._open:
            os.set_blocking(fd, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Process id of the command, not of what it may start."""
        return self._process.pid

    @property
    def unread_bytes(self) -> int:
        """Bytes that the command has not read yet."""
        waiting = bytearray(4)
        with contextlib.suppress(OSError):
            if self._in in self._open:
                fcntl.ioctl(self._in, termios.FIONREAD, waiting)
        return len(self._outbox) + int.from_bytes(waiting, sys.byteorder)

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def stderr_tail(self) -> str:
        """Give the last of what it wrote to stderr."""
        return self._stderr.decode("utf-8", "replace")

    def write(self, data: bytes) -> None:
        """Queue bytes for stdin; `pump` sends them. Lost when the command has closed it."""
        if self._in in self._open:
            self._outbox += data

    def close_stdin(self) -> None:
        """Close stdin once everything queued is sent."""
        self._closing = True
        self._turn(0)

    def close_stdout(self) -> None:
        """Close our end of its stdout: its next write fails."""
        self._close(self._out)

    def signal(self, number: int) -> None:
        """Send a signal to the command's own process."""
        self._process.send_signal(number)

    def pump(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """
        Move bytes until the condition holds, the output ends or the time is over; give it.

        A process that has not written anything yet is given `START_S` from its start.
        """
        deadline = time.monotonic() + timeout_s
        if self._silent and self.reading and timeout_s:
            deadline = max(deadline, self._started_s + START_S)
        while not until():
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0 or self.ended:
                return until()
            self._turn(min(left_ms, _TURN_MS))
        return True

    def wait(self, timeout_s: float) -> int | None:
        """Move bytes until the process has ended; give its exit code, None when it lives on."""
        deadline = time.monotonic() + timeout_s
        while self.returncode is None and (left := deadline - time.monotonic()) > 0:
            self._turn(min(left * 1000, 10))
        if self.returncode is not None:
            self.pump(lambda: self.ended, 0.5)
        return self.returncode

    def end(self) -> None:
        """End the process and everything in its group; a second call does nothing."""
        self._outbox.clear()
        self._close(self._in)
        self.reading = True
        if self.wait(self._grace_s) is None:
            self._process.terminate()
            self.wait(1.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for fd in tuple(self._open):
            self._close(fd)

    def _turn(self, wait_ms: float) -> None:
        """Move what can be moved within `wait_ms`."""
        poll = select.poll()
        if self._out in self._open and self.reading:
            poll.register(self._out, select.POLLIN)
        if self._err in self._open:
            poll.register(self._err, select.POLLIN)
        if self._in in self._open and self._outbox:
            poll.register(self._in, select.POLLOUT)
        for fd, _ in poll.poll(wait_ms):
            if fd == self._in:
                self._send()
            else:
                self._receive(fd)
        if self._closing and not self._outbox:
            self._close(self._in)

    def _send(self) -> None:
        try:
            sent = os.write(self._in, memoryview(self._outbox)[:CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:  # it no longer reads
            self._outbox.clear()
            self._close(self._in)
        else:
            del self._outbox[:sent]

    def _receive(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close(fd)
        elif fd == self._out:
            self._silent = False
            self._on_data(data)
        else:
            self._stderr += data
            del self._stderr[:-STDERR_TAIL_BYTES]

    def _close(self, fd: int) -> None:
        if fd not in self._open:
            return
        self._open.remove(fd)
        self.ended = self.ended or fd == self._out
        self._pipes[fd].close()


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Look at a condition of the machine until it holds or the time is over; give it."""
    deadline, clock = time.monotonic() + timeout_s, select.poll()
    while not (held := condition()) and time.monotonic() < deadline:
        clock.poll(_TURN_MS)
    return held


def children() -> set[int]:
    """Give the living children of this process, adopted ones too; empty where /proc is missing."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(entry.parent.name))
    return found


@contextlib.contextmanager
def no_orphans() -> Iterator[bool]:
    """
    Adopt what commands leave behind, and end it when the block is left.

    Gives whether this machine can (Linux). Use it in a program with one thread: every child that
    was not there before the block is taken for a leftover.
    """
    if sys.platform != "linux":
        yield False
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before, was = children(), ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    able = prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield able
    finally:
        end_processes(lambda: children() - before)
        prctl(_PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


def end_processes(list_them: Callable[[], set[int]]) -> None:
    """Kill our children until none is listed: killing a parent hands its children to us."""
    for _ in range(100):
        pids = list_them()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
