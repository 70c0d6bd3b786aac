"""One client's connection, incoming side: bytes to frames to requests, each answered once."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import msgspec

from rlm_protocol.errors import (
    InvalidRequest,
    MethodNotFound,
    NotInitialized,
    RequestCancelled,
    RlmError,
    TruncatedFrame,
    Unsupported,
)
from rlm_protocol.framing import NEED_DATA, UNDECODABLE, HeaderReceiver, Refused
from rlm_protocol.host import CancelParams, InitializeParams
from rlm_protocol.limits import CLIENT_HEADER_BYTES, CLIENT_MESSAGE_BYTES
from rlm_protocol.methods import METHODS, RESERVED
from rlm_protocol.rpc import (
    Answered,
    Id,
    NotificationReceived,
    RequestReceived,
    Violation,
    refusal,
)

from .attachment import ClientAttachment, internal_error
from .capabilities import initialize_result
from .context import Context, Handler
from .endpoint import Endpoint
from .lsp import Language
from .params import decode_params
from .services import Services
from .workers import Workers

SETTLE_S, DRAIN_S = 0.1, 0.3
EXIT = "exit"
"""The reason of an end that the client has asked for."""
log = logging.getLogger(__name__)


class Ended(msgspec.Struct, frozen=True):
    """Why a connection is over. `clean`: by `shutdown` and `exit`, or the client is gone."""

    reason: str
    clean: bool


class _Request(msgspec.Struct, eq=False):
    """One request of the client, until it is answered."""

    id: Id
    method: str
    handler: Handler
    params: Any
    task: "asyncio.Task[None] | None" = None
    """That in which it waits."""
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


class Connection:
    """
    Owns one endpoint from its first byte to `close`.

    Requests run in `workers`, the host's own: they outlive a client that is gone. What one read has
    brought starts when all of it is known: a request that is cancelled in the same breath never
    runs, and the answers leave in one write. `on_end` is called once, with the reason, when the
    client has ended the connection or broken it; whoever made the connection then closes it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        services: Services,
        handlers: Mapping[str, Handler],
        workers: Workers,
        on_end: Callable[[Ended], None],
        on_initialize: Callable[[InitializeParams], None] = lambda _params: None,
    ) -> None:
        self._endpoint = endpoint
        self._services = services
        self._offered = handlers
        self._handlers: Mapping[str, Handler] = {}  # those offered, from `initialize` to `shutdown`
        self._workers = workers
        self._on_end = on_end
        self._on_initialize = on_initialize
        self._loop = asyncio.get_running_loop()
        self._frames = HeaderReceiver(
            max_frame_bytes=CLIENT_MESSAGE_BYTES, max_header_bytes=CLIENT_HEADER_BYTES
        )
        self._open: dict[Id, _Request] = {}
        self._ready: list[_Request | NotificationReceived] = []
        self._initialized = False
        self._shutdown = False
        self._ended = False
        self._idle: anyio.Event | None = None  # once somebody waits for it
        self.attachment = ClientAttachment(
            endpoint,
            id_=services.attachments.next_id(),
            on_lost=lambda reason: self._end(reason, clean=reason != "slow"),
        )
        self._peer = self.attachment.peer
        services.attachments.add(self.attachment)
        self._language = Language(services, self.attachment)

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
        for request in self._open.values():
            request.cancel()
        with anyio.move_on_after(SETTLE_S):
            await self._until_idle()

    async def close(self) -> None:
        """Write what is queued for DRAIN_S at most, then let go of the endpoint. Twice is once."""
        if self.attachment.closed:
            return
        self._ended = True
        self._stop_reading()
        with anyio.CancelScope(shield=True):
            await self.attachment.drain(DRAIN_S)
        self.attachment.close()
        self._endpoint.close()

    async def _until_idle(self) -> None:
        while self._open:
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
        self.attachment.hold()
        try:
            self._frames.receive_data(data)
            self._take_frames()
            ready, self._ready = self._ready, []
            for one in ready:
                if isinstance(one, _Request):
                    self._begin(one)
                else:
                    self._language.notified(one.method, one.params)
        finally:
            self.attachment.flush()

    def _take_frames(self) -> None:
        try:
            while not self._ended:
                frame = self._frames.next_frame()
                if isinstance(frame, bytes):
                    self._frame(frame)
                elif frame is NEED_DATA:
                    return
                elif isinstance(frame, Refused):
                    self.attachment.reply_raw(refusal(frame.error))
                else:
                    self._end("end of stream", clean=True)
        except TruncatedFrame:
            self._end("end of stream inside a message", clean=True)
        except RlmError as error:
            self.attachment.reply_raw(refusal(error))
            self._end(f"unreadable header: {error}", clean=False)

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
        event = self._peer.receive(frame)
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
            error = internal_error("the connection", bug)
            if isinstance(event, RequestReceived) and event.id in self._peer.open_theirs:
                self.attachment.fail(event.id, error)

    def _requested(self, asked: RequestReceived) -> None:
        try:
            handler = self._handlers.get(asked.method)
            if handler is not None:
                params = decode_params(asked.method, asked.params)
            elif (handler := self._other(asked)) is not None:
                params = asked.params
            else:
                return
        except RlmError as error:
            self.attachment.fail(asked.id, error)
            return
        request = self._open[asked.id] = _Request(asked.id, asked.method, handler, params)
        self._ready.append(request)

    def _other(self, asked: RequestReceived) -> Handler | None:
        """Answer what belongs to the life cycle, give the handler of what belongs to LSP."""
        method = asked.method
        if method == "initialize":
            self.attachment.respond(asked.id, self._initialize(asked))
        elif not self._initialized:
            raise NotInitialized
        elif self._shutdown:
            raise InvalidRequest("The connection is shutting down.")
        elif method == "shutdown":
            decode_params("shutdown", asked.params)
            self._shutdown, self._handlers = True, {}
            self.attachment.respond(asked.id, None)
        elif (handler := self._language.handler(method)) is not None:
            return handler
        else:
            row = METHODS.get(method)
            if (row is None or row.direction != "client") and method not in RESERVED:
                raise MethodNotFound(method=method[:200])
            raise Unsupported(method=method)
        return None

    def _begin(self, request: _Request) -> None:
        if request.cancelled:
            self.attachment.fail(request.id, RequestCancelled())
            self._settled(request, [])
        else:
            request.task = self._workers.start(self._run(request))

    async def _run(self, request: _Request) -> None:
        """Run one request to its one answer."""
        after: list[Callable[[], None]] = []
        context = Context(self._services, self.attachment, request.id, after)
        try:
            result = await request.handler(context, request.params)
            self.attachment.respond(request.id, result)
        except asyncio.CancelledError:
            self.attachment.fail(request.id, RequestCancelled())
            raise
        except RlmError as error:
            self.attachment.fail(request.id, error)
        except Exception as bug:
            self.attachment.fail(request.id, internal_error(request.method, bug))
        finally:
            self._settled(request, after)

    def _settled(self, request: _Request, after: list[Callable[[], None]]) -> None:
        self._open.pop(request.id, None)
        for callback in after:
            callback()
        if self._idle is not None and not self._open:
            self._idle.set()

    def _notified(self, event: NotificationReceived) -> None:
        match event.method:
            case "exit":
                self._end(EXIT, clean=self._shutdown)
            case "$/cancelRequest":
                self._cancel(event.params)
            case _ if self._initialized:
                log.debug("%s: notification %s", self.attachment.id, event.method[:200])
                self._ready.append(event)

    def _cancel(self, params: msgspec.Raw) -> None:
        try:
            id_ = msgspec.json.decode(params, type=CancelParams).id
        except UNDECODABLE:
            return
        request = self._open.get(id_)
        if request is not None:
            request.cancel()

    # --- life cycle -------------------------------------------------------------------------------

    def _initialize(self, request: RequestReceived) -> object:
        if self._initialized:
            raise InvalidRequest("The connection is initialized already.")
        params = decode_params("initialize", request.params)
        result = initialize_result(params, frozenset(self._offered))
        self._handlers = self._offered
        self._initialized = self.attachment.initialized = True
        self._language.initialize(params)
        self._on_initialize(params)
        return result
