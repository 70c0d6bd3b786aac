"""session/*: what a client creates, hears, changes and ends."""

from typing import TYPE_CHECKING

from rlm_protocol import session as s
from rlm_protocol.base import Empty

from ..context import Context, Handlers

if TYPE_CHECKING:
    from ...sessions.session import SessionActor


async def create(context: Context, params: s.SessionCreateParams) -> s.SessionResult:
    """session/create. The creator is attached."""
    actor = await context.services.sessions.create(params)
    # A repeat of an idempotency key finds a session that others know.
    is_new = actor.state.seq == 1 and not actor.subscriptions.listeners
    await context.services.feeds.attach(context, actor)
    _declares_tools(context, actor, params.options)
    if is_new:
        _tell_others(context, actor)
    return s.SessionResult(session=actor.view())


def _declares_tools(
    context: Context, actor: "SessionActor", options: s.SessionOptions | None
) -> None:
    if options is not None and options.tools is not None:
        actor.tool_client = context.attachment.id


def _tell_others(context: Context, actor: "SessionActor") -> None:
    """Tell everyone else of a new session: to the asking client the answer introduces it."""
    created = s.SessionCreated(**actor.where(), session=actor.summary())
    context.services.attachments.broadcast("session/created", created, but=context.attachment.id)


async def configure(context: Context, params: s.SessionConfigureParams) -> s.SessionResult:
    """session/configure."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> s.SessionResult:
        await actor.configure(params.options)
        _declares_tools(context, actor, params.options)
        return s.SessionResult(session=actor.view())

    return await actor.once(params.idempotency_key, "session/configure", params, run)


async def resume(context: Context, params: s.SessionResumeParams) -> s.SessionResumeResult:
    """session/resume: attach, and hear what the cursor has missed."""
    actor = await context.services.sessions.get(params.session_id)
    return await context.services.feeds.attach(context, actor, params.cursor)


async def detach(context: Context, params: s.SessionParams) -> Empty:
    """session/detach."""
    actor = await context.services.sessions.get(params.session_id)
    context.services.feeds.detach(context.attachment.id, actor)
    return Empty()


async def list_(context: Context, params: s.SessionListParams) -> s.SessionListResult:
    """session/list."""
    return await context.services.sessions.list(params)


async def read(context: Context, params: s.SessionParams) -> s.SessionResult:
    """session/read."""
    actor = await context.services.sessions.get(params.session_id)
    return s.SessionResult(session=actor.view())


async def items(context: Context, params: s.SessionItemsParams) -> s.SessionItemsResult:
    """session/items."""
    return await context.services.sessions.items(params)


async def fork(context: Context, params: s.SessionForkParams) -> s.SessionResult:
    """session/fork. The client is attached to the new session."""
    source = await context.services.sessions.get(params.session_id)

    async def run() -> s.SessionResult:
        actor = await context.services.sessions.fork(params)
        await context.services.feeds.attach(context, actor)
        _tell_others(context, actor)
        return s.SessionResult(session=actor.view())

    return await source.once(params.idempotency_key, "session/fork", params, run)


async def rename(context: Context, params: s.SessionRenameParams) -> s.SessionResult:
    """session/rename."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> s.SessionResult:
        await actor.rename(params.name)
        return s.SessionResult(session=actor.view())

    return await actor.once(params.idempotency_key, "session/rename", params, run)


async def archive(context: Context, params: s.SessionMutateParams) -> s.SessionResult:
    """session/archive."""
    return await _archive(context, params, archived=True)


async def unarchive(context: Context, params: s.SessionMutateParams) -> s.SessionResult:
    """session/unarchive."""
    return await _archive(context, params, archived=False)


async def _archive(
    context: Context, params: s.SessionMutateParams, *, archived: bool
) -> s.SessionResult:
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> s.SessionResult:
        await actor.archive(archived)
        return s.SessionResult(session=actor.view())

    method = "session/archive" if archived else "session/unarchive"
    return await actor.once(params.idempotency_key, method, params, run)


async def delete(context: Context, params: s.SessionMutateParams) -> Empty:
    """session/delete. A repeat finds no session: it is gone, and cannot be deleted twice."""
    await context.services.sessions.delete(params.session_id)
    return Empty()


HANDLERS: Handlers = {
    "session/create": create,
    "session/configure": configure,
    "session/resume": resume,
    "session/detach": detach,
    "session/list": list_,
    "session/read": read,
    "session/items": items,
    "session/fork": fork,
    "session/rename": rename,
    "session/archive": archive,
    "session/unarchive": unarchive,
    "session/delete": delete,
}
