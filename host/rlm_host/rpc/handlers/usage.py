"""usage/read."""

from rlm_protocol.usage import UsageReadParams, UsageReadResult

from ..context import Context, Handlers


async def read(context: Context, params: UsageReadParams) -> UsageReadResult:
    """usage/read."""
    actor = await context.services.sessions.get(params.session_id)
    return UsageReadResult(own=actor.state.own, subtree=actor.state.subtree)


HANDLERS: Handlers = {"usage/read": read}
