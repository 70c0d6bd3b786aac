"""turn/*: inputs of a session and the turns that they start."""

from rlm_protocol import turn as t
from rlm_protocol.base import Empty
from rlm_protocol.errors import InvalidParams

from ..context import Context, Handlers


async def start(context: Context, params: t.TurnStartParams) -> t.TurnStartResult:
    """turn/start: answered when the input is durable, before anything is heard of the turn."""
    actor = await context.services.sessions.get(params.session_id)
    context.services.feeds.hold(context, actor.id)

    async def run() -> t.TurnStartResult:
        turn_id = await actor.start_turn(
            _text(params.input),
            client_message_id=params.client_message_id,
            output_schema=params.output_schema,
            budget=params.budget,
        )
        return t.TurnStartResult(turn_id=turn_id)

    return await actor.once(params.idempotency_key, "turn/start", params, run)


async def steer(context: Context, params: t.TurnSteerParams) -> Empty:
    """turn/steer."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> Empty:
        await actor.steer(params.expected_turn_id, _text(params.input))
        return Empty()

    return await actor.once(params.idempotency_key, "turn/steer", params, run)


async def queue(context: Context, params: t.TurnQueueParams) -> t.TurnQueueResult:
    """turn/queue."""
    actor = await context.services.sessions.get(params.session_id)
    context.services.feeds.hold(context, actor.id)

    async def run() -> t.TurnQueueResult:
        return t.TurnQueueResult(queue_id=await actor.queue(_text(params.input)))

    return await actor.once(params.idempotency_key, "turn/queue", params, run)


async def queue_list(context: Context, params: t.TurnQueueListParams) -> t.TurnQueueListResult:
    """turn/queueList."""
    actor = await context.services.sessions.get(params.session_id)
    return t.TurnQueueListResult(queued=actor.queued())


async def queue_remove(context: Context, params: t.TurnQueueRemoveParams) -> Empty:
    """turn/queueRemove."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> Empty:
        if not await actor.withdraw(params.queue_id):
            raise InvalidParams("No follow-up of this id waits.", path="$.queueId")
        return Empty()

    return await actor.once(params.idempotency_key, "turn/queueRemove", params, run)


async def interrupt(context: Context, params: t.TurnInterruptParams) -> t.TurnInterruptResult:
    """turn/interrupt: `turn/completed` tells the outcome."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> t.TurnInterruptResult:
        turn_id = await actor.interrupt(params.turn_id, subtree=params.subtree)
        return t.TurnInterruptResult(turn_id=turn_id)

    return await actor.once(params.idempotency_key, "turn/interrupt", params, run)


def _text(given: tuple[t.TextInput, ...]) -> str:
    text = "\n".join(one.text for one in given)
    if not text.strip():
        raise InvalidParams("The input is empty.", path="$.input")
    return text


HANDLERS: Handlers = {
    "turn/start": start,
    "turn/steer": steer,
    "turn/queue": queue,
    "turn/queueList": queue_list,
    "turn/queueRemove": queue_remove,
    "turn/interrupt": interrupt,
}
