"""
What goes on when nobody is attached any more: by each root session's `onDetach`.

A session and its children are one thing here: while anybody hears one of them, none is left alone.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..sessions.session import SessionActor

LOOK_S = 1.0


def root_of(actor: "SessionActor") -> "SessionActor":
    """Give the root of a session's tree."""
    return (actor, *actor.ancestors)[-1]


def is_attended(root: "SessionActor") -> bool:
    """Tell whether anybody hears a session or one below it."""
    return any(one.subscriptions.listeners for one in (root, *root.descendants))


def is_working(actor: "SessionActor") -> bool:
    """Tell whether a turn or a cell runs, something waits for one, or a child is at work."""
    return bool(actor.cells.running) or not actor.quiet


def keeps(sessions: "Iterable[SessionActor]") -> bool:
    """Tell whether one of the sessions shall be there for whoever comes later."""
    return any(_wish(actor) == "keep" for actor in sessions)


def goes_on(sessions: "Iterable[SessionActor]", *, reachable: bool) -> bool:
    """
    Tell whether a host shall outlive the client that started it.

    A host that nobody can reach again (`reachable`) outlives it for its running work only.
    """
    sessions = tuple(sessions)
    if reachable and keeps(sessions):
        return True
    return any(is_working(one) for one in sessions if _wish(one) in ("finish", "keep"))


async def leave(root: "SessionActor", *, at_once: bool) -> None:
    """End a session that nobody hears any more, unless somebody has come back meanwhile."""
    if not at_once:
        await root.wait_idle()
        while is_working(root):  # noqa: ASYNC110 - children tell nobody that they are all done
            await asyncio.sleep(LOOK_S)
    if not is_attended(root):
        await root.close(reason="detached")


def _wish(actor: "SessionActor") -> str | None:
    """Give a root session's own wish; None for children, which follow their root."""
    return actor.state.options.on_detach if actor.depth == 0 else None
