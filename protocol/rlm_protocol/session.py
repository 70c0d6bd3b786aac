"""Sessions: what a client creates, reads, resumes and ends."""

from typing import Annotated, Any, Literal

import msgspec

from .base import (
    AtMs,
    Cursor,
    Id,
    IdempotencyKey,
    Name,
    PageSize,
    Params,
    Result,
    SessionNotification,
    Text,
)
from .item import Item
from .limits import KERNEL_MEMORY_MIN_BYTES, TOOL_DESCRIPTION_CHARS, TOOLS_MAX
from .usage import Budget, Usage

SessionStatus = Literal["idle", "running", "completed", "error", "cancelled", "deleted", "queued"]
"""`queued`, `completed`, `error`, `cancelled` and `deleted` are states of children only."""
Thinking = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
Ask = Literal["never", "ask"]


class KernelRecipe(Params, frozen=True):
    """Which Python a kernel runs in, and inside what; every field has a default resolution."""

    python: str | None = None
    launcher: tuple[str, ...] | None = None
    sandbox: Literal["workspace"] | None = None
    """A launcher of the host's own. Where it cannot be had no kernel is started."""
    network: bool | None = None
    """Lets a sandbox reach the network; off by default."""
    memory_bytes: Annotated[int, msgspec.Meta(ge=KERNEL_MEMORY_MIN_BYTES)] | None = None
    """What the kernel's processes may use together."""
    env: dict[str, str] | None = None
    """Variables for the kernel. Values are used, never journaled: the journal holds the names."""


class ClientTool(Params, frozen=True):
    """
    A function of the client that a cell can await as `tools.NAME(...)`.

    `name` is a Python identifier that does not begin with `_`. `input_schema` is JSON Schema, draft
    2020-12, of an object: the keyword arguments. It has no remote references and 64 KiB at most.
    """

    name: Name
    description: Annotated[str, msgspec.Meta(max_length=TOOL_DESCRIPTION_CHARS)]
    input_schema: dict[str, Any]


class Approvals(Params, frozen=True):
    """
    What waits for a person: cells of the model, spawns and tool calls of cells.

    A client's own `repl/execute` and `agent/spawn` wait for nobody.
    """

    cells: Ask = "never"
    spawns: Ask = "never"
    tools: Ask = "never"


OnDetach = Literal["stop", "finish", "keep"]
"""
What becomes of a session and its children when nobody is attached any more.

`stop` ends it, `finish` ends it when nothing of it runs any more, `keep` lets it go on.
"""


class SessionOptions(Params, frozen=True):
    """
    Typed options of a session: in its journal header, inherited by children field by field.

    Tools are not inherited: a spawn names those that its child gets.
    """

    recipe: KernelRecipe | None = None
    instructions: str | None = None
    tools: Annotated[tuple[ClientTool, ...], msgspec.Meta(max_length=TOOLS_MAX)] | None = None
    budget: Budget | None = None
    approvals: Approvals | None = None
    on_detach: OnDetach | None = None
    """Default: `stop` on a host that a client spawned, `keep` on one that serves a socket."""
    labels: dict[str, str] | None = None


class Session(Result, frozen=True):
    """
    What a client sees of a session.

    `options` are as they are now, without the values of variables; null in a list.
    """

    id: str
    name: str
    cwd: str
    model: str
    status: SessionStatus
    depth: int
    max_depth: int
    created_at_ms: AtMs
    updated_at_ms: AtMs
    turns: int
    journal_path: str | None
    artifacts_path: str
    gen: int
    seq: int
    thinking: Thinking | None = None
    parent_id: str | None = None
    root_id: str | None = None
    ephemeral: bool = False
    archived: bool = False
    usage: Usage = Usage()
    active_turn_id: str | None = None
    options: SessionOptions | None = None


class SessionCreateParams(Params, frozen=True):
    """Create a session. Its kernel starts with its first cell."""

    cwd: Text
    model: str | None = None
    name: Name | None = None
    thinking: Thinking | None = None
    ephemeral: bool = False
    options: SessionOptions | None = None
    idempotency_key: IdempotencyKey | None = None


class SessionResult(Result, frozen=True):
    """One session."""

    session: Session


class SessionParams(Params, frozen=True):
    """Name one session."""

    session_id: Id


class SessionMutateParams(Params, frozen=True):
    """Change one session."""

    session_id: Id
    idempotency_key: IdempotencyKey | None = None


class SessionListParams(Params, frozen=True):
    """A page of root sessions, newest first."""

    cursor: str | None = None
    limit: PageSize = 50
    search: str | None = None
    archived: bool = False


class SessionListResult(Result, frozen=True):
    """`next_cursor` is null on the last page."""

    sessions: tuple[Session, ...]
    next_cursor: str | None = None


class SessionItemsParams(Params, frozen=True):
    """A page of a session's items in order."""

    session_id: Id
    cursor: str | None = None
    limit: PageSize = 200
    turn_id: Id | None = None


class SessionItemsResult(Result, frozen=True):
    """`next_cursor` is null on the last page."""

    items: tuple[Item, ...]
    next_cursor: str | None = None


class SessionResumeParams(Params, frozen=True):
    """Attach to a session; with a cursor, exactly the missed records are replayed."""

    session_id: Id
    cursor: Cursor | None = None


class SessionResumeResult(Result, frozen=True):
    """`complete`: all missed records follow; `partial` or `none`: read the session anew."""

    session: Session
    replay: Literal["complete", "partial", "none"]
    cursor: Cursor


class SessionRenameParams(Params, frozen=True):
    """Give a session another name."""

    session_id: Id
    name: Name
    idempotency_key: IdempotencyKey | None = None


class SessionConfigureParams(Params, frozen=True):
    """Change a session's options; a missing field stays as it is."""

    session_id: Id
    options: SessionOptions
    idempotency_key: IdempotencyKey | None = None


class SessionForkParams(Params, frozen=True):
    """Copy a session's journal up to the end of a turn into a new session."""

    session_id: Id
    at_turn_id: Id | None = None
    name: Name | None = None
    idempotency_key: IdempotencyKey | None = None


class SessionTreeParams(Params, frozen=True):
    """Read a session and its descendants with their usage."""

    session_id: Id


class TreeNode(Result, frozen=True):
    """One session of the tree: Σ `own` over all nodes equals the root's `subtree`."""

    id: str
    name: str
    model: str
    status: SessionStatus
    depth: int
    own: Usage
    subtree: Usage
    turns: int
    children: tuple["TreeNode", ...] = ()


class SessionTreeResult(Result, frozen=True):
    """The tree below the session that was asked for."""

    root: TreeNode


class SessionCreated(SessionNotification, frozen=True):
    """A root session appeared; told to every client of the host but the one that created it."""

    session: Session


class SessionUpdated(SessionNotification, frozen=True):
    """Name, model or options of a session changed."""

    session: Session


class SessionStatusChanged(SessionNotification, frozen=True):
    """The session started or stopped working."""

    status: SessionStatus


class SessionClosed(SessionNotification, frozen=True):
    """The host let go of the session."""

    reason: Literal["detached", "archived", "deleted", "shutdown", "slow"]


class SessionResync(SessionNotification, frozen=True):
    """Deltas were dropped for this attachment: resume from `cursor`."""

    cursor: Cursor


class SessionQuiet(SessionNotification, frozen=True):
    """No turn, no child, no background command and nothing queued is left in the session."""
