"""Drives a host by bytes: every message of it is checked, every wait has a deadline."""

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rlm_protocol.framing import encode_headers

Message = dict[str, Any]
READ_BYTES = 1 << 16


class Broken(Exception):
    """The host broke a promise; the text says how."""


def frame(message: object) -> bytes:
    """Frame a message as a client does."""
    return encode_headers(json.dumps(message).encode())


def request(id_: object, method: str, params: object = ...) -> Message:
    """Give a request; without `params` it has none."""
    message: Message = {"jsonrpc": "2.0", "id": id_, "method": method}
    return message if params is ... else {**message, "params": params}


def notification(method: str, params: object = ...) -> Message:
    """Give a notification."""
    message = request(None, method, params)
    del message["id"]
    return message


INITIALIZE: Message = {"processId": None, "rootUri": None, "capabilities": {}}


class Host:
    """
    Owns one host process for the length of its `with` block.

    Every message of the host is checked as it comes in: strict header, strict JSON, no second
    answer to an id, no answer to an id that was not asked.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        deadline_s: float,
        home: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.deadline_s = deadline_s
        self.home = home
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "RLM_HOME": str(home), **(env or {})},
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        self._buffer = bytearray()
        self._ended = False
        self._ids = itertools.count(1_000_000)
        self._asked: Counter[str] = Counter()
        self._answers: dict[str, Message] = {}
        self.notes: list[Message] = []
        """Notifications in order of arrival."""
        self.requests: list[Message] = []
        """Requests of the host in order of arrival."""
        self.order: list[Message] = []
        """Everything in order of arrival."""

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            self.stdin.close()
        self.stdout.close()
        self._stderr.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    # --- saying -----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """
        Send bytes, and hear what the host says meanwhile.

        A host that has gone away is found out by what is awaited next.
        """
        end = time.monotonic() + self.deadline_s
        view = memoryview(data)
        try:
            while view:
                self._hear()
                if _writable(self.stdin, end):
                    view = view[os.write(self.stdin.fileno(), view[: select.PIPE_BUF]) :]
                elif time.monotonic() > end:
                    raise Broken(f"it does not read: {len(view)} bytes are left")
        except BrokenPipeError:
            return

    def say(self, *messages: Message) -> None:
        """Send messages in one write."""
        for message in messages:
            if "method" in message and "id" in message:
                self.expect_answer_to(message["id"])
        self.write(b"".join(frame(message) for message in messages))

    def expect_answer_to(self, *ids: object) -> None:
        """Wait for one more answer to each of these ids, which were asked for by raw bytes."""
        for id_ in ids:
            self._asked[_key(id_)] += 1
            self._answers.pop(_key(id_), None)

    def ask(self, method: str, params: object = ...) -> Message:
        """Send a request under a fresh id and give its answer."""
        id_ = next(self._ids)
        self.say(request(id_, method, params))
        return self.answer(id_)

    def result(self, method: str, params: object = ...) -> Any:
        """Send a request that must succeed and give its result."""
        answer = self.ask(method, params)
        if "result" not in answer:
            raise Broken(f"{method} was refused: {answer.get('error')}")
        return answer["result"]

    def initialize(self, params: object = INITIALIZE) -> Any:
        """Shake hands; give the result."""
        result = self.result("initialize", params)
        self.say(notification("initialized", {}))
        return result

    # --- hearing ----------------------------------------------------------------------------------

    def answer(self, id_: object, deadline_s: float | None = None) -> Message:
        """Wait for the answer to `id_`."""
        key = _key(id_)
        end = time.monotonic() + (deadline_s or self.deadline_s)
        while key not in self._answers:
            if not self._receive(end):
                raise Broken(f"no answer to id {id_!r} within {deadline_s or self.deadline_s} s")
        return self._answers[key]

    def either(self, *ids: object) -> Message:
        """Wait for an answer to one of these ids."""
        end = time.monotonic() + self.deadline_s
        while not any(self.has_answer(id_) for id_ in ids):
            if not self._receive(end):
                raise Broken(f"no answer to any of {ids!r} within {self.deadline_s} s")
        return next(self._answers[_key(id_)] for id_ in ids if self.has_answer(id_))

    def has_answer(self, id_: object) -> bool:
        """Tell whether an answer to `id_` has been heard."""
        return _key(id_) in self._answers

    def refusal(self, id_: object, code: int) -> Message:
        """Wait for the answer to `id_`, which must be this error; give its error object."""
        answer = self.answer(id_)
        error = answer.get("error")
        if not isinstance(error, dict) or error.get("code") != code:
            raise Broken(f"expected error {code}, got {json.dumps(answer)[:300]}")
        return error

    def note(self, method: str, start: int = 0) -> Message:
        """Wait for a notification of this name, from the `start`-th notification on."""
        end = time.monotonic() + self.deadline_s
        while True:
            for message in self.notes[start:]:
                if message["method"] == method:
                    return message
            start = len(self.notes)
            if not self._receive(end):
                raise Broken(f"no {method} within {self.deadline_s} s")

    def alive(self) -> None:
        """Prove by a round trip that the connection works."""
        self.result("host/status")

    def wait(self) -> int:
        """Wait for its end without reading; give the exit code."""
        try:
            return self._process.wait(self.deadline_s)
        except subprocess.TimeoutExpired:
            raise Broken(f"the process still lives after {self.deadline_s} s") from None

    def ends_with(self, *codes: int) -> None:
        """Read to the end of the stream and of the process; its code must be one of these."""
        end = time.monotonic() + self.deadline_s
        while self._receive(end):
            pass
        code = self.wait()
        if code not in codes:
            raise Broken(f"exit code {code} instead of {' or '.join(map(str, codes))}")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr."""
        self._stderr.seek(0)
        return self._stderr.read()[-2000:].decode("utf-8", "replace")

    def _receive(self, end: float) -> bool:
        """Take one message; False at the deadline and at the end of the stream."""
        while not self._ended:
            message = self._take()
            if message is not None:
                self._sort(message)
                return True
            if not _readable(self.stdout, end):
                return False
            self._hear()
        return False

    def _hear(self) -> bool:
        """Take what has arrived; tell whether it was anything."""
        if self._ended or self.stdout.closed or not _readable(self.stdout, 0.0):
            return False
        data = os.read(self.stdout.fileno(), READ_BYTES)
        if not data:
            self._ended = True
            if self._buffer:
                raise Broken(f"the stream ends inside a message: {bytes(self._buffer[:80])!r}")
        self._buffer += data
        return True

    def _take(self) -> Message | None:
        head, blank, _ = bytes(self._buffer[:200]).partition(b"\r\n\r\n")
        if not blank:
            if len(self._buffer) >= 200 or (self._buffer and self._buffer[:1] != b"C"):
                raise Broken(f"not a header: {bytes(self._buffer[:80])!r}")
            return None
        lengths = [
            line.partition(b": ")[2]
            for line in head.split(b"\r\n")
            if line.startswith(b"Content-Length: ")
        ]
        if len(lengths) != 1 or not lengths[0].isdigit():
            raise Broken(f"not a header: {head!r}")
        start, length = len(head) + 4, int(lengths[0])
        if len(self._buffer) < start + length:
            return None
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        try:
            message = json.loads(body.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as why:
            raise Broken(f"not JSON: {why}: {body[:80]!r}") from None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Broken(f"not a JSON-RPC 2.0 message: {body[:80]!r}")
        return message

    def _sort(self, message: Message) -> None:
        self.order.append(message)
        if "method" in message:
            (self.requests if "id" in message else self.notes).append(message)
            return
        if ("result" in message) == ("error" in message):
            raise Broken(f"an answer needs either result or error: {json.dumps(message)[:200]}")
        key = _key(message.get("id"))
        if self._asked[key] <= 0 and key != "null":
            what = "a second answer" if key in self._answers else "an answer that nobody asked"
            raise Broken(f"{what} to id {message.get('id')!r}")
        self._asked[key] -= 1
        self._answers[key] = message

    def forget(self, *ids: object) -> None:
        """Forget answers that were seen, so that their ids can be used again."""
        for id_ in ids:
            self._answers.pop(_key(id_), None)
            self._asked.pop(_key(id_), None)


def _key(id_: object) -> str:
    return json.dumps(id_, sort_keys=True)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _readable(file: IO[bytes], end: float) -> bool:
    return bool(select.select([file], [], [], max(0.0, end - time.monotonic()))[0])


def _writable(file: IO[bytes], end: float) -> bool:
    return bool(select.select([], [file], [], min(0.05, max(0.0, end - time.monotonic())))[1])
