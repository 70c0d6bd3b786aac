"""One client's connection, incoming side: bytes to frames to requests, each answered once."""

import asyncio
import contextvars
import functools
import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.abc
import msgspec

from rlm_protocol.errors import (
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    NotInitialized,
    RequestCancelled,
    RlmError,
    TruncatedFrame,
    Unsupported,
    to_jsonrpc,
)
from rlm_protocol.framing import NEED_DATA, UNDECODABLE, HeaderReceiver, Refused, decode_error
from rlm_protocol.host import CancelParams, InitializeParams
from rlm_protocol.limits import CLIENT_HEADER_BYTES, CLIENT_MESSAGE_BYTES
from rlm_protocol.methods import METHODS, Method
from rlm_protocol.rpc import (
    Answered,
    Id,
    NotificationReceived,
    RequestReceived,
    RpcPeer,
    Violation,
)

from .attachment import ClientAttachment, internal_error
from .capabilities import initialize_result
from .context import Context, Handler
from .endpoint import Endpoint
from .lsp import Language
from .services import Services

SETTLE_S, DRAIN_S = 0.1, 0.3
log = logging.getLogger(__name__)


class Ended(msgspec.Struct, frozen=True):
    """Why a connection is over. `clean`: by `shutdown` and `exit`, or the client is gone."""

    reason: str
    clean: bool


