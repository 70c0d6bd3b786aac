"""model/* and auth/state: which models there are; never a secret."""

from typing import TYPE_CHECKING

from rlm_protocol import model as m
from rlm_protocol.base import NoParams
from rlm_protocol.session import SessionResult

from ..context import Context, Handlers

if TYPE_CHECKING:
    from ...models.catalog import ModelInfo


async def list_(context: Context, params: m.ModelListParams) -> m.ModelListResult:
    """model/list: usable models first; the others on request."""
    models = context.services.models
    found = models.catalog.find(
        params.query, params.limit, lambda name: params.unavailable or models.usable(name)
    )
    return m.ModelListResult(
        models=tuple(_info(info, available=models.usable(info.provider)) for info in found),
        default=models.default().selector,
    )


async def set_(context: Context, params: m.ModelSetParams) -> SessionResult:
    """model/set."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> SessionResult:
        await actor.set_model(params.model, params.thinking)
        return SessionResult(session=actor.view())

    return await actor.once(params.idempotency_key, "model/set", params, run)


async def auth_state(context: Context, params: NoParams) -> m.AuthStateResult:
    """auth/state."""
    models = context.services.models
    states = ((name, models.credentials.state(name)) for name in sorted(models.settings))
    return m.AuthStateResult(
        providers=tuple(
            m.AuthState(
                provider=name,
                status=state.status,
                source=state.source,
                expires_at_ms=state.expires_at_ms,
            )
            for name, state in states
        )
    )


def _info(info: "ModelInfo", *, available: bool) -> m.ModelInfo:
    from ...models.scripted import PROVIDER as SCRIPTED

    return m.ModelInfo(
        selector=info.selector,
        name=info.name,
        provider=info.provider,
        available=available,
        context_window=info.context_window_tokens,
        max_output_tokens=info.max_output_tokens,
        thinking_levels=info.thinking,
        scripted=info.provider == SCRIPTED,
    )


HANDLERS: Handlers = {"model/list": list_, "model/set": set_, "auth/state": auth_state}
