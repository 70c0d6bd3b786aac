"""One client's connection, outgoing side: everything leaves through one ordered, bounded queue."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rlm_protocol.base import Params
from rlm_protocol.errors import HostLost, InternalError, RlmError, from_jsonrpc
from rlm_protocol.framing import encode_headers
from rlm_protocol.host import CancelParams
from rlm_protocol.limits import (
    ATTACHMENT_HARD_BYTES,
    ATTACHMENT_SOFT_BYTES,
    CLIENT_IN_FLIGHT,
    KIB,
)
from rlm_protocol.methods import EVENTS
from rlm_protocol.rpc import Answered, Id, RpcPeer

from .endpoint import Endpoint
from .outbox import Outbox

log = logging.getLogger(__name__)

BURST_BYTES = 64 * KIB
"""So much is written without waiting for the end of the loop's pass."""


class ClientAttachment:
    """
    Owns the outgoing half of one connection until `close`.

    What one pass of the loop sends leaves in one write at its end, or earlier at BURST_BYTES;
    the loop finishes what the descriptor does not take. Nothing waits for the client. Everything
    here runs on the loop's thread.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        id_: str,
        on_lost: Callable[[str], None],
        soft_bytes: int = ATTACHMENT_SOFT_BYTES,
        hard_bytes: int = ATTACHMENT_HARD_BYTES,
    ) -> None:
        self.id = id_
        self.peer = RpcPeer(max_in_flight=CLIENT_IN_FLIGHT)
        self._endpoint = endpoint
        self._outbox = Outbox(self._encode, soft_bytes=soft_bytes, hard_bytes=hard_bytes)
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._asked: dict[Id, asyncio.Future[msgspec.Raw]] = {}
        self._on_close: list[Callable[[], None]] = []
        self._watching = False
        self._held = False
        self._flush_comes = False
        self._drained: asyncio.Future[None] | None = None
        self.closed = False
        self.initialized = False
        """Whether the client has shaken hands: it hears nothing before."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the client."""
        return self._outbox.unsent_bytes

    @property
    def dropped_bytes(self) -> int:
        """Bytes of deltas that were not sent because the client was slow."""
        return self._outbox.dropped_bytes

    # --- what handlers use (context.Attachment) ---------------------------------------------------

    def notify(self, method: str, payload: msgspec.Struct) -> None:
        """Queue a notification; see `context.Attachment`."""
        if self.closed:
            return
        if EVENTS[method].droppable:
            self._outbox.put_droppable(method, payload)
            self._queued()
        else:
            self._send(self._encode(method, payload), payload)

    def tell(self, method: str, params: Mapping[str, Any] | msgspec.Struct) -> None:
        """Queue a notification that has no row of the host's: one of LSP. Never dropped."""
        self._send(encode_headers(self.peer.notify(method, params)))

    def ask(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Ask the client something whose answer says nothing."""
        if not self.closed:
            id_, body = self.peer.request(method, params)
            self.peer.forget(id_)
            self._send(encode_headers(body))

    async def request(self, method: str, params: Params | Mapping[str, Any]) -> msgspec.Raw:
        """
        Ask the client; see `context.Attachment`.

        Cancelling the caller tells the client by `$/cancelRequest`; its late answer is swallowed.
        """
        if self.closed:
            raise HostLost("The client is gone.")
        id_, body = self.peer.request(method, params)
        answer: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        self._asked[id_] = answer
        self._send(encode_headers(body))
        try:
            return await answer
        except asyncio.CancelledError:
            self.peer.forget(id_)
            self.tell("$/cancelRequest", CancelParams(id=id_))
            raise
        finally:
            self._asked.pop(id_, None)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when the attachment has ended; at once when it already has."""
        if self.closed:
            callback()
        else:
            self._on_close.append(callback)

    # --- what the connection uses -----------------------------------------------------------------

    def respond(self, id_: Id, result: object) -> None:
        """Answer a request. Raises TypeError, ValueError for a result that JSON cannot carry."""
        if self.closed:
            return
        try:
            body = self.peer.respond(id_, result)
        except UnicodeEncodeError:
            body = self.peer.respond(id_, _scrubbed(result))
        self._answer(body)

    def fail(self, id_: Id, error: RlmError) -> None:
        """Refuse a request."""
        if self.closed:
            return
        try:
            body = self.peer.fail(id_, error)
        except (UnicodeEncodeError, TypeError, ValueError):
            body = self.peer.fail(id_, type(error)(_scrubbed(error.message)))
        self._answer(body)

    def reply_raw(self, body: bytes) -> None:
        """Send an answer that the peer's bookkeeping has already made."""
        self._send(encode_headers(body))

    def answered(self, event: Answered) -> None:
        """Hand the client's answer to whoever asked."""
        future = self._asked.get(event.id)
        if future is None or future.done():
            return
        if event.error is not None:
            future.set_exception(from_jsonrpc(event.error))
        else:
            future.set_result(event.result if event.result is not None else msgspec.Raw(b"null"))

    def hold(self) -> None:
        """Let what is sent from now on wait for `flush`, which the caller promises."""
        self._held = True

    def flush(self) -> None:
        """Write what waits, as far as the descriptor takes it."""
        self._held = self._flush_comes = False
        if self._outbox and not self._watching and not self.closed:
            self._write()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything is written, `timeout_s` at most; tell whether it is."""
        if self._outbox and not self.closed:
            self._drained = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained, timeout_s)
        return not self._outbox

    def close(self) -> None:
        """End: requests of ours fail, callbacks run, nothing is written any more."""
        if self.closed:
            return
        self.closed = True
        self._stop_watching()
        self._outbox.clear()
        for id_ in self.peer.lost():
            future = self._asked.get(id_)
            if future is not None and not future.done():
                future.set_exception(HostLost("The client is gone."))
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    # --- writing ----------------------------------------------------------------------------------

    def _encode(self, method: str, payload: msgspec.Struct) -> bytes:
        try:
            return encode_headers(self.peer.notify(method, payload))
        except UnicodeEncodeError:
            return encode_headers(self.peer.notify(method, _scrubbed(payload)))

    def _answer(self, body: bytes) -> None:
        self._outbox.put(encode_headers(body))
        if self._outbox.slow:
            self._lose("slow")
        elif not self._held:  # somebody waits for it: with what was told before, and at once
            self.flush()
        elif self._outbox.unsent_bytes >= BURST_BYTES:
            self._queued()

    def _send(self, frame: bytes, payload: object = None) -> None:
        if self.closed:
            return
        self._outbox.put(frame, payload)
        if self._outbox.slow:
            self._lose("slow")
        else:
            self._queued()

    def _queued(self) -> None:
        """See to it that what was queued is written."""
        if self._watching:
            return
        if self._outbox.unsent_bytes >= BURST_BYTES:
            self._write()
        elif not (self._held or self._flush_comes):
            self._flush_comes = True
            self._loop.call_soon(self.flush)

    def _write(self) -> None:
        """Write until the descriptor is full or the queue is empty."""
        while (head := self._outbox.head()) is not None:
            try:
                sent = self._endpoint.write(head)
            except OSError as why:
                self._lose(f"the client no longer reads: {why.strerror}")
                return
            if sent == 0:
                self._watch()
                return
            self._outbox.advance(sent)
        if self._watching:
            self._stop_watching()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._loop.add_writer(self._endpoint.write_fd, self._write)

    def _stop_watching(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._endpoint.write_fd)

    def _lose(self, reason: str) -> None:
        self._stop_watching()
        self._outbox.clear()
        self._on_lost(reason)


class Attachments:
    """The open attachments of a host, and what the closed ones have dropped."""

    def __init__(self) -> None:
        self._open: dict[str, ClientAttachment] = {}
        self._dropped_bytes = 0
        self._next = 1

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> str:
        """Give an id that no attachment of this host has had."""
        id_, self._next = f"client-{self._next}", self._next + 1
        return id_

    def add(self, attachment: ClientAttachment) -> None:
        """Count an attachment until it closes."""
        self._open[attachment.id] = attachment
        attachment.on_close(lambda: self._remove(attachment))

    def broadcast(self, method: str, payload: msgspec.Struct, *, but: str) -> None:
        """Notify every client but one."""
        for attachment in tuple(self._open.values()):
            if attachment.initialized and attachment.id != but:
                attachment.notify(method, payload)

    def _remove(self, attachment: ClientAttachment) -> None:
        if self._open.pop(attachment.id, None) is not None:
            self._dropped_bytes += attachment.dropped_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for any client."""
        return sum(a.unsent_bytes for a in self._open.values())

    @property
    def dropped_bytes(self) -> int:
        """Bytes dropped for slow clients since the start."""
        return self._dropped_bytes + sum(a.dropped_bytes for a in self._open.values())


def internal_error(what: str, why: BaseException) -> InternalError:
    """Log one of our bugs under a token; give the answer that names the token and nothing else."""
    token = secrets.token_hex(8)
    log.error("bug %s in %s", token, what, exc_info=why)
    return InternalError(token=token)


def _scrubbed(value: object) -> Any:
    """Give the value as plain data in which no string holds a lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_scrubbed(k): _scrubbed(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(v) for v in value]
    return _scrubbed(msgspec.to_builtins(value)) if isinstance(value, msgspec.Struct) else value