class Connection:
    """
    Owns one endpoint from its first byte to `close`.

    Requests run in `tasks`, the host's own group: they outlive a client that is gone. `on_end` is
    called once, with the reason, when the client has ended the connection or broken it; whoever
    made the connection then closes it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        services: Services,
        handlers: Mapping[str, Handler],
        tasks: anyio.abc.TaskGroup,
        on_end: Callable[[Ended], None],
        on_initialize: Callable[[InitializeParams], None] = lambda _params: None,
    ) -> None:
        self._endpoint = endpoint
        self._services = services
        self._handlers = handlers
        self._tasks = tasks
        self._on_end = on_end
        self._on_initialize = on_initialize
        self._loop = asyncio.get_running_loop()
        self._frames = HeaderReceiver(
            max_frame_bytes=CLIENT_MESSAGE_BYTES, max_header_bytes=CLIENT_HEADER_BYTES
        )
        self._running: dict[Id, anyio.CancelScope] = {}
        self._initialized = False
        self._shutdown = False
        self._ended = False
        self._idle = anyio.Event()
        self.attachment = ClientAttachment(
            endpoint,
            id_=services.attachments.next_id(),
            on_lost=lambda reason: self._end(reason, clean=reason != "slow"),
        )
        services.attachments.add(self.attachment)
        self._language = Language(services, self.attachment)

    @property
    def peer(self) -> RpcPeer:
        """The bookkeeping of both directions."""
        return self.attachment.peer

    def start(self) -> None:
        """Begin to read."""
        if self._endpoint.watchable:
            self._loop.add_reader(self._endpoint.read_fd, self._readable)
        else:
            here = contextvars.copy_context()
            threading.Thread(
                target=self._read_in_thread, args=(here,), daemon=True, name="rpc-reader"
            ).start()

    async def settle(self) -> None:
        """Let what runs finish in SETTLE_S, cancel the rest, and give that as long to answer."""
        with anyio.move_on_after(SETTLE_S):
            await self._until_idle()
        for scope in self._running.values():
            scope.cancel()
        with anyio.move_on_after(SETTLE_S):
            await self._until_idle()

    async def close(self) -> None:
        """Write what is queued for DRAIN_S at most, then let go of the endpoint."""
        self._ended = True
        self._stop_reading()
        with anyio.CancelScope(shield=True):
            await self.attachment.drain(DRAIN_S)
        self.attachment.close()
        self._endpoint.close()

    async def _until_idle(self) -> None:
        while self._running:
            self._idle = anyio.Event()
            await self._idle.wait()

    # --- reading ----------------------------------------------------------------------------------

    def _readable(self) -> None:
        data = self._endpoint.read()
        if data is not None:
            self._received(data)

    def _read_in_thread(self, context: contextvars.Context) -> None:
        """Read what no loop can watch, a file; ends at its end."""
        while True:
            data = self._endpoint.read()
            if data is None:
                continue
            try:
                self._loop.call_soon_threadsafe(self._received, data, context=context)
            except RuntimeError:  # the loop is closed: so is everything else
                return
            if not data:
                return

    def _stop_reading(self) -> None:
        if self._endpoint.watchable:
            self._loop.remove_reader(self._endpoint.read_fd)

    def _received(self, data: bytes) -> None:
        if self._ended:
            return
        self._frames.receive_data(data)
        try:
            while not self._ended:
                frame = self._frames.next_frame()
                if frame is NEED_DATA:
                    return
                if frame is None:
                    self._end("end of stream", clean=True)
                elif isinstance(frame, Refused):
                    self._reply_without_id(frame.error)
                else:
                    self._frame(frame)
        except TruncatedFrame:
            self._end("end of stream inside a message", clean=True)
        except RlmError as error:
            self._reply_without_id(error)
            self._end(f"unreadable header: {error}", clean=False)

    def _reply_without_id(self, error: RlmError) -> None:
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": to_jsonrpc(error)})
        self.attachment.reply_raw(body)

    def _end(self, reason: str, *, clean: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._stop_reading()
        level = logging.INFO if clean else logging.WARNING
        log.log(level, "%s ends: %s", self.attachment.id, reason)
        self._on_end(Ended(reason, clean))

    # --- messages ---------------------------------------------------------------------------------

    def _frame(self, frame: bytes) -> None:
        event = self.peer.receive(frame)
        try:
            match event:
                case RequestReceived():
                    self._requested(event)
                case NotificationReceived():
                    self._notified(event)
                case Answered():
                    self.attachment.answered(event)
                case Violation():
                    level = logging.DEBUG if event.reply is None else logging.WARNING
                    log.log(level, "%s: %s", self.attachment.id, event.reason)
                    if event.reply is not None:
                        self.attachment.reply_raw(event.reply)
        except Exception as bug:  # the connection goes on: its other requests have done no wrong
            refusal = internal_error("the connection", bug)
            if isinstance(event, RequestReceived) and event.id in self.peer.open_theirs:
                self.attachment.fail(event.id, refusal)

    def _requested(self, request: RequestReceived) -> None:
        try:
            if request.method == "initialize":
                self.attachment.respond(request.id, self._initialize(request))
            elif not self._initialized:
                raise NotInitialized
            elif self._shutdown:
                raise InvalidRequest("The connection is shutting down.")
            elif request.method == "shutdown":
                decode_params(METHODS["shutdown"], request.params)
                self._shutdown = True
                self.attachment.respond(request.id, None)
            else:
                self._dispatch(request)
        except RlmError as refusal:
            self.attachment.fail(request.id, refusal)

    def _dispatch(self, request: RequestReceived) -> None:
        row = METHODS.get(request.method)
        params: Any = request.params
        if (language := self._language.handler(request.method)) is not None:
            handler = language
        elif row is None or row.direction != "client":
            raise MethodNotFound(method=request.method[:200])
        elif row.name not in self._handlers:
            raise Unsupported(method=row.name)
        else:
            handler = self._handlers[row.name]
            params = decode_params(row, request.params)
        scope = anyio.CancelScope()
        self._running[request.id] = scope
        self._tasks.start_soon(self._run, request.id, request.method, handler, params, scope)

    async def _run(
        self, id_: Id, name: str, handler: Handler, params: Any, scope: anyio.CancelScope
    ) -> None:
        """Run one request to its one answer."""
        after: list[Callable[[], None]] = []
        answer: Callable[[], None] | None = None
        try:
            with scope:
                if not scope.cancel_called:  # cancelled before it began: it never runs
                    context = Context(self._services, self.attachment, id_, after)
                    result = await handler(context, params)
                    answer = functools.partial(self._respond, id_, name, result)
        except RlmError as refusal:
            answer = functools.partial(self.attachment.fail, id_, refusal)
        except Exception as bug:
            answer = functools.partial(self.attachment.fail, id_, internal_error(name, bug))
        finally:
            self._running.pop(id_, None)
            if not self.attachment.closed:
                (answer or functools.partial(self.attachment.fail, id_, RequestCancelled()))()
            for callback in after:
                callback()
            if not self._running:
                self._idle.set()

    def _respond(self, id_: Id, name: str, result: object) -> None:
        try:
            self.attachment.respond(id_, result)
        except (TypeError, ValueError) as bug:
            self.attachment.fail(id_, internal_error(f"the result of {name}", bug))

    def _notified(self, event: NotificationReceived) -> None:
        match event.method:
            case "exit":
                self._end("exit", clean=self._shutdown)
            case "$/cancelRequest":
                self._cancel(event.params)
            case _ if self._initialized:
                log.debug("%s: notification %s", self.attachment.id, event.method[:200])
                self._language.notified(event.method, event.params)

    def _cancel(self, params: msgspec.Raw) -> None:
        try:
            id_ = msgspec.json.decode(params, type=CancelParams).id
        except UNDECODABLE:
            return
        scope = self._running.get(id_)
        if scope is not None:
            scope.cancel()

    # --- life cycle -------------------------------------------------------------------------------

    def _initialize(self, request: RequestReceived) -> object:
        if self._initialized:
            raise InvalidRequest("The connection is initialized already.")
        params = decode_params(METHODS["initialize"], request.params)
        result = initialize_result(params, frozenset(self._handlers))
        self._initialized = self.attachment.initialized = True
        self._language.initialize(params)
        self._on_initialize(params)
        return result


@functools.cache
def _decoder(row_name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(METHODS[row_name].params)


_AT = re.compile(r"^(?P<what>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>[^`]*)`")


def decode_params(row: Method, params: msgspec.Raw) -> Any:
    """
    Give the params as the row's Struct; missing and null mean none.

    Raises:
        InvalidParams: with `path`, a JSONPath of the place that is wrong.
    """
    raw = b"{}" if bytes(params) == b"null" else params
    try:
        return _decoder(row.name).decode(raw)
    except UNDECODABLE as why:
        raise _invalid(decode_error(why)) from None


def _invalid(reason: str) -> InvalidParams:
    found = _AT.match(reason)
    what, path = (found["what"], found["path"]) if found else (reason, "$")
    field = _FIELD.search(what)
    if field is not None:
        path = f"{path}.{field['field']}"
    return InvalidParams(f"The parameters do not fit the method: {what}.", path=path)
