"""
The journal of a session: one closed, tagged union of past facts, and the line that carries each.

A line is one JSON object: `{"seq", "gen", "at", "type", ...fields of the record..., "crc"}`. `seq`
grows by one with every record; `gen` grows only when old cursors stop being true; `at` is wall
clock in milliseconds; `crc` is the CRC-32 of everything before it. Records of a newer minor version
are values (`UnknownRecord`), never a failure; a newer `schema` in the header refuses the journal.
"""

import zlib
from typing import Any, Literal, get_args

import msgspec

from .base import ErrorInfo
from .child import BudgetReserved as BudgetReserved
from .child import BudgetSettled as BudgetSettled
from .child import BudgetWarned as BudgetWarned
from .child import ChildAdmitted as ChildAdmitted
from .child import ChildDeleted as ChildDeleted
from .child import ChildRecord as ChildRecord
from .child import ChildStatusChanged as ChildStatusChanged
from .child import ChildUsageAttributed as ChildUsageAttributed
from .framing import UNDECODABLE, decode_error
from .host import Decision
from .item import Item
from .record import Record as _Record
from .session import SessionOptions, Thinking
from .turn import TurnStatus
from .usage import Budget, Usage

SCHEMA = 1
"""Of the journal's records. A journal with a greater number was written by a newer host."""
CRC_BYTES = len(b',"crc":"00000000"}')


# --- the session itself ---------------------------------------------------------------------------


