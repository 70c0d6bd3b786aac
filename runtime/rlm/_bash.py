"""
`bash(command)`: a shell command beside the cells, with a live handle.

The command runs in its own session, its output is read by one thread for all commands, and it ends
with the kernel. An unobserved command that finishes tells the host once, by `bash.finished`; an
observation after that withdraws it, by `bash.observed` (seed: rlm-runtime, Background bash()).
"""

import asyncio
import os
import select
import signal
import subprocess
import threading
import uuid
from typing import Any, NamedTuple

from rlm_protocol.errors import HostLost
from rlm_protocol.limits import BASH_HEAD_BYTES, BASH_TAIL_BYTES

from . import _clock, _runtime
from ._capture import author

_READ_BYTES = 64 * 1024
_PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "CLICOLOR": "0", "PY_COLORS": "0", "GIT_PAGER": "cat"}


class BashResult(NamedTuple):
    """What awaiting a handle gives; `duration` in seconds, a negative code is a signal."""

    exit_code: int
    output: str
    duration: float


def bash(command: str) -> "BashHandle":
    """
    Start a shell command and give its handle at once.

    Own process group, stdin empty, stderr joined into stdout, no colours. `await` the handle for
    its end, or end the turn: the host is told when the command finishes.

    Raises:
        TypeError, ValueError: `command` is no non-empty string.
        OSError: the shell cannot be started. Nothing is left behind.
    """
    if not isinstance(command, str):
        raise TypeError(f"command must be a string, not {type(command).__name__}")
    if not command.strip():
        raise ValueError("command must not be empty")
    return BashHandle._start(command)


class _Output:
    """The first and the last bytes of a command's output, and how many lie between."""

    def __init__(self) -> None:
        self.head = bytearray()
        self._last = bytearray()
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        room = BASH_HEAD_BYTES - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self._last += data
        if len(self._last) > 2 * BASH_TAIL_BYTES:
            self._trim()

    def _trim(self) -> None:
        over = len(self._last) - BASH_TAIL_BYTES
        if over > 0:
            del self._last[:over]
            self.dropped_bytes += over

    def text(self) -> str:
        self._trim()
        if not self.dropped_bytes:
            return (self.head + self._last).decode("utf-8", "replace")
        note = f"\n[... {self.dropped_bytes} bytes dropped ...]\n"
        # A character that the cut has split is left out on either side, not shown as garbage.
        head = self.head.decode("utf-8", "ignore")
        return head + note + self._last.decode("utf-8", "ignore")


