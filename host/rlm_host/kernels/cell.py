"""What a kernel's owner gives and gets: cells, their outcomes, reports. Pure data, no behaviour."""

from collections.abc import Awaitable, Callable
from enum import StrEnum, auto
from typing import Any, Literal

import msgspec

from rlm_protocol import kernel

OutputEvent = kernel.Stdout | kernel.Stderr | kernel.Result | kernel.Display | kernel.Error
"""What a cell shows. `Done` is not among them: it ends the call that waits for it."""

OnEvent = Callable[[OutputEvent], None]
"""Called in the loop, in order, for each event of a cell; must not block and must not raise."""

OnSaved = Callable[["SnapshotReport"], Awaitable[None]]
"""Awaited in the kernel's worker after each snapshot, whoever asked for it; must not raise."""

HostRequests = Callable[[str, dict[str, Any], str | None], Awaitable[object]]
"""
`(type, payload, cell_id)` → result, for a cell's `rlm.host_request`. Raises RlmError to refuse; an
unknown type raises MethodNotFound. Cancelled when the cell gives up waiting or the kernel ends.
"""


class KernelStatus(StrEnum):
    """What a session's kernel is doing, as `repl/status` shows it."""

    ABSENT = auto()
    """No process: not started yet, or gone. The next cell starts one."""
    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    INTERRUPTING = auto()
    STOPPING = auto()


class Revival(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a new kernel process brought back of an earlier one, to be told to the model.

    `reason` says why the earlier process is gone; `restored` and `failed` are names. Without a
    usable snapshot both are empty and `refused` says why.
    """

    reason: Literal["died", "killed", "restarted", "resumed"]
    restored: tuple[str, ...] = ()
    failed: tuple[kernel.SkippedName, ...] = ()
    refused: str | None = None


class CellOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a cell ended.

    `interrupted` cells carry no result; `kernel_killed` then says that the cell did not yield, so
    that the process was killed and names newer than the last snapshot are lost.
    """

    cell_id: str
    status: Literal["ok", "error", "interrupted"]
    duration_ms: int
    result: str | None = None
    result_length: int | None = None
    """True number of characters of the repr; more than `len(result)` when it was cut."""
    error: kernel.Error | None = None
    kernel_killed: bool = False
    revival: Revival | None = None
    """Set on the first cell of a process that took an earlier one's place."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The user's names in the namespace, sorted; `truncated` when a frame could not hold all."""

    names: tuple[str, ...] = ()
    details: tuple[kernel.NameDetail, ...] = ()
    truncated: bool = False


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Completions that replace `code[cursor_start:cursor_end]` (code points)."""

    matches: tuple[str, ...] = ()
    cursor_start: int = 0
    cursor_end: int = 0


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the name under the cursor; `text` is empty when nothing was found."""

    found: bool = False
    text: str = ""


class SnapshotReport(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a snapshot holds. Names in `skipped` will not come back.

    `id` finds the snapshot again while it is kept; `cell_id` is the last cell that ran before it.
    """

    id: str = ""
    cell_id: str | None = None
    saved: tuple[str, ...] = ()
    skipped: tuple[kernel.SkippedName, ...] = ()
    pruned: tuple[str, ...] = ()
    size_bytes: int = 0
    unverified: bool = False
