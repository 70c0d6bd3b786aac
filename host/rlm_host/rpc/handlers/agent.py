"""agent/*, session/tree: the children of a session, as a client sees and drives them."""

import msgspec

from rlm_protocol import agent as a
from rlm_protocol import session as s

from ..context import Context, Handlers


async def list_(context: Context, params: a.AgentListParams) -> a.AgentListResult:
    """agent/list: terminal children included, deleted ones not."""
    actor = await context.services.sessions.get(params.session_id)
    return a.AgentListResult(agents=context.services.children.agents(actor))


async def spawn(context: Context, params: a.AgentSpawnParams) -> a.AgentResultOf:
    """agent/spawn: answered on admission, never with the child's answer."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> a.AgentResultOf:
        children = context.services.children
        return a.AgentResultOf(agent=await children.spawn(actor, params.prompt, params.options))

    return await actor.once(params.idempotency_key, "agent/spawn", params, run)


async def send(context: Context, params: a.AgentSendParams) -> a.AgentSendResult:
    """agent/send: in the parent's name; the next task of a child that has none."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> a.AgentSendResult:
        receipt = await context.services.children.send(actor, params.target, params.message)
        return a.AgentSendResult(message_id=receipt.id, delivery=receipt.delivery_status)

    return await actor.once(params.idempotency_key, "agent/send", params, run)


async def observe(context: Context, params: a.AgentObserveParams) -> a.AgentObserveResult:
    """agent/observe."""
    actor = await context.services.sessions.get(params.session_id)
    agent, messages = await context.services.children.observe(
        actor, params.target, params.limit, params.max_chars
    )
    return a.AgentObserveResult(
        agent=agent, messages=tuple(msgspec.to_builtins(message) for message in messages)
    )


async def cancel(context: Context, params: a.AgentCancelParams) -> a.AgentResultOf:
    """agent/cancel: a child never outlives its parent, so its subtree ends with it."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> a.AgentResultOf:
        return a.AgentResultOf(agent=await context.services.children.cancel(actor, params.target))

    return await actor.once(params.idempotency_key, "agent/cancel", params, run)


async def delete(context: Context, params: a.AgentTargetParams) -> a.AgentResultOf:
    """agent/delete: transcript and artifacts stay on disk."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> a.AgentResultOf:
        return a.AgentResultOf(agent=await context.services.children.delete(actor, params.target))

    return await actor.once(params.idempotency_key, "agent/delete", params, run)


async def result(context: Context, params: a.AgentResultParams) -> a.AgentResultResult:
    """agent/result: through the child's contract."""
    actor = await context.services.sessions.get(params.session_id)
    value, generation = await context.services.children.result(
        actor, params.target, params.fields, params.generation
    )
    return a.AgentResultResult(value=value, generation=generation)


async def tree(context: Context, params: s.SessionTreeParams) -> s.SessionTreeResult:
    """session/tree: Σ own over its nodes is the root's subtree."""
    return s.SessionTreeResult(root=await context.services.children.tree(params.session_id))


HANDLERS: Handlers = {
    "agent/list": list_,
    "agent/spawn": spawn,
    "agent/send": send,
    "agent/observe": observe,
    "agent/cancel": cancel,
    "agent/delete": delete,
    "agent/result": result,
    "session/tree": tree,
}
