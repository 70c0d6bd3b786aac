"""Children of a session, as a client sees them."""

from typing import Any, Literal

import msgspec

from .base import AtMs, Id, IdempotencyKey, Params, Result, SessionNotification, Text
from .usage import Usage

AgentStatus = Literal["queued", "running", "completed", "error", "cancelled", "deleted"]


class Agent(Result, frozen=True):
    """One child session."""

    child_id: str
    session_id: str
    name: str
    model: str
    status: AgentStatus
    depth: int
    generation: int
    created_at_ms: AtMs
    session_dir: str
    usage: Usage = Usage()
    active_session_id: str | None = None
    result_path: str | None = None
    error: str | None = None
    children: int = 0


class AgentListParams(Params, frozen=True):
    """List a session's direct children, terminal ones included."""

    session_id: Id


class AgentListResult(Result, frozen=True):
    """In order of admission."""

    agents: tuple[Agent, ...]


class AgentSpawnParams(Params, frozen=True):
    """Spawn a child: the same admission as a cell's `await rlm(...)`."""

    session_id: Id
    prompt: Text
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    idempotency_key: IdempotencyKey | None = None


class AgentResultOf(Result, frozen=True):
    """One child."""

    agent: Agent


class AgentTargetParams(Params, frozen=True):
    """Name a child by id, session id or unique name."""

    session_id: Id
    target: Text
    idempotency_key: IdempotencyKey | None = None


class AgentCancelParams(Params, frozen=True):
    """Cancel a child's task; with `subtree`, everything below it too."""

    session_id: Id
    target: Text
    subtree: bool = True
    idempotency_key: IdempotencyKey | None = None


class AgentSendParams(Params, frozen=True):
    """Write to a child; it wakes when idle."""

    session_id: Id
    target: Text
    message: Text
    idempotency_key: IdempotencyKey | None = None


class AgentSendResult(Result, frozen=True):
    """The receipt."""

    message_id: str
    delivery: Literal["delivered", "queued"]


class AgentObserveParams(Params, frozen=True):
    """Read a child's last messages."""

    session_id: Id
    target: Text
    limit: int = 8
    max_chars: int = 800


class AgentObserveResult(Result, frozen=True):
    """The child and its last messages."""

    agent: Agent
    messages: tuple[dict[str, Any], ...]


class AgentResultParams(Params, frozen=True):
    """Read a child's stored result through its contract."""

    session_id: Id
    target: Text
    fields: tuple[str, ...] | None = None
    generation: int | None = None


class AgentResultResult(Result, frozen=True):
    """The projected value."""

    value: Any
    generation: int


class AgentChanged(SessionNotification, frozen=True):
    """A child was admitted or changed its status."""

    agent: Agent
