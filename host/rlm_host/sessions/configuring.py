"""Changing a session's options: what is recorded, what the model and the kernel are told of it."""

from typing import TYPE_CHECKING

from rlm_protocol import records as r
from rlm_protocol.session import ClientTool, SessionOptions

from .options import composed, env_of, merged, public
from .prompt import tools_text
from .tools import check_tools
from .turn import notice_record

if TYPE_CHECKING:
    from .session import SessionActor


async def change_options(session: "SessionActor", given: SessionOptions) -> SessionOptions:
    """
    Make the fields that are given durable, with a notice of what the model works by; give the rest.

    The system prompt is composed anew only for other instructions: of other tools the model is told
    by a message, so that its next request still begins with the bytes of the last one.

    Raises:
        InvalidParams: a tool cannot be offered. Nothing has changed.
    """
    old = session.state.options
    whole = merged(old, given)
    if given.tools is not None:
        await session.in_thread(check_tools, given.tools)
    prompt = None
    if given.instructions is not None:
        prompt, _ = await session.in_thread(
            composed, session.home, session.state.opened, whole, session.skills
        )
    env_names = tuple(env_of(whole)) or session.state.env_names
    records: list[r.Record] = [
        r.SessionConfigured(options=public(whole), env_names=env_names, prompt=prompt)
    ]
    if given.instructions is not None:
        records.append(notice_record(session, "info", "The instructions have changed."))
    if given.tools is not None and given.tools != (old.tools or ()):
        said = f"[The tools of the client have changed.]\n{tools_text(given.tools)}"
        records.append(notice_record(session, "info", _told(given.tools), shown=said))
    await session.append(*records)
    return whole


def _told(tools: tuple[ClientTool, ...]) -> str:
    names = ", ".join(tool.name for tool in tools)
    return f"The client's tools are now: {names or 'none'}."
