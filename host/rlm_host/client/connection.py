"""One connection to a host: its bytes, our open requests and the host's, until it is lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from rlm_protocol.errors import (
    HostLost,
    MethodNotFound,
    RequestCancelled,
    RequestFailed,
    RlmError,
    from_jsonrpc,
)
from rlm_protocol.framing import NEED_DATA, HeaderReceiver, Refused, encode_headers
from rlm_protocol.host import CancelParams
from rlm_protocol.limits import CLIENT_HEADER_BYTES, CLIENT_MESSAGE_BYTES
from rlm_protocol.rpc import (
    Answered,
    Id,
    NotificationReceived,
    RequestReceived,
    RpcPeer,
    Violation,
)

from ..rpc.endpoint import Endpoint
from .events import HostNotification

Payload = Mapping[str, Any] | msgspec.Struct
RequestHandler = Callable[[dict[str, Any]], Awaitable[Any]]
"""Answers a request of the host: params in, result out; RlmError is the refusal."""


class Owner(Protocol):
    """What a connection tells its client, in the order in which the host said it."""

    @property
    def handlers(self) -> Mapping[str, RequestHandler]:
        """What answers the host's requests, by method."""

    def answered(self, method: str, params: Payload, result: msgspec.Raw) -> None:
        """The host carried out a request."""

    def heard(self, event: HostNotification) -> None:
        """The host told something."""

    def lost(self, why: HostLost) -> None:
        """Nothing is heard any more; called once."""


class _Asked(msgspec.Struct):
    method: str
    params: Payload
    answer: asyncio.Future[msgspec.Raw]


class Connection:
    """Owns the endpoint until `aclose`. Used on one event loop."""

    def __init__(self, endpoint: Endpoint, owner: Owner) -> None:
        """Take over `endpoint` and read it from now on."""
        self.lost: HostLost | None = None
        self._endpoint = endpoint
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._peer = RpcPeer()
        self._frames = HeaderReceiver(
            max_frame_bytes=CLIENT_MESSAGE_BYTES, max_header_bytes=CLIENT_HEADER_BYTES
        )
        self._unsent = bytearray()
        self._writing = False
        self._asked: dict[Id, _Asked] = {}
        self._serving: dict[Id, asyncio.Task[None]] = {}
        self._loop.add_reader(endpoint.read_fd, self._readable)

    @property
    def open_requests(self) -> frozenset[Id]:
        """Ids of the requests that wait for their answer."""
        return self._peer.open_ours

    async def ask(self, method: str, params: Payload | None) -> msgspec.Raw:
        """
        Send a request; give its result.

        Raises:
            RlmError: the host's refusal.
            HostLost: the connection ended before the answer: it may have been carried out, or not.
        """
        if self.lost is not None:
            raise self.lost
        params = params if params is not None else {}
        id_, body = self._peer.request(method, params)
        asked = self._asked[id_] = _Asked(method, params, self._loop.create_future())
        self._send(body)
        try:
            return await asked.answer
        except asyncio.CancelledError:
            if not asked.answer.done() or asked.answer.cancelled():
                self._peer.forget(id_)
                self.notify("$/cancelRequest", CancelParams(id=id_))
            raise
        finally:
            del self._asked[id_]

    def notify(self, method: str, params: Payload | None = None) -> None:
        """Send what has no answer."""
        self._send(self._peer.notify(method, params if params is not None else {}))

    async def aclose(self) -> None:
        """Let go of it: open requests fail, handlers that run are cancelled."""
        self._lose("The client was closed.")
        for task in list(self._serving.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._endpoint.close()

    # --- what the host says -----------------------------------------------------------------------

    def _readable(self) -> None:
        data = self._endpoint.read()
        if data is None:
            return
        self._frames.receive_data(data)
        try:
            while self.lost is None:
                frame = self._frames.next_frame()
                if frame is NEED_DATA:
                    return
                if frame is None:
                    self._lose("The host closed the connection.")
                elif isinstance(frame, Refused):
                    self._lose(f"The host sent what is too long: {frame.error}")
                else:
                    self._heard(frame)
        except RlmError as error:
            self._lose(f"The host's stream cannot be read: {error}")

    def _heard(self, frame: bytes) -> None:
        event = self._peer.receive(frame)
        match event:
            case Answered():
                self._answered(event)
            case NotificationReceived(method="$/cancelRequest"):
                self._cancelled(event.params)
            case NotificationReceived():
                self._owner.heard(HostNotification(event.method, event.params))
            case RequestReceived():
                self._serving[event.id] = self._loop.create_task(self._serve(event))
            case Violation():
                if event.reply is not None:
                    self._send(event.reply)

    def _answered(self, event: Answered) -> None:
        asked = self._asked.get(event.id)
        if asked is None or asked.answer.done():
            return
        if event.error is not None:
            asked.answer.set_exception(from_jsonrpc(event.error))
            return
        result = event.result or msgspec.Raw(b"null")
        self._owner.answered(asked.method, asked.params, result)
        asked.answer.set_result(result)

    def _cancelled(self, params: msgspec.Raw) -> None:
        task = self._serving.get(msgspec.json.decode(params).get("id", ""))
        if task is not None:
            task.cancel()

    async def _serve(self, request: RequestReceived) -> None:
        """Answer one request of the host."""
        refusal: RlmError = RequestCancelled()
        try:
            handler = self._owner.handlers.get(request.method)
            if handler is None:
                raise MethodNotFound(method=request.method)
            result = await handler(msgspec.json.decode(request.params))
            self._send(self._peer.respond(request.id, result))
        except RlmError as error:
            refusal = error
        except Exception as error:
            refusal = RequestFailed(f"The client's handler failed: {type(error).__name__}.")
            self._loop.call_exception_handler(
                {"message": f"handler of {request.method} failed", "exception": error}
            )
        finally:
            del self._serving[request.id]
            if request.id in self._peer.open_theirs:
                self._send(self._peer.fail(request.id, refusal))

    # --- what we say ------------------------------------------------------------------------------

    def _send(self, body: bytes) -> None:
        if self.lost is not None:
            return
        self._unsent += encode_headers(body)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                with memoryview(self._unsent) as view:
                    sent = self._endpoint.write(view)
                if sent == 0:
                    break
                del self._unsent[:sent]
        except OSError as why:
            self._lose(f"The host does not read any more: {why.strerror}.")
            return
        if bool(self._unsent) != self._writing:
            self._writing = bool(self._unsent)
            if self._writing:
                self._loop.add_writer(self._endpoint.write_fd, self._write)
            else:
                self._loop.remove_writer(self._endpoint.write_fd)

    def _lose(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = HostLost(reason)
        self._loop.remove_reader(self._endpoint.read_fd)
        if self._writing:
            self._loop.remove_writer(self._endpoint.write_fd)
            self._writing = False
        self._owner.lost(self.lost)
        for id_ in self._peer.lost():
            asked = self._asked.get(id_)
            if asked is not None and not asked.answer.done():
                asked.answer.set_exception(self.lost)
