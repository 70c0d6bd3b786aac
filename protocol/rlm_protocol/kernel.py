"""
What host and runtime say to each other: one JSON object per line (the published protocol 3).

Requests carry their name in `type`, events in `event`. Unknown fields are ignored on both sides; an
unknown event is a value (`UnknownEvent`), an unknown request is a `ProtocolError` event.
"""

from typing import Any, Literal, get_args

import msgspec

from .errors import MalformedFrame
from .framing import UNDECODABLE, decode_error
from .surrogates import mended

UNSET = msgspec.UNSET
Unset = msgspec.UnsetType


# --- requests: host -> runtime --------------------------------------------------------------------


class _Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of every request."""


class Execute(_Request, frozen=True, tag="execute"):
    """Run `code` in the namespace. `silent`: no result event, `_` stays as it is."""

    id: str
    code: str
    silent: bool = False


class Interrupt(_Request, frozen=True, tag="interrupt"):
    """Interrupt request `id`, or without id whatever runs, else what comes next. No reply."""

    id: str | None = None


class HostReply(_Request, frozen=True, tag="host_reply"):
    """Answer to a `host_request` event: `{"status": "ok"|"error", ...}`. No reply."""

    id: str
    data: dict[str, Any]


class Snapshot(_Request, frozen=True, tag="snapshot"):
    """Save the namespace to `path` and its manifest to `manifest_path`, both or neither."""

    id: str
    path: str
    manifest_path: str
    max_bytes: int | Unset = UNSET
    max_variable_bytes: int | Unset = UNSET
    prune_oversized: bool = False


class Restore(_Request, frozen=True, tag="restore"):
    """Load a snapshot into the namespace."""

    id: str
    path: str


class ListNames(_Request, frozen=True, tag="list_names"):
    """List the user's names, sorted; `detail` adds type and size of each."""

    id: str
    detail: bool = False


class Complete(_Request, frozen=True, tag="complete"):
    """Complete `code` at `cursor` (code points). Never runs user code."""

    id: str
    code: str
    cursor: int


class Inspect(_Request, frozen=True, tag="inspect"):
    """Describe what `code` names at `cursor` (code points). Never runs user code."""

    id: str
    code: str
    cursor: int


class Shutdown(_Request, frozen=True, tag="shutdown"):
    """End the runtime; answered with `done` if `id` is given."""

    id: str | None = None


Request = (
    Execute | Interrupt | HostReply | Snapshot | Restore | ListNames | Complete | Inspect | Shutdown
)

# --- events: runtime -> host ----------------------------------------------------------------------


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of every event."""


class Ready(_Event, frozen=True, kw_only=True, tag="ready"):
    """First line of the runtime's output; sent exactly once."""

    protocol: int
    python: str
    runtime: str | None = None
    nonce: str | None = None
    features: tuple[str, ...] = ()
    pid: int | None = None


class Stdout(_Event, frozen=True, kw_only=True, tag="stdout"):
    """Text that was written. `id` is None when no cell can be named as its author."""

    id: str | None = None
    text: str


class Stderr(_Event, frozen=True, kw_only=True, tag="stderr"):
    """Text that was written to standard error."""

    id: str | None = None
    text: str


class Result(_Event, frozen=True, kw_only=True, tag="result"):
    """Repr of a cell's trailing expression; `length` is its true length when it was cut."""

    id: str
    text: str
    length: int | Unset = UNSET


class Display(_Event, frozen=True, kw_only=True, tag="display"):
    """Rich output: mime type -> payload."""

    id: str | None = None
    data: dict[str, Any]


class HostRequest(_Event, frozen=True, kw_only=True, tag="host_request"):
    """A cell asks: `data = {"type": "rlm.run", "payload": {...}}`; answered by HostReply."""

    id: str
    data: dict[str, Any]
    cell: str | Unset | None = UNSET


class Error(_Event, frozen=True, kw_only=True, tag="error"):
    """A cell raised, or (id None, ename ProtocolError) a line of the host was not a request."""

    id: str | None = None
    ename: str
    evalue: str
    traceback: list[str] = []


class SkippedName(msgspec.Struct, frozen=True):
    """A name that a snapshot left out, and why."""

    name: str
    reason: str


class NameDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the variable view."""

    name: str
    type: str
    preview: str
    size: int | None = None


class Done(_Event, frozen=True, kw_only=True, tag="done"):
    """Closes request `id`: exactly one per accepted request, after all its other events."""

    id: str
    status: Literal["ok", "error"]
    nonce: str | Unset = UNSET
    reason: str | Unset = UNSET
    # snapshot
    saved: list[str] | Unset = UNSET
    skipped: list[SkippedName] | Unset = UNSET
    pruned: list[str] | Unset = UNSET
    unverified: bool | Unset = UNSET
    bytes: int | Unset = UNSET
    # restore
    restored: list[str] | Unset = UNSET
    failed: list[SkippedName] | Unset = UNSET
    # list_names
    names: list[str] | Unset = UNSET
    details: list[NameDetail] | Unset = UNSET
    truncated: bool | Unset = UNSET
    # complete
    matches: list[str] | Unset = UNSET
    cursor_start: int | Unset = UNSET
    cursor_end: int | Unset = UNSET
    # inspect
    found: bool | Unset = UNSET
    text: str | Unset = UNSET


class Exited(_Event, frozen=True, kw_only=True, tag="exited"):
    """
    How the kernel ended; negative for a signal. The last event, and only in-band.

    A guard says it that was started with RLM_CONTROL=in-band and has no control socket.
    """

    code: int
    reason: Literal["oom"] | None = None
    """`oom`: it used more memory than its limit."""


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of a newer runtime. Logged and skipped, never fatal."""

    event: str


class BadLine(msgspec.Struct, frozen=True):
    """A line that is no event. The peer's fault, therefore a value."""

    reason: str


Event = Ready | Stdout | Stderr | Result | Display | HostRequest | Error | Done | Exited

_KNOWN_EVENTS = frozenset(t.__struct_config__.tag for t in get_args(Event))
KNOWN_REQUESTS = frozenset(t.__struct_config__.tag for t in get_args(Request))
_decode_event = msgspec.json.Decoder(Event).decode
_peek_event = msgspec.json.Decoder(UnknownEvent).decode
_decode_request = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode
"""Encode any message of this module. Never emits NaN: msgspec writes it as null."""


def decode_event(line: bytes) -> Event | UnknownEvent | BadLine:
    """Decode one line of a runtime. Never raises for what the runtime sent."""
    try:
        return _decode_event(line)
    except UNDECODABLE as why:
        reason = decode_error(why)
    try:
        head = _peek_event(line)
    except UNDECODABLE:
        return BadLine(reason)
    return BadLine(reason) if head.event in _KNOWN_EVENTS else head


def decode_request(line: bytes) -> Request:
    """
    Decode one line of a host.

    Raises:
        MalformedFrame: the line is no request of this protocol; the reason says why.
    """
    try:
        return _decode_request(line)
    except UNDECODABLE as why:
        reason = decode_error(why)
    if (again := mended(line)) is not None:
        return decode_request(again)
    raise MalformedFrame(reason)
