"""What the host's benchmarks share: one process on frames of JSON-RPC, asked without an event loop."""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import runtime_bench as b

HOST = (b.PYTHON, "-P", "-m", "rlm_host")
ECHO = (b.PYTHON, str(b.HERE / "host_echo.py"))
FLOOR = (b.PYTHON, "-P", str(b.HERE / "host_floor.py"))
PEER = (b.PYTHON, "-P", str(b.HERE / "host_peer.py"))
INITIALIZE = {"processId": None, "rootUri": None, "capabilities": {"experimental": {"rlm": {}}}}
WINDOW = 100
"""Pipelined requests in flight: no pipe is ever full on both sides."""


class Framed:
    """A process that speaks JSON-RPC behind Content-Length headers. It must end by itself."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RLM_HOME": str(home), "RLM_KERNEL_PYTHON": sys.executable},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self._ids = itertools.count(1)
        self.heard: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with contextlib.suppress(OSError, EOFError):
            if kind is None:
                self.ask("shutdown", None)
                self.tell("exit", None)
        self.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.stdout.close()

    def initialize(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask("initialize", INITIALIZE)
        self.tell("initialized", {})
        return answer

    def tell(self, method: str, params: object) -> None:
        self._write([_frame({"jsonrpc": "2.0", "method": method, "params": params})])

    def start(self, method: str, params: object, count: int = 1) -> list[int]:
        """Send so many requests at once; give their ids."""
        ids = [next(self._ids) for _ in range(count)]
        ask = {"jsonrpc": "2.0", "method": method, "params": params}
        self._write([_frame({**ask, "id": id_}) for id_ in ids])
        return ids

    def message(self) -> dict[str, Any]:
        size = 0
        while line := self.stdout.readline().rstrip():
            if line.lower().startswith(b"content-length:"):
                size = int(line[15:])
        if not size:
            raise EOFError("the process ended")
        message: dict[str, Any] = b.decode(self.stdout.read(size))
        return message

    def ask(self, method: str, params: object) -> Any:
        """Ask and give the result; what is heard before it lies in `heard`."""
        [id_] = self.start(method, params)
        while (message := self.message()).get("id") != id_ or "method" in message:
            self.heard.append(message)
        assert "error" not in message, message
        return message["result"]

    def wait(self, method: str) -> dict[str, Any]:
        """Give the params of the next notification of this method."""
        while True:
            message = self.heard.pop(0) if self.heard else self.message()
            if message.get("method") == method:
                params: dict[str, Any] = message["params"]
                return params

    def round_trip(self, method: str, params: object, count: int) -> float:
        """Give the seconds of one request when one follows the other."""
        began = b.now()
        for _ in range(count):
            self.ask(method, params)
        return (b.now() - began) / count

    def pipelined(self, method: str, params: object, count: int) -> float:
        """Give the seconds of one request with WINDOW of them in flight."""
        began = b.now()
        for _ in range(count // WINDOW):
            waiting = set(self.start(method, params, WINDOW))
            while waiting:
                message = self.message()
                assert "error" not in message, message
                waiting.discard(message["id"])
        return (b.now() - began) / count

    def _write(self, frames: list[bytes]) -> None:
        self.stdin.write(b"".join(frames))
        self.stdin.flush()


def _frame(message: dict[str, Any]) -> bytes:
    body = b.encode(message)
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A home on the disk that the benchmark lies on: memory would make a sync free."""
    with tempfile.TemporaryDirectory(dir=b.HERE) as folder:
        yield Path(folder)
