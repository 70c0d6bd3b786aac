"""Run promises against a runtime: a process, its pipes, and the rules that every line must keep."""

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..limits import KERNEL_FRAME_BYTES
from .vectors import Broken, Event, Language, Promise, Step, check_exchange, fits, line_bytes

_GENTLE_S = 3.0
_SETTLE_S = 0.1
_decode = msgspec.json.Decoder().decode


class Peer:
    """One runtime process. Every line it writes is checked as it arrives."""

    def __init__(self, command: Sequence[str], patience_s: float) -> None:
        self._patience_s = patience_s
        self._buffer = bytearray()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._open: set[str] = set()
        self._closed: set[str] = set()
        self._readies = 0
        self._kept: list[Event] = []

    def meet(self) -> None:
        """Take the first line. Raises Broken when it is no ready."""
        ready = self.read()
        if ready["event"] != "ready" or not isinstance(ready.get("protocol"), int):
            raise Broken(f"the first line is no ready with a protocol: {ready}")

    def send(self, data: bytes) -> None:
        """Write bytes, reading meanwhile so that two full pipes cannot wait for each other."""
        view = memoryview(data)
        fd = self._in.fileno()
        os.set_blocking(fd, False)
        while view:
            readable, writable, _ = select.select([self._out], [fd], [], self._patience_s)
            if not readable and not writable:
                raise Broken("the runtime does not read its stdin")
            if readable:
                self._fill()
            if writable:
                try:
                    view = view[os.write(fd, view[:65536]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    raise Broken("the runtime has closed its stdin") from None

    def opened(self, id_: str) -> None:
        """Note a request that must be answered."""
        self._open.add(id_)
        self._closed.discard(id_)

    def next(self) -> Event:
        """Give the next event: one that was put back first."""
        return self._kept.pop(0) if self._kept else self.read()

    def put_back(self, events: list[Event]) -> None:
        """Give events again later: they belong to another request."""
        self._kept = events + self._kept

    def read(self, patience_s: float | None = None) -> Event:
        """Read one event. Raises Broken for a bad line, a late one, or the end."""
        patience_s = self._patience_s if patience_s is None else patience_s
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise TimeoutError(f"no event within {patience_s:g} s")
            if not self._fill():
                raise Broken(f"the runtime ended: {self._process.wait(self._patience_s)}")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return self._checked(line)

    def _fill(self) -> bool:
        data = os.read(self._out.fileno(), 1 << 20)
        self._buffer += data
        return bool(data)

    def _checked(self, line: bytes) -> Event:
        if len(line) >= KERNEL_FRAME_BYTES:
            raise Broken(f"a frame of {len(line)} bytes, over {KERNEL_FRAME_BYTES}")
        if "\u2028".encode() in line or "\u2029".encode() in line:
            raise Broken("a raw line separator inside a frame")
        try:
            event = _decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError) as why:
            raise Broken(f"a line that is no JSON ({why}): {line[:80]!r}") from None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise Broken(f"a line that is no event: {line[:80]!r}")
        self._check_books(event)
        return event

    def _check_books(self, event: Event) -> None:
        kind, id_ = event["event"], event.get("id")
        self._readies += kind == "ready"
        if self._readies > 1:
            raise Broken("a second ready")
        if kind in ("result", "error", "done") and id_ is not None and id_ not in self._open:
            what = "after its done" if id_ in self._closed else "for no request"
            raise Broken(f"a {kind} {what}: {id_!r}")
        if kind == "done" and isinstance(id_, str):
            self._open.discard(id_)
            self._closed.add(id_)

    @property
    def running(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def end_input(self) -> None:
        """Close the runtime's stdin."""
        self._in.close()

    def wait(self) -> int:
        """Wait for the end, reading what is still said."""
        deadline = time.monotonic() + self._patience_s
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline:
                raise Broken("the runtime does not end")
            if select.select([self._out], [], [], 0.05)[0]:
                self._fill()
        return code

    def close(self) -> None:
        """End the process; gently at first, so that it can end what it has started."""
        self._process.terminate()
        try:
            self._process.wait(_GENTLE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._in, self._out):
            stream.close()


class Trial:
    """One promise, tried on a runtime of its own."""

    def __init__(
        self, command: Sequence[str], words: Language, folder: str, patience_s: float
    ) -> None:
        self._command = command
        self._words = words
        self._folder = folder
        self._patience_s = patience_s
        self._peer = Peer(command, patience_s)
        self._held: dict[str, str] = {}

    def begin(self) -> None:
        """Meet the runtime. Raises Broken or TimeoutError."""
        self._peer.meet()

    def close(self) -> None:
        """End the runtime."""
        self._peer.close()

    def settle(self) -> None:
        """Read what still comes for a moment: the rules of every line hold for it, too."""
        while self._peer.running:
            try:
                self._peer.read(_SETTLE_S)
            except TimeoutError:
                return

    def take(self, step: Step) -> None:
        """Take one step. Raises Broken or TimeoutError."""
        if step.send is not None:
            self._peer.send(b"".join(self._line(message) for message in step.send))
        elif step.raw is not None:
            self._peer.send(line_bytes(step.raw) + b"\n")
        elif step.event is not None:
            self._await(step.event)
        elif step.finish is not None:
            self._finish(step.finish, step)
        elif step.ask is not None:
            self._asked(step)
        elif step.release is not None:
            self._reply(self._held.pop(step.release), step)
        elif step.silence_ms is not None:
            self._silence(step.silence_ms / 1000)
        elif step.close_stdin:
            self._peer.end_input()
        elif step.restart:
            self._peer.close()
            self._peer = Peer(self._command, self._patience_s)
            self._peer.meet()
        elif step.exit is not None:
            code = self._peer.wait()
            if code != step.exit:
                raise Broken(f"exit code {code}, not {step.exit}")
        elif step.file is not None:
            with open(os.path.join(self._folder, step.file), "w", encoding="utf-8") as file:
                file.write(step.text)

    def _line(self, message: dict[str, Any]) -> bytes:
        message = {
            key: value.replace("{dir}", self._folder) if isinstance(value, str) else value
            for key, value in message.items()
        }
        if "snippet" in message:
            message["code"] = self._words.snippets[message.pop("snippet")]
        if message["type"] not in ("interrupt", "host_reply") and "id" in message:
            self._peer.opened(message["id"])
        return msgspec.json.encode(message) + b"\n"

    def _await(self, pattern: dict[str, Any]) -> None:
        others: list[Event] = []
        while not fits(event := self._peer.next(), pattern):
            others.append(event)
        self._peer.put_back(others)

    def _finish(self, id_: str, step: Step) -> None:
        got: list[Event] = []
        while True:
            got.append(self._peer.next())
            if got[-1]["event"] == "done" and got[-1].get("id") == id_:
                break
        check_exchange(id_, got, step, self._words)
        foreign = [e for e in got if e["event"] == "error" and e.get("id") is None]
        if foreign:
            raise Broken(f"an error that belongs to nobody: {foreign[0]}")

    def _asked(self, step: Step) -> None:
        while (event := self._peer.next())["event"] != "host_request":
            continue
        data = event.get("data")
        if not isinstance(data, dict) or data.get("type") != step.ask:
            raise Broken(f"a host_request of another type: {data}")
        if step.payload is not None and data.get("payload") != step.payload:
            raise Broken(f"the payload changed on its way: {data.get('payload')}")
        if step.hold is not None:
            self._held[step.hold] = event["id"]
        else:
            self._reply(event["id"], step)

    def _reply(self, id_: str, step: Step) -> None:
        self._peer.send(self._line({"type": "host_reply", "id": id_, "data": step.reply}))

    def _silence(self, seconds: float) -> None:
        try:
            event = self._peer.read(seconds)
        except TimeoutError:
            return
        raise Broken(f"an event that nobody asked for: {event}")


class Outcome(msgspec.Struct, frozen=True):
    """What became of one promise: passed, failed (with the reason), not supported."""

    promise: Promise
    verdict: str
    reason: str = ""


def run(
    promise: Promise, command: Sequence[str], words: Language, *, patience_s: float = 20.0
) -> Outcome:
    """Try one promise on a fresh process, which is ended afterwards."""
    missing = promise.snippets() - words.snippets.keys()
    if missing:
        return Outcome(promise, "not supported", f"no snippet {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory(prefix="rlm-conformance-") as folder:
        trial = None
        try:
            trial = Trial(command, words, folder, patience_s)
            trial.begin()
            for step in promise.steps:
                trial.take(step)
            trial.settle()
        except (Broken, TimeoutError, OSError) as why:
            return Outcome(promise, "failed", str(why))
        finally:
            if trial is not None:
                trial.close()
    return Outcome(promise, "passed")
