"""The session's kernel, as a client uses it."""

from typing import Any, Literal

from .base import AtMs, Count, Id, IdempotencyKey, Params, Result, SessionNotification
from .item import CellError
from .kernel import NameDetail, SkippedName

KernelStatus = Literal["none", "starting", "idle", "busy", "interrupting", "dead"]


class ReplExecuteParams(Params, frozen=True):
    """Run a cell in the session's namespace. Answers when the cell is done."""

    session_id: Id
    code: str
    silent: bool = False
    idempotency_key: IdempotencyKey | None = None


class ReplExecuteResult(Result, frozen=True):
    """What came of the cell. Output streamed by `item/delta`; the item has it whole."""

    cell_id: str
    status: Literal["ok", "error", "interrupted"]
    result: str | None = None
    error: CellError | None = None
    truncated: bool = False
    artifact: str | None = None


class ReplInterruptParams(Params, frozen=True):
    """Interrupt one cell, or whatever runs."""

    session_id: Id
    cell_id: Id | None = None
    idempotency_key: IdempotencyKey | None = None


class ReplInterruptResult(Result, frozen=True):
    """Whether there was something to interrupt."""

    interrupted: bool


class ReplCodeParams(Params, frozen=True):
    """Code with a cursor, counted in code points."""

    session_id: Id
    code: str
    cursor: Count


class ReplCompleteResult(Result, frozen=True):
    """Replace `code[cursor_start:cursor_end]` by one of `matches`."""

    matches: tuple[str, ...]
    cursor_start: int
    cursor_end: int


class ReplInspectResult(Result, frozen=True):
    """Signature, value and docstring as plain text."""

    found: bool
    text: str


class ReplNamesParams(Params, frozen=True):
    """List the user's names."""

    session_id: Id
    detail: bool = False


class ReplNamesResult(Result, frozen=True):
    """Sorted names; `details` when asked for."""

    names: tuple[str, ...]
    details: tuple[NameDetail, ...] = ()
    truncated: bool = False


class ReplRestartParams(Params, frozen=True):
    """End the kernel and start another, with or without its last snapshot."""

    session_id: Id
    restore: bool = False
    idempotency_key: IdempotencyKey | None = None


class ReplRestoreResult(Result, frozen=True):
    """What came back."""

    restored: tuple[str, ...]
    failed: tuple[SkippedName, ...] = ()
    reason: str | None = None


class ReplRestoreParams(Params, frozen=True):
    """Load a snapshot over the namespace: the last one, or an earlier one that is still kept."""

    session_id: Id
    snapshot_id: Id | None = None
    idempotency_key: IdempotencyKey | None = None


class SnapshotInfo(Result, frozen=True):
    """One snapshot on disk; the `current` one is what a new process starts from."""

    id: str
    taken_at_ms: AtMs
    size_bytes: Count
    current: bool = False


class ReplSnapshotsResult(Result, frozen=True):
    """Newest first. Earlier ones are kept as long as there is room."""

    snapshots: tuple[SnapshotInfo, ...]


class ReplSnapshotResult(Result, frozen=True):
    """What was saved."""

    id: str
    saved: tuple[str, ...]
    skipped: tuple[SkippedName, ...] = ()
    size_bytes: int = 0


class ReplStatusChanged(SessionNotification, frozen=True):
    """The kernel's state; after a revival, what came back."""

    status: KernelStatus
    incarnation: int
    pid: int | None = None
    queued: int = 0
    reason: str | None = None


class ReplOutput(SessionNotification, frozen=True):
    """Output that belongs to no running item."""

    channel: Literal["stdout", "stderr", "display"]
    text: str = ""
    data: dict[str, Any] | None = None
