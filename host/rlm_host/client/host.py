"""
An async client of the host, for programs that embed it, for our own commands and for the tests.

    async with HostClient.spawn() as client:
        made = await client.request("session/create", {"cwd": "/some/folder"})

Works on asyncio. Everything it starts belongs to its `async with` block.
"""

import asyncio
import contextlib
import os
import socket as sockets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from rlm_protocol import __version__
from rlm_protocol.base import Cursor
from rlm_protocol.errors import (
    HostLost,
    MethodNotFound,
    RequestCancelled,
    RequestFailed,
    RlmError,
    from_jsonrpc,
)
from rlm_protocol.framing import NEED_DATA, UNDECODABLE, HeaderReceiver, Refused, encode_headers
from rlm_protocol.host import CancelParams, HostStatusResult, InitializeResult
from rlm_protocol.limits import CLIENT_HEADER_BYTES, CLIENT_MESSAGE_BYTES
from rlm_protocol.methods import EVENTS, PROTOCOL_MAX, PROTOCOL_MIN
from rlm_protocol.rpc import (
    Answered,
    Id,
    NotificationReceived,
    RequestReceived,
    RpcPeer,
    Violation,
)
from rlm_protocol.session import SessionResumeParams, SessionResumeResult

from .client_events import HostNotification, Subscription
from .client_process import EXIT_S, HostProcess
from .rpc.endpoint import Endpoint

__all__ = ["HostClient", "HostNotification", "RequestHandler", "Subscription"]

T = TypeVar("T")
RequestHandler = Callable[[dict[str, Any]], Awaitable[Any]]
"""Answers a request of the host: params in, result out; RlmError is the refusal."""


