"""Items: the visible parts of a turn. A tagged union on `type`; deltas are increments only."""

from typing import Any, Literal

import msgspec

from .base import AtMs, ErrorInfo, SessionNotification

ItemStatus = Literal["inProgress", "completed", "failed", "interrupted"]
Outcome = Literal["submitted", "replied", "endedWithoutReply", "failed", "cancelled"]
"""How a child's task ended."""


class _Item(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    """Base of every item."""

    id: str
    turn_id: str | None = None
    status: ItemStatus = "completed"
    started_at_ms: AtMs = 0
    completed_at_ms: AtMs | None = None


class UserMessage(_Item, frozen=True, kw_only=True, tag="userMessage"):
    """What a person or a program asked."""

    text: str
    client_message_id: str | None = None


class AgentMessage(_Item, frozen=True, kw_only=True, tag="agentMessage"):
    """What the model said."""

    text: str


class Reasoning(_Item, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought, where its provider shows it."""

    text: str


class ReplCell(_Item, frozen=True, kw_only=True, tag="replCell"):
    """A piece of code and what came of it. Long output lies in an artifact."""

    code: str
    author: Literal["model", "client", "child", "host"] = "model"
    kernel: int = 0
    """Incarnation of the kernel, from 1; 0 when the cell never reached one."""
    ordinal: int = 0
    stdout: str = ""
    stderr: str = ""
    result: str | None = None
    error: "CellError | None" = None
    truncated: bool = False
    artifact: str | None = None
    display: tuple[dict[str, Any], ...] = ()


class CellError(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a cell raised, in Python's terms."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


class ToolCall(_Item, frozen=True, kw_only=True, tag="toolCall"):
    """
    A call of a client's tool from the cell `cell_id`, or of one that the model made up.

    Of a call that is too long to be shown, arguments and result lie in an artifact, as JSON.
    """

    name: str
    arguments: dict[str, Any]
    result: Any = None
    error: ErrorInfo | None = None
    cell_id: str | None = None
    truncated: bool = False
    artifact: str | None = None


class ChildSpawn(_Item, frozen=True, kw_only=True, tag="childSpawn"):
    """A child session that was admitted."""

    child_id: str
    name: str
    model: str
    prompt: str


class ChildMessage(_Item, frozen=True, kw_only=True, tag="childMessage"):
    """A message of another agent of the family, or the end notice of a child."""

    sender_id: str
    sender_name: str
    relationship: Literal["parent", "sibling", "child"]
    text: str
    notice: Outcome | None = None


class Compaction(_Item, frozen=True, kw_only=True, tag="compaction"):
    """Earlier turns were replaced by a summary in the model's context."""

    summary: str
    tokens_before: int


class GoalChange(_Item, frozen=True, kw_only=True, tag="goalChange"):
    """The session's goal changed its status."""

    goal_id: str
    status_text: str
    reason: str | None = None


class LoopGenerationItem(_Item, frozen=True, kw_only=True, tag="loopGeneration"):
    """A generation of a loop that belongs to this session."""

    run_id: str
    generation: int
    action: str
    reward: float | None = None


class Notice(_Item, frozen=True, kw_only=True, tag="notice"):
    """Something that happened beside the conversation."""

    level: Literal["info", "warning"]
    text: str


class ErrorItem(_Item, frozen=True, kw_only=True, tag="error"):
    """Something failed in this turn."""

    error: ErrorInfo


Item = (
    UserMessage
    | AgentMessage
    | Reasoning
    | ReplCell
    | ToolCall
    | ChildSpawn
    | ChildMessage
    | Compaction
    | GoalChange
    | LoopGenerationItem
    | Notice
    | ErrorItem
)


class ItemStarted(SessionNotification, frozen=True):
    """An item appeared; its text so far is in it."""

    item: Item


class ItemDelta(SessionNotification, frozen=True):
    """More text of an item: append `text` at character `offset` of `channel`."""

    item_id: str
    channel: Literal["text", "code", "stdout", "stderr", "result"]
    offset: int
    text: str


class ItemCompleted(SessionNotification, frozen=True):
    """The item as it will stay."""

    item: Item
