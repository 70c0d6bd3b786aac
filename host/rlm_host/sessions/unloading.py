"""
What nobody uses is let go: first a session's kernel, then the session itself.

Nothing is lost by it. A kernel goes only when its names can be brought back and nothing that a cell
began goes on in it (see `SessionKernel.unload`); a session goes only when all there is of it lies
on the disk. Both come back by their next use, as they would on another day.
"""

import asyncio
import logging
from collections.abc import Callable

from rlm_protocol.errors import RlmError

from ..clock import Clock
from ..kernels.cell import KernelStatus
from .session import SessionActor

LOOKS = 4
"""So often within its time is a session looked at: it goes at most a quarter later."""
log = logging.getLogger(__name__)


class Unloader:
    """Looks after the loaded sessions in a task of its own, from `start` to `stop`."""

    def __init__(
        self, loaded: Callable[[], tuple[SessionActor, ...]], *, clock: Clock, after_ms: int
    ) -> None:
        """`after_ms` without use and a session is let go; 0 keeps them all."""
        self._loaded, self._clock, self._after_ms = loaded, clock, after_ms
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[SessionActor] = set()

    def start(self) -> None:
        """Begin to look, if that has not been done."""
        if self._task is None and self._after_ms > 0:
            self._task = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Let nothing go any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def lets_go(self, actor: SessionActor) -> bool:
        """Tell whether the session is just being closed for want of use: it may be opened again."""
        return actor in self._leaving

    async def _look(self) -> None:
        while True:
            await self._clock.sleep(max(1, self._after_ms // LOOKS))
            # Children first: a parent stays as long as they do.
            for actor in sorted(self._loaded(), key=lambda one: -one.depth):
                try:
                    await self._let_go(actor)
                except RlmError as why:
                    log.warning("session %s stays loaded: %s", actor.id, why)
                except Exception:
                    log.exception("session %s could not be let go", actor.id)

    async def _let_go(self, actor: SessionActor) -> None:
        if not (self._unused(actor) and await actor.kernel.unload()):
            return
        # Somebody may have come while the namespace was saved.
        if self._unused(actor) and not actor.env and not self._has_loaded_child(actor):
            log.info("session %s is let go: nobody has used it", actor.id)
            self._leaving.add(actor)
            try:
                await actor.close(reason="detached")
            finally:
                self._leaving.discard(actor)

    def _unused(self, actor: SessionActor) -> bool:
        idle_ms = self._clock.monotonic_ms() - actor.used_ms
        return idle_ms >= self._after_ms and _rests(actor)

    def _has_loaded_child(self, actor: SessionActor) -> bool:
        links = (one.state.opened.parent for one in self._loaded())
        return any(link is not None and link.session_id == actor.id for link in links)


def _rests(actor: SessionActor) -> bool:
    """Tell whether nobody listens and nothing goes on. What is ephemeral is nowhere but here."""
    state = actor.state
    busy = actor.closing or state.pending or state.open_cells or state.opened.ephemeral
    idle = actor.kernel.status in (KernelStatus.ABSENT, KernelStatus.IDLE)
    return not (busy or actor.subscriptions.listeners) and idle and actor.quiet