class ParentLink(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whose child a session is. `turn_id` and `item_id` are the parent's, when it was spawned."""

    session_id: str
    root_id: str
    child_id: str
    directory: str
    """The child's folder, relative to the artifact folder of the root session."""
    depth: int
    max_depth: int
    turn_id: str | None = None
    item_id: str | None = None


class ForkOrigin(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """
    Where a fork's records come from and what became of the kernel.

    `restored`: the fork's first cell finds the names of `snapshot`, the newest at or before its
    turn, taken after the cell `item_id`. `lost`: there was a kernel, and no such snapshot is kept.
    """

    session_id: str
    turn_id: str | None
    seq: int
    kernel: Literal["restored", "none", "lost"] = "none"
    snapshot: str | None = None
    item_id: str | None = None


class SessionOpened(_Record, frozen=True, kw_only=True, tag="session_opened"):
    """
    The header: always the first record.

    `options` holds no value of an environment variable, only `env_names`. `prompt` is the whole
    system prompt, so that every later request begins with the same bytes. `key` and `request` are
    the idempotency key of the creation and the SHA-256 of its parameters.
    """

    schema: int = SCHEMA
    session_id: str
    name: str
    cwd: str
    model: str
    prompt: str
    max_depth: int
    thinking: Thinking | None = None
    ephemeral: bool = False
    options: SessionOptions = SessionOptions()
    env_names: tuple[str, ...] = ()
    instruction_files: tuple[str, ...] = ()
    parent: ParentLink | None = None
    fork: ForkOrigin | None = None
    host_version: str = ""
    key: str | None = None
    request: str | None = None


class SessionRenamed(_Record, frozen=True, tag="session_renamed"):
    """The session has another name."""

    name: str


class SessionConfigured(_Record, frozen=True, tag="session_configured"):
    """The options as they are from now on, whole. `prompt` is given when it changed."""

    options: SessionOptions
    env_names: tuple[str, ...] = ()
    prompt: str | None = None


class ModelChanged(_Record, frozen=True, tag="model_changed"):
    """Requests go to this model from now on."""

    model: str
    thinking: Thinking | None = None


class SessionArchived(_Record, frozen=True, tag="session_archived"):
    """The session left the usual list, or came back to it."""

    archived: bool


class SessionDeleted(_Record, frozen=True, tag="session_deleted"):
    """A tombstone: the session is never opened again; its files stay."""


class DamageFound(_Record, frozen=True, tag="damage_found"):
    """
    A span of this journal could not be read. Its bytes are kept in `file`.

    Records with a `seq` between `after_seq` and `before_seq` (both exclusive) may be missing.
    """

    offset: int
    size_bytes: int
    sha256: str
    after_seq: int
    before_seq: int | None
    file: str
    reason: str


# --- turns ----------------------------------------------------------------------------------------

Origin = Literal["client", "queue", "message", "notice", "schedule", "goal"]
"""What made a turn start. A person's turn is `client` or `queue`."""
Phase = Literal["accepted", "request", "cell"]
"""What a turn was doing when it was cut short."""


class TurnAccepted(_Record, frozen=True, tag="turn_accepted"):
    """
    A turn that was made durable and runs. What was said follows as completed items.

    `tree` is an optional workspace tree id.
    """

    turn_id: str
    origin: Origin = "client"
    client_message_id: str | None = None
    output_schema: dict[str, Any] | None = None
    budget: Budget | None = None
    tree: str | None = None


class ProviderIntent(_Record, frozen=True, tag="provider_intent"):
    """
    A provider request that is about to go out. `sha256` is that of the canonical request.

    An intent that nothing follows was cut off by a crash: it is closed, never sent again.
    """

    turn_id: str
    attempt: int
    """Counts the requests of a turn from 1; a retry is a new attempt."""
    model: str
    sha256: str
    messages: int


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One tool call of an answer."""

    id: str
    name: str
    arguments: dict[str, Any]


class ProviderOutcome(_Record, frozen=True, tag="provider_outcome"):
    """The whole answer to an attempt. `opaque` is the vendor's, for the same model only."""

    turn_id: str
    attempt: int
    model: str
    stop: Literal["end", "tool_calls", "length", "content_filter"]
    usage: Usage
    text: str = ""
    thinking: str = ""
    calls: tuple[ToolUse, ...] = ()
    opaque: bytes = b""


class ProviderFailed(_Record, frozen=True, tag="provider_failed"):
    """
    An attempt without an answer. `kind` is the provider's, or `interrupted`.

    `usage` counts one unmeasured response when the vendor had begun to answer.
    """

    turn_id: str
    attempt: int
    kind: str
    message: str
    retryable: bool = False
    usage: Usage = Usage()


class CellStarted(_Record, frozen=True, tag="cell_started"):
    """A cell is handed to the kernel. It is never run a second time by the host."""

    item_id: str
    code: str
    author: Literal["model", "client", "child", "host"]
    turn_id: str | None = None
    call_id: str | None = None


class ToolCallStarted(_Record, frozen=True, tag="tool_call_started"):
    """A client is asked to run a tool for a cell. It is never asked a second time."""

    item_id: str
    name: str
    arguments: dict[str, Any]
    cell_id: str | None = None
    turn_id: str | None = None
    artifact: str | None = None
    """Holds the arguments when they are too long for a record."""


class ApprovalAsked(_Record, frozen=True, tag="approval_asked"):
    """
    Something waits for a person. `detail` is what was shown, None when it is too long for a record.

    One that nothing follows was cut off by a crash: it is closed as cancelled, nothing was done.
    """

    approval_id: str
    what: Literal["cell", "spawn", "tool"]
    expires_at_ms: int
    detail: dict[str, Any] | None = None
    turn_id: str | None = None
    cell_id: str | None = None


class ApprovalSettled(_Record, frozen=True, tag="approval_settled"):
    """It was decided, or need not be any more. Nothing is done before this is durable."""

    approval_id: str
    decision: Decision
    reason: str | None = None


class ItemCompleted(_Record, frozen=True, tag="item_completed"):
    """
    An item as it will stay.

    `shown` is what the model sees of it: the result of tool call `call_id`, else a message to it.
    A userMessage is shown as its text when `shown` is missing; other items are then not shown.
    """

    item: Item
    shown: str | None = None
    call_id: str | None = None


class TurnCompleted(_Record, frozen=True, tag="turn_completed"):
    """The turn's terminal event. `phase` says where it was cut short."""

    turn_id: str
    status: TurnStatus
    usage: Usage = Usage()
    error: ErrorInfo | None = None
    output: Any = None
    phase: Phase | None = None


class ContextCompacted(_Record, frozen=True, tag="context_compacted"):
    """The model's context starts anew: `summary` stands for everything before `kept_from_seq`."""

    summary: str
    kept_from_seq: int
    item_id: str
    tokens_before: int = 0


# --- inputs that wait -----------------------------------------------------------------------------


class InputQueued(_Record, frozen=True, tag="input_queued"):
    """
    Something was said to the session and waits: a follow-up, a message, a notice.

    It is taken up when the item with its id is completed.
    `mode` `steer` enters a running turn before its next request, `follow_up` waits for its end;
    both start a turn when the session is idle.
    """

    item: Item
    origin: Origin
    mode: Literal["steer", "follow_up"]
    shown: str | None = None


class InputWithdrawn(_Record, frozen=True, tag="input_withdrawn"):
    """A waiting input is not needed any more."""

    item_id: str


class InputsHeld(_Record, frozen=True, tag="inputs_held"):
    """A person stopped the whole tree: what waits starts no turn until a person starts one."""


# --- requests, kernel, usage ----------------------------------------------------------------------


class RequestReceived(_Record, frozen=True, tag="request_received"):
    """A mutating request with an idempotency key was taken. `request` is the SHA-256 of params."""

    key: str
    method: str
    request: str


class RequestRecorded(_Record, frozen=True, tag="request_recorded"):
    """
    Its result or its error, for every repeat of the key.

    Without `done` it was refused before anything happened, and may run again.
    """

    key: str
    done: bool
    result: Any = None
    error: dict[str, Any] | None = None


class KernelStarted(_Record, frozen=True, tag="kernel_started"):
    """A kernel process serves the session: `incarnation` counts them from 1."""

    incarnation: int
    reason: Literal["first", "died", "killed", "restarted", "resumed"]
    restored: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    refused: str | None = None


class SnapshotTaken(_Record, frozen=True, tag="snapshot_taken"):
    """
    The namespace lies in the session's kernel state, as it was after the cell `item_id`.

    `snapshot` finds the payload while it is kept; `skipped` names are not in it.
    """

    item_id: str | None
    saved: int
    skipped: tuple[str, ...] = ()
    size_bytes: int = 0
    snapshot: str = ""


class UsageRecorded(_Record, frozen=True, tag="usage_recorded"):
    """Own usage outside of provider outcomes, for example of a compaction or a refinement."""

    purpose: str
    usage: Usage
    turn_id: str | None = None


# --- the union ------------------------------------------------------------------------------------

Record = (
    SessionOpened
    | SessionRenamed
    | SessionConfigured
    | ModelChanged
    | SessionArchived
    | SessionDeleted
    | DamageFound
    | TurnAccepted
    | ProviderIntent
    | ProviderOutcome
    | ProviderFailed
    | CellStarted
    | ToolCallStarted
    | ApprovalAsked
    | ApprovalSettled
    | ItemCompleted
    | TurnCompleted
    | ContextCompacted
    | InputQueued
    | InputWithdrawn
    | InputsHeld
    | RequestReceived
    | RequestRecorded
    | KernelStarted
    | SnapshotTaken
    | UsageRecorded
    | ChildRecord
)


class UnknownRecord(msgspec.Struct, frozen=True):
    """A record of a newer minor version: kept on disk, skipped by folds."""

    type: str


class Entry(msgspec.Struct, frozen=True):
    """One record with its place in the journal. `at_ms` is wall clock."""

    seq: int
    gen: int
    at_ms: int
    record: Record | UnknownRecord


class BadRecord(msgspec.Struct, frozen=True):
    """A line that is no record, or not the one that was written. The disk's fault: a value."""

    reason: str


class _Head(msgspec.Struct, frozen=True):
    seq: int
    gen: int
    at: int
    type: str


KNOWN = frozenset(t.__struct_config__.tag for t in get_args(Record))
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_record = msgspec.json.Decoder(Record).decode
_encode = msgspec.json.Encoder().encode


def encode_line(record: Record, *, seq: int, gen: int, at_ms: int) -> bytes:
    """Give the line, with its newline."""
    head = b'{"seq":%d,"gen":%d,"at":%d,' % (seq, gen, at_ms)
    body = head + _encode(record)[1:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def crc_of(line: bytes) -> bytes:
    """Give the checksum that a valid line (without its newline) carries."""
    return line[-10:-2]


def decode_line(line: bytes) -> Entry | BadRecord:
    """Read a line without its newline. Never raises for what lies on the disk."""
    body, tail = line[:-CRC_BYTES], line[-CRC_BYTES:]
    if tail != b',"crc":"%08x"}' % zlib.crc32(body):
        return BadRecord("the checksum does not fit")
    try:
        head = _decode_head(line)
        record = _decode_record(line) if head.type in KNOWN else UnknownRecord(head.type)
    except UNDECODABLE as why:
        return BadRecord(decode_error(why))
    return Entry(head.seq, head.gen, head.at, record)
