"""usage/read."""

from rlm_protocol.usage import UsageReadParams, UsageReadResult

from ..context import Context, Handlers


async def read(context: Context, params: UsageReadParams) -> UsageReadResult:
    """usage/read."""
    state = (await context.services.sessions.get(params.session_id)).state
    return UsageReadResult(own=state.own, subtree=state.subtree, budget=state.options.budget)


HANDLERS: Handlers = {"usage/read": read}
