"""A host for tests: starts `python -P -m rlm.repl`, speaks its protocol, leaves nothing behind."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0
COMMAND = (sys.executable, "-P", "-m", "rlm.repl")
TAG = "RLM_TEST_TAG"


class Ended(AssertionError):
    """The runtime ended while an event was awaited."""


class Exchange(list[dict[str, Any]]):
    """The events of one request, in order."""

    def text(self, stream: str = "stdout", author: object = ...) -> str:
        return "".join(e["text"] for e in self if e["event"] == stream and author in (..., e["id"]))

    @property
    def done(self) -> dict[str, Any]:
        return self[-1]

    @property
    def status(self) -> str:
        return str(self.done["status"])

    @property
    def result(self) -> str | None:
        return next((e["text"] for e in self if e["event"] == "result"), None)

    @property
    def error(self) -> dict[str, Any] | None:
        return next((e for e in self if e["event"] == "error" and e["id"] is not None), None)

    @property
    def ename(self) -> str | None:
        return None if self.error is None else str(self.error["ename"])


class Runtime:
    """One kernel with its guard. A context manager: leaving it ends the tree."""

    def __init__(
        self,
        *,
        env: dict[str, str] | None = None,
        doorbell: bool = True,
        control: bool = True,
        command: tuple[str, ...] = COMMAND,
        cwd: Path | None = None,
        wait_ready: bool = True,
    ) -> None:
        self.tag = uuid.uuid4().hex
        self.strays: list[dict[str, Any]] = []
        self._buffer = bytearray()
        self._count = 0
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        marks = {TAG: self.tag}
        if doorbell:
            marks["RLM_SIGINT"] = "doorbell"
        if control:
            marks["RLM_GUARD_FD"] = str(theirs.fileno())
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env={**os.environ, **marks, **(env or {})},
            pass_fds=[theirs.fileno()] if control else [],
            start_new_session=True,
        )
        theirs.close()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.ready: dict[str, Any] = {}
        if wait_ready:
            self.ready = self.event()
            assert self.ready["event"] == "ready", self.ready

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The kernel's pid."""
        return int(self.ready["pid"])

    # --- the wire ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._in, view) :]

    def send(self, *messages: dict[str, Any]) -> None:
        """Send messages in one write."""
        self.write(b"".join(json.dumps(m).encode() + b"\n" for m in messages))

    def event(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Give the next event. Raises Ended at the end of the stream, TimeoutError too late."""
        deadline = time.monotonic() + patience_s
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise TimeoutError(f"no event within {patience_s} s")
            data = os.read(self._out, 1 << 20)
            if not data:
                raise Ended(f"the runtime ended: {self.process.wait(PATIENCE_S)}")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return self.event(patience_s) if not line else strict(line)

    def until(self, met: Callable[[dict[str, Any]], bool]) -> Exchange:
        """Collect events up to the first that fits."""
        got = Exchange()
        while True:
            got.append(self.event())
            if met(got[-1]):
                return got

    def until_done(self, id_: str) -> Exchange:
        return self.until(lambda e: e["event"] == "done" and e["id"] == id_)

    def silence(self, seconds: float) -> list[dict[str, Any]]:
        """Collect what comes within a short time."""
        got = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                got.append(self.event(left))
            except TimeoutError:
                break
        return got

    # --- requests ---------------------------------------------------------------------------------

    def new_id(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def start(self, code: str, **more: Any) -> str:
        """Send a cell; give its id."""
        id_ = str(more.pop("id", None) or self.new_id())
        self.send({"type": "execute", "id": id_, "code": code, **more})
        return id_

    def run(self, code: str, **more: Any) -> Exchange:
        """Run a cell to its end."""
        return self.until_done(self.start(code, **more))

    def ask(self, type_: str, **fields: Any) -> Exchange:
        """Send a request and collect its events."""
        id_ = self.new_id()
        self.send({"type": type_, "id": id_, **fields})
        return self.until_done(id_)

    def value(self, code: str) -> Any:
        """Run a cell whose result is a literal; give its value."""
        import ast

        got = self.run(code)
        assert got.status == "ok", got
        return None if got.result is None else ast.literal_eval(got.result)

    def started(self, code: str) -> str:
        """Start a cell that prints `go` when it is under way; wait for that."""
        id_ = self.start(code)
        seen = ""
        while "go" not in seen:
            seen += self.until(lambda e: e["event"] == "stdout" and e["id"] == id_).text()
        return id_

    def interrupt(self, id_: str | None = None, *, ring: bool = True) -> None:
        """Interrupt in-band, and ring the doorbell as our host does."""
        self.send({"type": "interrupt"} if id_ is None else {"type": "interrupt", "id": id_})
        if ring:
            self.ring()

    def ring(self) -> None:
        self._link.send(b"int")

    def order(self, datagram: bytes) -> None:
        self._link.send(datagram)

    def told(self) -> bytes:
        """Give the guard's next datagram."""
        assert select.select([self._link], [], [], PATIENCE_S)[0], "the guard says nothing"
        return self._link.recv(64)

    def alive(self) -> bool:
        return self.run("1+1").result == "2"

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def processes(self) -> list[int]:
        """Give every living process of this tree, however it has hidden."""
        return processes_of(self.tag)

    def close(self) -> None:
        """End the tree and see that nothing is left."""
        try:
            self._link.send(b"kill")
        except OSError:
            self.process.kill()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self._link.close()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
        left = gone_within(self.tag, 5.0)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"processes are left: {left}"


def strict(line: bytes) -> dict[str, Any]:
    """Read one event as a strict JSON reader does."""
    event = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    assert isinstance(event, dict)
    assert len(line) < 1024 * 1024
    return event


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def processes_of(tag: str) -> list[int]:
    """Find living processes by tag: in their environment, or in their arguments."""
    needle = tag.encode()
    return [pid for pid in living() if needle in _read(pid, "environ") + _read(pid, "cmdline")]


def living() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            stat = _read(int(entry), "stat")
            if stat and stat[stat.rindex(b")") + 2 :][:1] not in (b"Z", b"X"):
                yield int(entry)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def gone_within(tag: str, seconds: float) -> list[int]:
    """Wait until no process with this tag lives; give those that still do."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(tag)) and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    return left


def eventually(met: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait until something holds; give its value."""
    deadline = time.monotonic() + patience_s
    while not (value := met()):
        assert time.monotonic() < deadline, f"{what} did not come to be"
        select.select([], [], [], 0.005)
    return value
