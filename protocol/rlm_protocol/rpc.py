"""
Sans-IO JSON-RPC 2.0 peer: what is open, what may be answered. Works for either side.

Rule 1: every request received is answered exactly once. Answering twice raises here, at the caller.
Rule 2: the peer's mistakes become events (`Violation`), never exceptions.
Rule 3: after `lost()` every open request of ours has been given back as failed, once.
Rule 4: ids of the two directions never meet: each has a map of its own.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .errors import InvalidRequest, MalformedFrame, Overloaded, RlmError, to_jsonrpc
from .framing import UNDECODABLE, decode_error
from .surrogates import mended

Id = int | str
_ID_TYPES = (int, str)
EMPTY, NULL = msgspec.Raw(b"{}"), msgspec.Raw(b"null")


class RequestReceived(msgspec.Struct, frozen=True):
    """The peer asks; answer with `respond` or `fail`."""

    id: Id
    method: str
    params: msgspec.Raw


class NotificationReceived(msgspec.Struct, frozen=True):
    """The peer tells; no answer."""

    method: str
    params: msgspec.Raw


class Answered(msgspec.Struct, frozen=True):
    """One of our requests came back. Exactly one of `result` and `error` is set."""

    id: Id
    result: msgspec.Raw | None = None
    error: dict[str, Any] | None = None


class Violation(msgspec.Struct, frozen=True):
    """The peer broke the protocol. `reply`, if set, is what to send back."""

    reason: str
    reply: bytes | None = None


Event = RequestReceived | NotificationReceived | Answered | Violation


class _Wire(msgspec.Struct):
    jsonrpc: Any = None
    id: Any = UNSET
    method: Any = UNSET
    params: msgspec.Raw = EMPTY
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


class _Sent(msgspec.Struct, tag_field="jsonrpc", tag="2.0"):
    """What every message of ours begins with."""


class _Request(_Sent, tag="2.0"):
    id: Id
    method: str
    params: object


class _Notification(_Sent, tag="2.0"):
    method: str
    params: object


class _Result(_Sent, tag="2.0"):
    id: Id
    result: object


class _Error(_Sent, tag="2.0"):
    id: Id | None
    error: dict[str, Any]


_decode = msgspec.json.Decoder(_Wire).decode
_decode_error = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class RpcPeer:
    """One end of a connection. Every method is synchronous; nothing here waits."""

    def __init__(self, *, max_in_flight: int | None = None) -> None:
        self._max = max_in_flight
        self._next_id = 1
        self._ours: set[Id] = set()
        self._forgotten: set[Id] = set()
        self._theirs: set[Id] = set()

    @property
    def open_ours(self) -> frozenset[Id]:
        """Ids of our requests that wait for an answer."""
        return frozenset(self._ours)

    @property
    def open_theirs(self) -> frozenset[Id]:
        """Ids of the peer's requests that we still owe an answer."""
        return frozenset(self._theirs)

    def request(self, method: str, params: object) -> tuple[int, bytes]:
        """Open a request of ours. Returns its id and the bytes to send."""
        id_, self._next_id = self._next_id, self._next_id + 1
        self._ours.add(id_)
        return id_, _encode(_Request(id_, method, params))

    def forget(self, id_: Id) -> None:
        """Give up on a request of ours: its late answer is swallowed, not a violation."""
        if id_ in self._ours:
            self._ours.remove(id_)
            self._forgotten.add(id_)

    def notify(self, method: str, params: object) -> bytes:
        """Give the bytes of a notification."""
        return _encode(_Notification(method, params))

    def respond(self, id_: Id, result: object) -> bytes:
        """
        Answer a request of theirs. Raises KeyError if it is not open.

        A result that JSON cannot carry raises TypeError or ValueError, and the request stays open.
        """
        body = _encode(_Result(id_, result))
        self._theirs.remove(id_)
        return body

    def fail(self, id_: Id, error: RlmError) -> bytes:
        """Refuse a request of theirs. Raises as `respond` does."""
        body = refusal(error, id_)
        self._theirs.remove(id_)
        return body

    def receive(self, frame: bytes) -> Event:
        """Turn one frame into one event. Never raises for what the peer sent."""
        try:
            if not frame.isascii():
                frame.decode()  # what msgspec skips it does not check
            wire = _decode(frame)
        except UNDECODABLE as why:
            if (again := mended(frame)) is not None:
                return self.receive(again)
            if _is_json(frame):
                return _violation(InvalidRequest("A message is one JSON object; no batches."))
            return _violation(MalformedFrame(reason=decode_error(why)))
        id_, method = wire.id, wire.method
        if method is UNSET and (wire.error is not UNSET or wire.result is not UNSET):
            return self._answered(wire)
        known_id = id_ if type(id_) in _ID_TYPES else None
        if wire.jsonrpc != "2.0":
            return _violation(InvalidRequest('`jsonrpc` must be "2.0".'), known_id)
        if not isinstance(method, str):
            return _violation(InvalidRequest("`method` must be a string."), known_id)
        if known_id is None:
            if id_ is UNSET:
                return NotificationReceived(method, wire.params)
            return _violation(InvalidRequest("`id` must be a string or an integer."))
        theirs = self._theirs
        if known_id in theirs:
            # The first request keeps its answer; this one is refused under the same id.
            return _violation(InvalidRequest("This id is already in flight."), known_id)
        if self._max is not None and len(theirs) >= self._max:
            return _violation(Overloaded(max_in_flight=self._max), known_id)
        theirs.add(known_id)
        return RequestReceived(known_id, method, wire.params)

    def _answered(self, wire: _Wire) -> Event:
        id_ = wire.id
        if id_ is None or id_ is UNSET:
            # The peer could not read us. Answering would start a ping-pong of refusals.
            return Violation("the peer refused an unreadable message")
        if _valid_id(id_) and id_ in self._forgotten:
            self._forgotten.remove(id_)
            return Violation("a late answer to a request that was given up")
        if not _valid_id(id_) or id_ not in self._ours:
            return Violation("an answer to no open request")
        self._ours.remove(id_)
        if isinstance(wire.error, msgspec.Raw):
            try:
                error = _decode_error(wire.error)
            except UNDECODABLE:
                error = {"code": -32600, "message": "the peer's error is not an object"}
            return Answered(id_, error=error)
        return Answered(id_, result=NULL if wire.result is UNSET else wire.result)

    def lost(self) -> list[Id]:
        """Note that the connection is gone. Returns our open requests, which now have failed."""
        open_, self._ours, self._theirs = sorted(self._ours, key=str), set(), set()
        return open_


def _valid_id(id_: object) -> bool:
    return type(id_) in _ID_TYPES


def _is_json(frame: bytes) -> bool:
    try:
        msgspec.json.decode(frame)
    except UNDECODABLE:
        return False
    return True


def refusal(error: RlmError, id_: Id | None = None) -> bytes:
    """Give the bytes of a refusal; without an id, of what could not be read as a request."""
    return _encode(_Error(id_, to_jsonrpc(error)))


def _violation(error: RlmError, id_: Id | None = None) -> Violation:
    return Violation(str(error), reply=refusal(error, id_))
