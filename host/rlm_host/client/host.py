"""The client itself: how it is made, used, and how it comes back after a lost connection."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from rlm_protocol import __version__
from rlm_protocol.base import Cursor
from rlm_protocol.errors import HostLost, RequestFailed, RlmError, SessionNotFound
from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.host import HostStatusResult, InitializeResult
from rlm_protocol.methods import PROTOCOL_MAX, PROTOCOL_MIN
from rlm_protocol.rpc import Id
from rlm_protocol.session import (
    SessionClosed,
    SessionResumeParams,
    SessionResumeResult,
    SessionResync,
)
from rlm_protocol.turn import TextInput, TurnCompleted

from ..rpc.endpoint import Endpoint
from ..rpc.sockets import connect
from .attachments import Attachments
from .connection import Connection, Payload, RequestHandler
from .events import HostNotification, Subscription
from .nouns import Nouns
from .open_items import OpenItems
from .process import EXIT_S, HostProcess

T = TypeVar("T")
RECONNECT_S = 30.0
"""How long a client of a socket tries to come back."""
PAUSE_S, PAUSE_MAX_S = 0.02, 0.5
"""Between two tries, the first and the longest."""


class HostClient(Nouns):
    """
    A client of one host. Made by `spawn` or `attach`; used on one event loop.

    `server` is the host's answer to `initialize`, `pid` its process, `process` the one that `spawn`
    has started. `handlers` answer the host's requests. The attributes `session`, `turn`, `repl`,
    `agent`, `loop`, `model`, `usage`, `artifact`, `auth`, `config`, `host` hold typed requests.

    A client of a socket whose connection is lost comes back by itself: it attaches anew to every
    session that it heard and gets exactly the records that it has missed, so that notifications go
    on without a gap and without a repeat. Where a host cannot replay them, one `session/resync`
    comes instead: read `session/items` anew. What was asked and not answered fails with HostLost,
    for it may have been carried out; what is asked meanwhile waits.
    """

    server: InitializeResult
    pid: int

    def __init__(self, process: HostProcess | None = None, socket: Path | None = None) -> None:
        """Use `spawn` or `attach` instead."""
        super().__init__()
        self.process = process
        self.handlers: dict[str, RequestHandler] = {}
        self.connects = 0
        """How many connections it has had."""
        self._socket = socket
        self._reconnect_s = 0.0
        self._capabilities: Mapping[str, Any] = {}
        self._attachments = Attachments()
        self._open_items = OpenItems()
        self._subscriptions: set[Subscription] = set()
        self._gone: RlmError | None = None
        self._coming_back: asyncio.Task[None] | None = None
        self._connection: Connection

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
            client = cls(process)
            client.pid = process.pid
            async with contextlib.aclosing(client):
                try:
                    await client._begin(endpoint, handlers, capabilities)
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
        reconnect_s: float = RECONNECT_S,
    ) -> AsyncIterator[Self]:
        """
        Connect to a host that serves on a unix socket; the host lives on after the block.

        Args:
            socket: where it serves.
            handlers: what answers the host's requests, by method.
            capabilities: what goes into `capabilities.experimental.rlm`.
            reconnect_s: how long to try to come back after a lost connection; 0 is not at all.

        Raises:
            HostLost: nobody answers there.
        """
        path = Path(socket)
        try:
            sock = connect(path)
        except OSError as why:
            raise HostLost(f"No host answers on {socket}: {why.strerror}.") from why
        client = cls(socket=path)
        async with contextlib.aclosing(client):
            await client._begin(Endpoint.of_socket(sock), handlers, capabilities)
            client.pid = (await client.host.status()).pid
            client._reconnect_s = reconnect_s
            yield client
            await client._goodbye()

    # --- using it ---------------------------------------------------------------------------------

    async def request(self, method: str, params: Payload | None = None) -> Any:
        """
        Ask the host; give its result as plain data.

        Cancelling the call cancels the request at the host.

        Raises:
            RlmError: the host's refusal, as the row of the error table.
            HostLost: the connection ended before the answer; with an `idempotencyKey` the request
                can be repeated.
        """
        return msgspec.json.decode(await self._ask(method, params))

    async def call(self, method: str, params: Payload | None, result: type[T]) -> T:
        """Ask the host; give its result as the Struct `result`. Raises as `request` does."""
        return _decoded(method, await self._ask(method, params), result)

    async def run_turn(self, session_id: str, text: str) -> TurnCompleted:
        """Give a session an input and wait for the end of its turn. Raises as `request` does."""
        async with self.notifications("turn/completed", session_id=session_id) as ends:
            turn = await self.turn.start(session_id=session_id, input=(TextInput(text=text),))
            async for event in ends:
                ended: TurnCompleted = event.payload
                if ended.turn_id == turn.turn_id:
                    return ended
        raise AssertionError("a subscription ends by raising")

    async def resume(self, session_id: str, cursor: Cursor | None = None) -> SessionResumeResult:
        """
        Attach to a session, from the last record that this client was told of it.

        With `replay` "complete" exactly what was missed comes as notifications behind the answer:
        make the subscription before. Else nothing of it comes; read `session/items` anew.

        Args:
            session_id: which one.
            cursor: the last record that is known; `cursors[session_id]` by default.

        Raises:
            SessionNotFound, SessionLeased, HostLost: nothing was changed.
        """
        cursor = cursor or self.cursors.get(session_id)
        return await self.session.resume(session_id=session_id, cursor=cursor)

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """For each session that this client has heard, the last record that it was told of."""
        return self._attachments.cursors

    @property
    def open_requests(self) -> frozenset[Id]:
        """Ids of the requests that wait for their answer."""
        return self._connection.open_requests

    def notify(self, method: str, params: Payload | None = None) -> None:
        """Tell the host something that has no answer."""
        self._connection.notify(method, params)

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
        if self._gone is not None:
            subscription.end(self._gone)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def handle(self, method: str, handler: RequestHandler) -> None:
        """Answer the host's requests of this method; without a handler they are refused."""
        self.handlers[method] = handler

    async def aclose(self) -> None:
        """Let go of the host: open requests fail, handlers that run are cancelled."""
        self._end(HostLost("The client was closed."))
        if self._coming_back is not None:
            self._coming_back.cancel()
            await asyncio.wait({self._coming_back})
        await self._connection.aclose()

    # --- what the connection tells (connection.Owner) ---------------------------------------------

    def answered(self, method: str, params: Payload, result: msgspec.Raw) -> None:
        """Note what a request that was carried out means for what is heard."""
        with contextlib.suppress(*UNDECODABLE):  # `call` says so to whoever asked
            self._attachments.answered(method, params, result)

    def heard(self, event: HostNotification) -> None:
        """Hand an event to every subscription; one that is no object is no event."""
        try:
            self._attachments.told(event)
        except UNDECODABLE:
            return
        for one in self._open_items.hear(event) if self._reconnect_s else (event,):
            for subscription in tuple(self._subscriptions):
                subscription.offer(one)

    def lost(self, why: HostLost) -> None:
        """Come back if that is wished, else end."""
        if self.process is not None:
            why.data["stderr_tail"] = self.process.stderr_tail
        if self._gone is None and self._coming_back is None:
            if self._reconnect_s:
                self._coming_back = asyncio.ensure_future(self._come_back(why))
            else:
                self._end(why)

    # --- the connection ---------------------------------------------------------------------------

    async def _begin(
        self,
        endpoint: Endpoint,
        handlers: Mapping[str, RequestHandler] | None,
        capabilities: Mapping[str, Any] | None,
    ) -> None:
        self.handlers.update(handlers or {})
        self._capabilities = capabilities or {}
        self._connection = Connection(endpoint, self)
        await self._initialize()

    async def _initialize(self) -> None:
        ours = {"protocol": {"min": PROTOCOL_MIN, "max": PROTOCOL_MAX}, **self._capabilities}
        params = {
            "processId": os.getpid(),
            "clientInfo": {"name": "rlm-host-client", "version": __version__},
            "rootUri": None,
            "capabilities": {"experimental": {"rlm": ours}},
        }
        self.server = await self._now("initialize", params, InitializeResult)
        self._connection.notify("initialized")
        self.connects += 1

    async def _goodbye(self) -> None:
        self._reconnect_s = 0
        with contextlib.suppress(RlmError, TimeoutError):
            async with asyncio.timeout(EXIT_S):
                await self._connection.ask("shutdown", None)
                self._connection.notify("exit")

    async def _ask(self, method: str, params: Payload | None) -> msgspec.Raw:
        """Ask once there is a connection."""
        while self._coming_back is not None:
            await asyncio.wait({self._coming_back})
        if self._gone is not None:
            raise self._gone
        return await self._connection.ask(method, params)

    async def _now(self, method: str, params: Payload | None, result: type[T]) -> T:
        """Ask by the connection that there is, which may not be ready for others yet."""
        return _decoded(method, await self._connection.ask(method, params), result)

    # --- coming back ------------------------------------------------------------------------------

    async def _come_back(self, why: HostLost) -> None:
        try:
            async with asyncio.timeout(self._reconnect_s):
                await self._connection.aclose()
                pause_s = PAUSE_S
                while not await self._is_back():
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
        except TimeoutError:
            self._end(HostLost(f"{why.message} It did not come back."))
            await self._connection.aclose()
        finally:
            self._coming_back = None

    async def _is_back(self) -> bool:
        """Try once; the sessions are attached, and what was missed is on its way, when it is."""
        assert self._socket is not None
        try:
            self._connection = Connection(Endpoint.of_socket(connect(self._socket)), self)
        except OSError:
            return False
        try:
            await self._initialize()
            self.pid = (await self._now("host/status", None, HostStatusResult)).pid
            for session_id in sorted(self._attachments.sessions):
                await self._attach_again(session_id)
        except RlmError:
            await self._connection.aclose()
        return self._connection.lost is None

    async def _attach_again(self, session_id: str) -> None:
        cursor = self.cursors[session_id]
        about: dict[str, Any] = {"session_id": session_id, "seq": cursor.seq, "gen": cursor.gen}
        params = SessionResumeParams(session_id=session_id, cursor=cursor)
        try:
            answer = await self._now("session/resume", params, SessionResumeResult)
        except HostLost:
            raise
        except RlmError as error:
            about["reason"] = "deleted" if isinstance(error, SessionNotFound) else "detached"
            self._say("session/closed", SessionClosed(**about))
            return
        if answer.replay != "complete":
            now = answer.cursor
            about |= {"seq": now.seq, "gen": now.gen}
            self._say("session/resync", SessionResync(**about, cursor=now))

    def _say(self, method: str, payload: msgspec.Struct) -> None:
        """Tell subscriptions what no host will tell them any more."""
        self.heard(HostNotification(method, msgspec.Raw(msgspec.json.encode(payload))))

    def _end(self, why: HostLost) -> None:
        self._gone = self._gone or why
        for subscription in self._subscriptions:
            subscription.end(self._gone)


def _decoded(method: str, raw: msgspec.Raw, result: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=result)
    except UNDECODABLE as why:
        raise RequestFailed(f"The host's answer to {method} cannot be read: {why}.") from why