class BashHandle:
    """A command that was started by `bash`. Awaitable; see the methods."""

    def __init__(self, command: str, pid: int, handle_id: str) -> None:
        self.command = command
        self.pid = pid
        self.handle_id = handle_id
        self._output = _Output()
        self._exit_code: int | None = None
        self._duration_s = 0.0
        self._started = _clock.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._lock = threading.Lock()
        self._observed = False
        self._told = False
        self._kill_at: float | None = None

    @classmethod
    def _start(cls, command: str) -> "BashHandle":
        runtime = _runtime.current()
        process = subprocess.Popen(
            [_shell(), "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **_PLAIN},
            bufsize=0,
        )
        handle = cls(command, process.pid, uuid.uuid4().hex)
        handle._process = process
        _reader(runtime).add(handle)
        return handle

    @property
    def running(self) -> bool:
        """Whether the command still runs."""
        return self._exit_code is None

    def output(self) -> str:
        """Give the output so far; of a finished command it counts as an observation."""
        self._observe()
        with self._lock:
            return self._output.text()

    def tail(self, n: int = 50) -> str:
        """Give the last `n` lines of the output so far."""
        self._observe()
        with self._lock:
            lines = self._output.text().splitlines(keepends=True)
        return "".join(lines[-n:]) if n > 0 else ""

    def poll(self) -> int | None:
        """Give the exit code, or None while the command runs."""
        self._observe()
        return self._exit_code

    def kill(self, sig: int = signal.SIGTERM, grace: float = 5.0) -> None:
        """Send `sig` to the command's process group, and SIGKILL after `grace` seconds."""
        self._observed = True
        if self._exit_code is None:
            _signal_group(self.pid, sig)
            self._kill_at = _clock.monotonic() + grace
            _reader(_runtime.current()).wake()
        elif self._told:
            self._withdraw()

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> BashResult:
        if self._exit_code is None:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(ended)
            if self._exit_code is None:
                await ended
        self._observe()
        with self._lock:
            text = self._output.text()
        assert self._exit_code is not None
        return BashResult(self._exit_code, text, self._duration_s)

    def __repr__(self) -> str:
        state = "running" if self.running else f"exit_code={self._exit_code}"
        return f"BashHandle({self.command!r:.80}, pid={self.pid}, {state})"

    def __reduce__(self) -> Any:
        if self._exit_code is None:
            raise TypeError("a running command cannot be saved")
        with self._lock:
            text = self._output.text()
        return _revive, (self.command, self.pid, self.handle_id, self._exit_code, text)

    # --- what the reader and the loop do ----------------------------------------------------------

    def _observe(self) -> None:
        """Note that the running cell has looked; a detached task's look is not the model's."""
        if self._exit_code is None or self._observed:
            return
        runtime = _runtime.current()
        cell = author()
        if cell is not None and cell == runtime.targets.active:
            self._observed = True
            if self._told:
                self._withdraw()

    def _withdraw(self) -> None:
        self._told = False
        _notify("bash.observed", {"handle_id": self.handle_id})

    def _finish(self, exit_code: int) -> None:
        """Note the end. In the reader's thread; the loop's part follows by `_settle`."""
        self._duration_s = _clock.monotonic() - self._started
        self._exit_code = exit_code

    def _settle(self) -> None:
        """Wake who waits, and tell the host when the running cell, if any, does not look."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        runtime = _runtime.current()
        if runtime.targets.active is None:
            self._tell()
        else:
            _unsettled.append(self)

    def _tell(self) -> None:
        if self._observed:
            return
        self._told = True
        _notify(
            "bash.finished",
            {
                "handle_id": self.handle_id,
                "pid": self.pid,
                "exit_code": self._exit_code,
                "duration_ms": round(self._duration_s * 1000),
            },
        )


_unsettled: list[BashHandle] = []


def _after_cell() -> None:
    finished, _unsettled[:] = _unsettled[:], []
    for handle in finished:
        handle._tell()


def kill_all() -> None:
    """Kill every command that runs; nobody is told of their ends."""
    if _reading is not None:
        for handle in _reading.running():
            handle.kill(signal.SIGKILL)


def _notify(type_: str, payload: dict[str, Any]) -> None:
    try:
        _runtime.current().bridge.notify(type_, payload)
    except HostLost:
        return  # nobody is left to be told


def _revive(command: str, pid: int, handle_id: str, exit_code: int, text: str) -> BashHandle:
    handle = BashHandle(command, pid, handle_id)
    handle._output.add(text.encode())
    handle._exit_code = exit_code
    handle._observed = True
    return handle


def _shell() -> str:
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except OSError:
        return  # the group is gone


class _Reader:
    """
    Reads the output of all commands and sees them end, in one thread.

    The thread ends when there is no command left: a kernel at rest can be forked.
    """

    def __init__(self, runtime: _runtime.Runtime) -> None:
        self._runtime = runtime
        self._added: list[BashHandle] = []
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._pipes: dict[int, BashHandle] = {}
        self._ends: dict[int, BashHandle] = {}
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._starting = threading.Lock()
        self._started = False
        runtime.execution.after_cell(_after_cell)

    def add(self, handle: BashHandle) -> None:
        """Watch a command."""
        with self._starting:
            self._added.append(handle)
            if self._started:
                self.wake()
                return
            self._started = True
        threading.Thread(target=self._run, name="rlm-bash", daemon=True).start()

    def running(self) -> list[BashHandle]:
        """Give the commands that have not ended."""
        return [handle for handle in (*self._added, *self._ends.values()) if handle.running]

    def wake(self) -> None:
        """Have the thread look."""
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            return  # it has enough to read already

    def _run(self) -> None:
        while self._has_work():
            for fd, _ in self._poll.poll(self._patience_ms()):
                if fd == self._wake_read:
                    os.read(fd, 4096)
                elif fd in self._pipes:
                    self._read(fd)
                elif fd in self._ends:
                    self._end(fd)
            self._kill_overdue()

    def _has_work(self) -> bool:
        while self._added:
            self._register(self._added.pop())
        with self._starting:
            self._started = bool(self._pipes or self._ends or self._added)
            return self._started

    def _patience_ms(self) -> int | None:
        due = [h._kill_at for h in self._ends.values() if h._kill_at is not None]
        return None if not due else max(0, int((min(due) - _clock.monotonic()) * 1000) + 1)

    def _kill_overdue(self) -> None:
        for handle in self._ends.values():
            if handle._kill_at is not None and _clock.monotonic() >= handle._kill_at:
                handle._kill_at = None
                _signal_group(handle.pid, signal.SIGKILL)

    def _register(self, handle: BashHandle) -> None:
        process = handle._process
        assert process is not None
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        os.set_blocking(pipe, False)
        self._pipes[pipe] = handle
        self._poll.register(pipe, select.POLLIN)
        end = _end_fd(process)
        self._ends[end] = handle
        self._poll.register(end, select.POLLIN)

    def _read(self, fd: int) -> bool:
        """Read once. False when there is nothing now, or never again."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        handle = self._pipes[fd]
        if data:
            with handle._lock:
                handle._output.add(data)
            return True
        self._poll.unregister(fd)
        del self._pipes[fd]
        assert handle._process is not None
        assert handle._process.stdout is not None
        handle._process.stdout.close()
        return False

    def _end(self, fd: int) -> None:
        """Note a command's end: all that it has written is read first."""
        handle = self._ends.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        process = handle._process
        assert process is not None
        code = process.wait()
        pipe = next((fd for fd, owner in self._pipes.items() if owner is handle), None)
        while pipe is not None and self._read(pipe):
            pass
        handle._finish(code)
        self._runtime.loop.call_soon_threadsafe(handle._settle)


def _end_fd(process: "subprocess.Popen[bytes]") -> int:
    """Give a descriptor that becomes readable when the process ends."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    read_end, write_end = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(write_end)

    threading.Thread(target=wait, daemon=True).start()
    return read_end


_reading: _Reader | None = None


def _reader(runtime: _runtime.Runtime) -> _Reader:
    global _reading
    if _reading is None or _reading._runtime is not runtime:
        _reading = _Reader(runtime)
    return _reading
