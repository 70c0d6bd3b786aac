"""What a checkpoint stood for, read after the session that was opened by it has been handed out."""

import logging

from ..clock import Clock
from .journal import Place
from .opening import verify_opened
from .session import SessionActor

AFTER_MS = 2000
"""The first questions have been answered by then."""
log = logging.getLogger(__name__)


async def verify_later(actor: SessionActor, place: Place, clock: Clock) -> None:
    """
    Read the journal up to `place`, and record what is damaged there.

    A session whose checkpoint was made from another journal is closed: its next opening reads all.
    """
    await clock.sleep(AFTER_MS)
    if actor.closing:
        return
    known = list(actor.state.damage)
    try:
        damage = await actor.in_thread(verify_opened, actor.folder, actor.id, place, known)
    except OSError as why:
        log.warning("the journal of %s could not be verified: %s", actor.id, why)
        return
    if damage is None:
        log.error("the checkpoint of %s was made from another journal", actor.id)
        await actor.close(reason="shutdown")
    elif damage and not actor.closing:
        await actor.append(*damage)