class HostClient:
    """
    One connection to a host. Made by `spawn` or `attach`; used on one event loop.

    `server` is the host's answer to `initialize`, `pid` its process. `cursors` holds, for each
    session that this client has heard of, the last record it was told.
    """

    server: InitializeResult
    pid: int

    def __init__(self, endpoint: Endpoint, process: HostProcess | None = None) -> None:
        """Use `spawn` or `attach` instead."""
        self.cursors: dict[str, Cursor] = {}
        self.process = process
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._peer = RpcPeer()
        self._frames = HeaderReceiver(
            max_frame_bytes=CLIENT_MESSAGE_BYTES, max_header_bytes=CLIENT_HEADER_BYTES
        )
        self._unsent = bytearray()
        self._writing = False
        self._asked: dict[Id, asyncio.Future[msgspec.Raw]] = {}
        self._subscriptions: set[Subscription] = set()
        self._handlers: dict[str, RequestHandler] = {}
        self._serving: dict[Id, asyncio.Task[None]] = {}
        self._lost: RlmError | None = None
        self._loop.add_reader(endpoint.read_fd, self._readable)

    # --- making one -------------------------------------------------------------------------------

    @classmethod
    @contextlib.asynccontextmanager
    async def spawn(
        cls,
        *,
        command: Sequence[str] | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        handlers: Mapping[str, RequestHandler] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Self]:
        """
        Start a host in a session of its own and own it for the length of the block.

        Leaving the block asks the host to end, waits 2 s, sends SIGTERM, waits 2 s, and kills it.

        Args:
            command: program and arguments; this Python's `-m rlm_host` by default.
            arguments: what comes behind them, for example `("--config", FILE)`.
            env: its whole environment; this process's by default.
            cwd: its working directory.
            handlers: what answers the host's requests, by method.
            capabilities: what goes into `capabilities.experimental.rlm`.

        Raises:
            OSError: the program cannot be started.
            HostLost: it ended before it answered; `stderr_tail` says what it said.
        """
        process, endpoint = await HostProcess.start(
            (*(command or (sys.executable, "-P", "-m", "rlm_host")), *arguments),
            env=env,
            cwd=cwd,
        )
        try:
            client = cls(endpoint, process)
            client.pid = process.pid
            async with contextlib.aclosing(_Closing(client)):
                try:
                    await client._initialize(handlers, capabilities)
                except HostLost:
                    raise await process.ended_early() from None
                yield client
                await client._goodbye()
        finally:
            await process.aclose()

    @classmethod
    @contextlib.asynccontextmanager
    async def attach(
        cls,
        socket: Path | str,
        *,
        handlers: Mapping[str, RequestHandler] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Self]:
        """
        Connect to a host that serves on a unix socket; the host lives on after the block.

        Raises:
            HostLost: nobody answers there.
        """
        sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            sock.connect(str(socket))
        except OSError as why:
            sock.close()
            raise HostLost(f"No host answers on {socket}: {why.strerror}.") from why
        client = cls(Endpoint.of_socket(sock))
        async with contextlib.aclosing(_Closing(client)):
            await client._initialize(handlers, capabilities)
            client.pid = (await client.call("host/status", None, HostStatusResult)).pid
            yield client
            await client._goodbye()

    # --- using it ---------------------------------------------------------------------------------

    async def request(
        self, method: str, params: Mapping[str, Any] | msgspec.Struct | None = None
    ) -> Any:
        """
        Ask the host; give its result as plain data.

        Cancelling the call cancels the request at the host.

        Raises:
            RlmError: the host's refusal, as the row of the error table.
            HostLost: the connection ended before the answer.
        """
        return msgspec.json.decode(await self._ask(method, params))

    async def call(
        self,
        method: str,
        params: Mapping[str, Any] | msgspec.Struct | None,
        result: type[T],
    ) -> T:
        """Ask the host; give its result as the Struct `result`. Raises as `request` does."""
        raw = await self._ask(method, params)
        try:
            return msgspec.json.decode(raw, type=result)
        except UNDECODABLE as why:
            raise RequestFailed(f"The host's answer to {method} cannot be read: {why}.") from why

    async def resume(self, session_id: str, cursor: Cursor | None = None) -> SessionResumeResult:
        """
        Attach to a session, from the last record that this client was told of it.

        After a lost connection, attach anew and give the new client what the old one knew:

            async with HostClient.attach(socket) as again:
                await again.resume(session_id, old.cursors.get(session_id))

        With `replay` "complete" exactly what was missed comes as notifications behind the answer:
        make the subscription before. Else nothing of it comes; read `session/items` anew.

        Args:
            session_id: which one.
            cursor: the last record that is known; `cursors[session_id]` by default.

        Raises:
            SessionNotFound, SessionLeased, HostLost: nothing was changed.
        """
        cursor = cursor or self.cursors.get(session_id)
        params = SessionResumeParams(session_id=session_id, cursor=cursor)
        answer = await self.call("session/resume", params, SessionResumeResult)
        if self.cursors.get(session_id, cursor) == cursor:  # nothing was heard behind it yet
            missed = cursor if answer.replay == "complete" else None
            self.cursors[session_id] = missed or answer.cursor
        return answer

    def notify(self, method: str, params: Mapping[str, Any] | msgspec.Struct | None = None) -> None:
        """Tell the host something that has no answer."""
        self._send(self._peer.notify(method, params if params is not None else {}))

    @contextlib.asynccontextmanager
    async def notifications(
        self, *methods: str, session_id: str | None = None
    ) -> AsyncIterator[Subscription]:
        """
        Collect notifications from now on, for the length of the block.

        Args:
            methods: only these; none means all.
            session_id: only of this session.
        """
        subscription = Subscription(frozenset(methods), session_id)
        if self._lost is not None:
            subscription.end(self._lost)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def handle(self, method: str, handler: RequestHandler) -> None:
        """Answer the host's requests of this method; without a handler they are refused."""
        self._handlers[method] = handler

    # --- the connection ---------------------------------------------------------------------------

    async def _initialize(
        self,
        handlers: Mapping[str, RequestHandler] | None,
        capabilities: Mapping[str, Any] | None,
    ) -> None:
        self._handlers.update(handlers or {})
        ours = {"protocol": {"min": PROTOCOL_MIN, "max": PROTOCOL_MAX}, **(capabilities or {})}
        self.server = await self.call(
            "initialize",
            {
                "processId": os.getpid(),
                "clientInfo": {"name": "rlm-host-client", "version": __version__},
                "rootUri": None,
                "capabilities": {"experimental": {"rlm": ours}},
            },
            InitializeResult,
        )
        self.notify("initialized")

    async def _goodbye(self) -> None:
        with contextlib.suppress(RlmError, TimeoutError):
            async with asyncio.timeout(EXIT_S):
                await self.request("shutdown")
                self.notify("exit")

    async def _ask(
        self, method: str, params: Mapping[str, Any] | msgspec.Struct | None
    ) -> msgspec.Raw:
        if self._lost is not None:
            raise self._lost
        id_, body = self._peer.request(method, params if params is not None else {})
        answer: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        self._asked[id_] = answer
        self._send(body)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.done() or answer.cancelled():
                self._peer.forget(id_)
                self.notify("$/cancelRequest", CancelParams(id=id_))
            raise
        finally:
            del self._asked[id_]

    async def aclose(self) -> None:
        """Let go of the connection: every open request fails with HostLost."""
        self._lose("The client was closed.")
        for task in list(self._serving.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._endpoint.close()

    def _readable(self) -> None:
        data = self._endpoint.read()
        if data is None:
            return
        self._frames.receive_data(data)
        try:
            while self._lost is None:
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
                answer = self._asked.get(event.id)
                if answer is None or answer.done():
                    return
                if event.error is not None:
                    answer.set_exception(from_jsonrpc(event.error))
                else:
                    answer.set_result(event.result or msgspec.Raw(b"null"))
            case NotificationReceived():
                self._note(HostNotification(event.method, event.params))
            case RequestReceived():
                self._serving[event.id] = self._loop.create_task(self._serve(event))
            case Violation():
                if event.reply is not None:
                    self._send(event.reply)

    def _note(self, event: HostNotification) -> None:
        if event.method == "$/cancelRequest":
            task = self._serving.get(event.params.get("id", ""))
            if task is not None:
                task.cancel()
            return
        row = EVENTS.get(event.method)
        if row is None or not row.droppable:
            place = msgspec.json.decode(event.raw, type=_Place)
            if place.session_id is not None:
                self.cursors[place.session_id] = Cursor(gen=place.gen, seq=place.seq)
        for subscription in tuple(self._subscriptions):
            subscription.offer(event)

    async def _serve(self, request: RequestReceived) -> None:
        """Answer one request of the host."""
        refusal: RlmError = RequestCancelled()
        try:
            handler = self._handlers.get(request.method)
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

    def _send(self, body: bytes) -> None:
        if self._lost is not None:
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
        if self._lost is not None:
            return
        said = {"stderr_tail": self.process.stderr_tail} if self.process is not None else {}
        self._lost = HostLost(reason, **said)
        self._loop.remove_reader(self._endpoint.read_fd)
        if self._writing:
            self._loop.remove_writer(self._endpoint.write_fd)
            self._writing = False
        for id_ in self._peer.lost():
            answer = self._asked.get(id_)
            if answer is not None and not answer.done():
                answer.set_exception(self._lost)
        for subscription in self._subscriptions:
            subscription.end(self._lost)


class _Place(msgspec.Struct, rename="camel"):
    session_id: str | None = None
    gen: int = 0
    seq: int = 0


class _Closing:
    def __init__(self, client: HostClient) -> None:
        self.aclose = client.aclose
