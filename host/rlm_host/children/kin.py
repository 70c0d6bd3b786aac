"""What every part of children/ shares: the way from a session to its registry, parent and views."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import anyio
import msgspec

from rlm_protocol import records as r
from rlm_protocol.agent import Agent
from rlm_protocol.bridge import Handle
from rlm_protocol.errors import NotAChild, PolicyDenied

from ..clock import Clock
from ..sessions.session import SessionActor
from ..sessions.store import SessionStore
from .contract_journal import ContractJournal, result_file
from .recent import Recent
from .registry import Child, Registry, usage_of

REGISTRY, RECENT = "children", "recent"
"""Names of this package's folds in `SessionPorts.folds`."""


class ChildrenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a host for all its sessions."""

    running_max: int = 8
    """Children of one depth whose turns run at once; others wait, visibly queued."""
    living_max: int = 1000
    """Living children of one session."""


class Live:
    """What this process knows of one child beside its records. `lock` orders its life's steps."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.document_lock = anyio.Lock()
        self.document: ContractJournal | None = None
        self.error: str | None = None
        """Why its last turn failed."""
        self.exists = anyio.Event()
        """Set when its session can be opened, or never will be."""
        self.ours = False
        """This process created or recovered it: what is open of it is really under way."""


class Kin:
    """The host's sessions as a family; made once, by the service."""

    store: SessionStore
    """Bound before the first session is opened."""

    def __init__(
        self, *, clock: Clock, settings: ChildrenSettings, new_hex: Callable[[int], str]
    ) -> None:
        self.clock, self.settings, self.new_hex = clock, settings, new_hex
        self._live: dict[str, Live] = {}

    def live(self, child: Child) -> Live:
        """Give what this process knows of a child."""
        return self._live.setdefault(child.admitted.session_id, Live())

    def loaded(self, session_id: str) -> SessionActor | None:
        """Give the session if it is open in this process, also while it closes."""
        return next((actor for actor in self.store.loaded() if actor.id == session_id), None)

    async def parent_of(self, actor: SessionActor) -> tuple[SessionActor, Child]:
        """
        Give a session's parent, also while it closes, and the parent's entry for the session.

        Raises:
            NotAChild: it is a root session.
        """
        link = actor.state.opened.parent
        if link is None:
            raise NotAChild
        parent = self.loaded(link.session_id) or await self.store.get(link.session_id)
        return parent, registry_of(parent).children[link.child_id]

    def held_since(self, actor: SessionActor) -> int:
        """
        Give when a person stopped a tree that the session is in; 0 when nothing binds it.

        A stop binds everything below it until a person starts a turn there, or below it on the way
        to the session.
        """
        person_ms, at = 0, actor
        while True:
            state = at.state
            person_ms = max(person_ms, state.person_at_ms)
            if state.held and state.held_at_ms >= person_ms:
                return state.held_at_ms
            link = state.opened.parent
            above = self.loaded(link.session_id) if link else None
            if above is None:
                return 0
            at = above

    def unless_stopped(self, actor: SessionActor) -> None:
        """Raise PolicyDenied when a stop binds the session."""
        if self.held_since(actor):
            raise PolicyDenied(
                "A person stopped this tree. It goes on with the next turn that a person starts."
            )

    async def root_of(self, actor: SessionActor) -> SessionActor:
        """Give the root of a session's tree, also while it closes."""
        link = actor.state.opened.parent
        if link is None:
            return actor
        return self.loaded(link.root_id) or await self.store.get(link.root_id)

    async def home_of(self, actor: SessionActor, child: Child) -> Path:
        """Give a child's directory; of a child that a fork reads, where its real parent has it."""
        if child.foreign:
            actor = await self.store.get(child.admitted.parent_id)
        return actor.artifacts_path / child.id

    async def session_of(self, child: Child) -> SessionActor:
        """Give a child's session, loaded when it is not. Waits while it is being created."""
        if child.generation == 1 and child.recorded == "queued":
            await self.live(child).exists.wait()
        return await self.store.get(child.admitted.session_id)

    def handle(self, actor: SessionActor, child: Child) -> Handle:
        """Give a child as its parent's cells see it."""
        admitted = child.admitted
        return Handle(
            rlm_child_id=child.id,
            name=child.name,
            session_dir=str(actor.artifacts_path / child.id),
            model=admitted.model,
            status=child.told,
            active_session_id=self._active_id(actor, child),
            session_id=admitted.session_id,
            result_path=_result_path(actor.artifacts_path / child.id, child),
        )

    def agent(self, actor: SessionActor, child: Child) -> Agent:
        """Give a child as clients see it."""
        admitted, loaded = child.admitted, self.loaded(child.admitted.session_id)
        return Agent(
            child_id=child.id,
            session_id=admitted.session_id,
            name=child.name,
            model=admitted.model,
            status=child.told,
            depth=admitted.depth,
            generation=child.generation,
            created_at_ms=child.admitted_at_ms,
            session_dir=str(actor.artifacts_path / child.id),
            usage=usage_of(registry_of(actor), child),
            active_session_id=self._active_id(actor, child),
            result_path=_result_path(actor.artifacts_path / child.id, child),
            error=child.error,
            children=len(registry_of(loaded).children) if loaded else child.children,
        )

    def _active_id(self, actor: SessionActor, child: Child) -> str | None:
        session_id = child.admitted.session_id
        held = not actor.state.opened.ephemeral and self.loaded(session_id) is not None
        return session_id if held else None


def registry_of(actor: SessionActor) -> Registry:
    """Give the registry of a session's children."""
    return cast(Registry, actor.folds[REGISTRY])


def recent_of(actor: SessionActor) -> Recent:
    """Give a session's last messages."""
    return cast(Recent, actor.folds[RECENT])


def link_of(parent: SessionActor, admitted: r.ChildAdmitted) -> r.ParentLink:
    """Give the link that a child's own journal holds to its parent."""
    above = parent.state.opened.parent
    return r.ParentLink(
        session_id=parent.id,
        root_id=above.root_id if above else parent.id,
        child_id=admitted.child_id,
        directory=admitted.directory,
        depth=admitted.depth,
        max_depth=admitted.max_depth,
        turn_id=admitted.turn_id,
        item_id=admitted.item_id,
    )


def directory_of(parent: SessionActor, child_id: str) -> str:
    """Give a child's directory relative to the artifact folder of the root."""
    above = parent.state.opened.parent
    return f"{above.directory}/{child_id}" if above else child_id


def _result_path(directory: Path, child: Child) -> str | None:
    contract = child.admitted.contract
    if contract is None:
        return None
    if contract.sink is not None:
        return str(directory / contract.sink)
    closed = child.outcome is not None and child.result_generation > 0
    return str(directory / result_file(child.result_generation if closed else child.generation))
