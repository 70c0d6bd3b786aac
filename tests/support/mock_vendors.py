"""
A model vendor on loopback: Chat Completions, Responses and Messages, scripted by the test.

    with MockVendors(lambda asked: Answer(text="hi")) as vendors:
        path.write_text(vendors.config())  # then: rlm-host run --config PATH, with KEYS in its env
    assert vendors.requests[0].model == "gpt-x"

A script is a function of the request, or a list of answers that are given out in order. Everything
asked is recorded. Leaving the block ends every connection and thread.
"""

import contextlib
import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from support.mock_dialects import Answer, Dialect, error_body, events

__all__ = ["KEYS", "SELECTORS", "Answer", "Asked", "MockVendors", "growth"]

PATHS: dict[str, Dialect] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
}
SELECTORS: dict[Dialect, str] = {
    "chat": "chatty/chat-1",
    "responses": "openai/gpt-6.1-sol",
    "messages": "anthropic/claude-sonnet-5-5",
}
"""The model that speaks each dialect under `MockVendors.config()`."""
KEYS = {"CHATTY_KEY": "sk-chatty", "OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-ant"}
"""The environment that gives every provider of that configuration its key."""
CONFIG = """\
[providers.openai]
base_url = "{openai_url}"

[providers.anthropic]
base_url = "{anthropic_url}"

[providers.chatty]
kind = "openai"
base_url = "{openai_url}"
api_key_env = "CHATTY_KEY"
models = [
    "chat-2",
    {{ name = "chat-1", context_window_tokens = 100000, thinking = ["low", "high"], price = {{ \
input_usd_per_mtok = 1.0, output_usd_per_mtok = 2.0, cache_read_usd_per_mtok = 0.5 }} }},
]
"""
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as it came. Header names are lower case."""

    dialect: Dialect
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, in the dialect's own shape."""
        return list(self.body["input" if self.dialect == "responses" else "messages"])

    @property
    def key(self) -> str:
        """The credential that was sent, "" when there was none."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or bearer

    @property
    def last_text(self) -> str:
        """All text of the last message: what a script switches on."""
        return "".join(_texts(self.messages[-1]))

    def prompt(self) -> bytes:
        """What the model reads, in order, without marks that say what to cache."""
        body = {k: v for k, v in self.body.items() if k in ("system", "instructions", "tools")}
        return json.dumps(_unmarked([body, *self.messages])).encode()


Script = Callable[[Asked], Answer] | Sequence[Answer]


class MockVendors:
    """The server. `limit` requests are served at once, the others get a 429."""

    def __init__(self, script: Script, *, limit: int | None = None) -> None:
        self.requests: list[Asked] = []
        self.hung_up = 0
        """Clients that left before their answer had ended."""
        self.busiest = 0
        self.refused = 0
        self.errors: list[BaseException] = []
        """What a script raised; the first is raised again when the block is left."""
        self.limit = limit
        self._busy = 0
        self._script = script
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,))

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.url

    def config(self) -> str:
        """Give a configuration file in which every hosted provider is this server; see `KEYS`."""
        return CONFIG.format(openai_url=self.openai_url, anthropic_url=self.anthropic_url)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        with self._changed:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()
        if self.errors and error is None:
            raise self.errors[0]

    def wait(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        """Wait until something that the server has seen makes the condition true."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), "it never came true"

    def take(self, asked: Asked) -> tuple[int, Answer]:
        with self._changed:
            turn = len(self.requests)
            self.requests.append(asked)
            self._changed.notify_all()
        return turn, self._script(asked) if callable(self._script) else self._script[turn]

    @contextlib.contextmanager
    def serving(self) -> Iterator[bool]:
        """Count a request in and out; false when it is one too many."""
        with self._changed:
            fits = self.limit is None or self._busy < self.limit
            self._busy += fits
            self.refused += not fits
            self.busiest = max(self.busiest, self._busy)
        try:
            yield fits
        finally:
            with self._changed:
                self._busy -= fits
                self._changed.notify_all()

    @contextlib.contextmanager
    def connected(self, connection: socket.socket) -> Iterator[None]:
        with self._changed:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(connection)

    def note_hang_up(self) -> None:
        with self._changed:
            self.hung_up += 1
            self._changed.notify_all()

    def wait_for_hang_up(self, connection: socket.socket, timeout_s: float | None) -> bool:
        """Wait until the client leaves, the time is over, or the server closes; true: it left."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closing.is_set():
            left = POLL_S if until is None else min(POLL_S, until - time.monotonic())
            if left <= 0:
                return False
            if select.select([connection], [], [], left)[0] and not _peek(connection):
                self.note_hang_up()
                return True
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256

    def __init__(self, vendors: MockVendors) -> None:
        self.vendors = vendors
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that leaves in the middle is what these tests are about; a wrong script is not.
        error = sys.exception()
        assert error is not None
        if isinstance(error, ConnectionError):
            self.vendors.note_hang_up()
        else:
            self.vendors.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def handle(self) -> None:
        with self.server.vendors.connected(self.connection):
            super().handle()

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        vendors = self.server.vendors
        dialect = next((d for path, d in PATHS.items() if self.path.endswith(path)), None)
        raw = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = json.loads(raw)
        assert dialect is not None, self.path
        assert body["stream"] is True
        with vendors.serving() as fits:
            asked = Asked(dialect=dialect, headers=headers, body=body, raw=raw)
            turn, answer = vendors.take(asked)
            if not fits:
                answer = Answer(status=429, error_type="rate_limit_error", error_message="busy")
            self._answer(dialect, asked.model, turn, answer)

    def _answer(self, dialect: Dialect, model: str, turn: int, answer: Answer) -> None:
        vendors = self.server.vendors
        if answer.hang:
            self.close_connection = vendors.wait_for_hang_up(self.connection, None)
            return
        if answer.status != 200:
            data = json.dumps(error_body(dialect, answer)).encode()
            self._head(answer, "application/json", ("content-length", str(len(data))))
            self.wfile.write(data)
            return
        self._head(answer, "text/event-stream", ("transfer-encoding", "chunked"))
        whole = events(dialect, answer, model, turn)
        for number, event in enumerate([*whole, None]):
            if answer.drop_after == number:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            stalls = answer.stall_after == number
            while stalls and answer.pings:
                self._chunk(b": ping\n\n")
                time.sleep(POLL_S)
            pause = None if stalls else answer.wait_s
            if pause != 0 and vendors.wait_for_hang_up(self.connection, pause):
                self.close_connection = True
                return
            self._chunk(event or b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _head(self, answer: Answer, content_type: str, *more: tuple[str, str]) -> None:
        self.send_response(answer.status)
        for name, value in (("content-type", content_type), *more, *answer.headers):
            self.send_header(name, value)
        self.end_headers()


def growth(before: Asked, after: Asked) -> float:
    """Give the share of one prompt's bytes that begin the next prompt: 1.0 when it only grew."""
    old, new = before.prompt().rstrip(b"]"), after.prompt()
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))
    return same / len(old)


def _peek(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return b""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("text", "content", "output") and isinstance(inner, str):
                yield inner
            else:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _unmarked(v) for k, v in value.items() if k != "cache_control"}
    return [_unmarked(inner) for inner in value] if isinstance(value, list) else value
