"""Turns: from one accepted input to its terminal event."""

from typing import Any, Literal

import msgspec

from .base import ErrorInfo, Id, IdempotencyKey, Params, Result, SessionNotification
from .usage import Budget, Usage

TurnStatus = Literal["completed", "interrupted", "failed"]


class TextInput(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text", rename="camel"
):
    """Text for the model."""

    text: str


class TurnStartParams(Params, frozen=True):
    """Give the session an input. Answers at once; the end is `turn/completed`."""

    session_id: Id
    input: tuple[TextInput, ...]
    client_message_id: str | None = None
    output_schema: dict[str, Any] | None = None
    budget: Budget | None = None
    idempotency_key: IdempotencyKey | None = None


class TurnStartResult(Result, frozen=True):
    """The turn that was made durable and will run."""

    turn_id: str


class TurnSteerParams(Params, frozen=True):
    """Add to the running turn; enters before the next model request."""

    session_id: Id
    expected_turn_id: Id
    input: tuple[TextInput, ...]
    idempotency_key: IdempotencyKey | None = None


class TurnQueueParams(Params, frozen=True):
    """Queue a follow-up for after the running turn."""

    session_id: Id
    input: tuple[TextInput, ...]
    idempotency_key: IdempotencyKey | None = None


class QueuedInput(Result, frozen=True):
    """A follow-up that waits."""

    queue_id: str
    text: str


class TurnQueueResult(Result, frozen=True):
    """Where the follow-up waits."""

    queue_id: str


class TurnQueueListParams(Params, frozen=True):
    """List what waits."""

    session_id: Id


class TurnQueueListResult(Result, frozen=True):
    """In order of arrival."""

    queued: tuple[QueuedInput, ...]


class TurnQueueRemoveParams(Params, frozen=True):
    """Withdraw a follow-up."""

    session_id: Id
    queue_id: Id
    idempotency_key: IdempotencyKey | None = None


class TurnInterruptParams(Params, frozen=True):
    """
    Stop a turn, even before it runs. With `subtree`, everything below the session stops too.

    The outcome is told by `turn/completed`.
    """

    session_id: Id
    turn_id: Id | None = None
    subtree: bool = False
    idempotency_key: IdempotencyKey | None = None


class TurnInterruptResult(Result, frozen=True):
    """The turn that will end, or null when none was running or queued."""

    turn_id: str | None = None


class TurnStarted(SessionNotification, frozen=True):
    """The turn runs."""

    turn_id: str


class TurnCompleted(SessionNotification, frozen=True):
    """The turn's terminal event: exactly one, after all its items."""

    turn_id: str
    status: TurnStatus
    usage: Usage
    error: ErrorInfo | None = None
    output: Any = None
