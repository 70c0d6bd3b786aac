"""
Opening sessions that have children, or are some: through their parents, mended, and told of once.

Start-up is recovery. What a crash left open is closed here before anything of the session runs,
from the deepest child up, so that nothing is run twice and nothing that was used is forgotten.
"""

import logging
from typing import Literal

from rlm_protocol import records as r
from rlm_protocol.errors import RlmError, SessionClosed, SessionLeased, SessionNotFound

from ..sessions.session import SessionActor
from ..sessions.together import all_of
from .accounts import Accounts
from .kin import Kin, registry_of
from .lifecycle import BUSY, On, Status
from .registry import Child
from .runner import Runner, task_id

LOST = {
    "beforePrompt": "The host ended before the task reached the child. Nothing was run; give the "
    "task to a new child.",
    "afterPrompt": "The host ended while the child worked on the task. What was recorded is kept, "
    "nothing was repeated; give what is left to a new child.",
}

log = logging.getLogger(__name__)


class Recovery:
    """What happens when a session is opened. Made once, by the service."""

    def __init__(self, kin: Kin, accounts: Accounts, runner: Runner) -> None:
        self._kin, self._accounts, self._runner = kin, accounts, runner

    async def may_open(self, link: r.ParentLink, session_id: str) -> None:
        """
        Open a child only through its parents, from the root down.

        Raises:
            SessionNotFound: an ancestor has a tombstone for it, or never admitted it.
        """
        parent = await self._kin.store.get(link.session_id)
        child = registry_of(parent).children.get(link.child_id)
        if (
            child is None
            or child.status is Status.DELETED
            or child.admitted.session_id != session_id
        ):
            raise SessionNotFound("The child was deleted.", session_id=session_id)

    async def on_load(self, actor: SessionActor) -> None:
        """
        Mend what a crash left of a session that is being opened, before anything of it runs.

        A task that was open is closed as failed, with how far it had come, and its parent is told;
        nothing that waits for the child is run.
        """
        await all_of(*(self._recover_child(actor, child) for child in registry_of(actor).busy()))
        if actor.state.opened.parent is None:
            await self._accounts.recover(actor)
        else:
            await self._close_lost_task(actor)
        for child in registry_of(actor).children.values():
            await self._runner.tell(actor, child)

    async def _close_lost_task(self, actor: SessionActor) -> None:
        parent, child = await self._kin.parent_of(actor)
        live = self._kin.live(child)
        known, live.ours = live.ours, True
        if child.status not in BUSY or known:
            return
        task = task_id(child.id, child.generation)
        reached = task in actor.state.pending or task in actor.state.settled
        for item_id in tuple(actor.state.pending):
            await actor.withdraw(item_id)
        await self._lose(parent, child, "afterPrompt" if reached else "beforePrompt")

    async def _lose(
        self, parent: SessionActor, child: Child, phase: Literal["beforePrompt", "afterPrompt"]
    ) -> None:
        await self._runner.feed(parent, child, On.LOST, error=LOST[phase], phase=phase)

    async def _recover_child(self, actor: SessionActor, child: Child) -> None:
        """Open a child that was busy, which closes its task."""
        if self._kin.live(child).ours:
            return
        try:
            await self._kin.store.get(child.admitted.session_id)
        except (SessionClosed, SessionLeased):
            return  # the host is going, or another one has it: it stays as it is for now
        except RlmError as why:
            log.warning("the child %s cannot be opened: %s", child.admitted.session_id, why)
            await self._lose(actor, child, "beforePrompt")
        else:
            if not child.living:
                await self._runner.close_session(child)
