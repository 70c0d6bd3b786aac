"""Models that a session can use."""

from .base import Id, IdempotencyKey, Params, Result, Text
from .session import Thinking


class ModelInfo(Result, frozen=True):
    """One model; `available` is false when its provider has no active credential."""

    selector: str
    name: str
    provider: str
    available: bool
    context_window: int | None = None
    max_output_tokens: int | None = None
    thinking_levels: tuple[Thinking, ...] = ()
    scripted: bool = False


class ModelListParams(Params, frozen=True):
    """List models; `query` filters, unavailable ones only on request."""

    query: str = ""
    limit: int = 100
    unavailable: bool = False


class ModelListResult(Result, frozen=True):
    """`default` is what a session without a model gets."""

    models: tuple[ModelInfo, ...]
    default: str | None = None


class ModelSetParams(Params, frozen=True):
    """Change a session's model from its next request on."""

    session_id: Id
    model: Text
    thinking: Thinking | None = None
    idempotency_key: IdempotencyKey | None = None


class AuthState(Result, frozen=True):
    """State of one provider's credential; never the secret."""

    provider: str
    status: str
    source: str | None = None
    expires_at_ms: int | None = None


class AuthStateResult(Result, frozen=True):
    """Every provider that is known or configured."""

    providers: tuple[AuthState, ...]
