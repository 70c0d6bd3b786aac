"""
The registry of a session's direct children: a fold of the session's own journal. Pure.

There is no second truth: what is not in the journal was not admitted, and what has a tombstone
there is never addressed again, whatever else lies on the disk (seed: rlm-runtime, Parent-Scoped
Sub-Agent Registry).
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from rlm_protocol import records as r
from rlm_protocol.agent import AgentStatus
from rlm_protocol.errors import AgentAmbiguous, AgentNotFound
from rlm_protocol.item import AgentMessage, ChildMessage, Outcome, ReplCell
from rlm_protocol.usage import Usage

from .lifecycle import BUSY, LIVING, OPEN, Status
from .usage import Attribution

_TOLD: dict[Status, AgentStatus] = {
    Status.QUEUED: "queued",
    Status.RUNNING: "running",
    Status.AWAKE: "running",
    Status.COMPLETED: "completed",
    Status.ERROR: "error",
    Status.CANCELLED: "cancelled",
    Status.DELETED: "deleted",
}


class Child(msgspec.Struct, kw_only=True):
    """
    One child, as its parent's journal tells it. Changed by `Registry.apply` alone.

    `generation` counts its tasks from 1; `outcome` and `error` are the last closed task's.
    `started` says whether any of its turns has got a place to run: before that it used nothing.
    `replied` says whether it wrote to its parent in the task that is open. `notified` is the last
    generation whose notice the parent has, `result_generation` the last that ended with a result.
    `item_id` is the parent's item that gave the task, `children` how many the child itself had when
    its last task ended. `foreign`: this session is a fork of the child's parent, so it may read the
    child, no more.
    """

    admitted: r.ChildAdmitted
    admitted_at_ms: int
    foreign: bool = False
    recorded: Status = Status.QUEUED
    generation: int = 1
    turn_id: str | None = None
    item_id: str | None = None
    outcome: Outcome | None = None
    error: str | None = None
    started: bool = False
    replied: bool = False
    notified: int = 0
    children: int = 0
    result_generation: int = 0

    @property
    def id(self) -> str:
        """The child id: unique among its parent's children, and the name of its directory."""
        return self.admitted.child_id

    @property
    def name(self) -> str:
        """Its readable name."""
        return self.admitted.name

    @property
    def status(self) -> Status:
        """What it is doing. A task that was open when the parent was forked is lost to the fork."""
        if self.foreign and self.recorded in BUSY:
            return Status.CANCELLED if self.recorded in OPEN else Status.COMPLETED
        return self.recorded

    @property
    def told(self) -> AgentStatus:
        """The status in the words of clients and kernels."""
        return _TOLD[self.status]

    @property
    def living(self) -> bool:
        """Whether it is listed, can be addressed by name, and holds its name."""
        return self.status in LIVING

    @property
    def owes_notice(self) -> bool:
        """Whether a task was closed and the parent was not told yet, though it is to be told."""
        return (
            self.outcome is not None
            and self.recorded is not Status.DELETED
            and self.admitted.context.terminal
            and not self.foreign
            and self.notified < self.generation
        )


def notice_id(child_id: str, generation: int) -> str:
    """Give the id of a task's end notice: one for each generation, so that none comes twice."""
    return f"notice-{child_id}-{generation}"


class Registry(msgspec.Struct, kw_only=True):
    """Every child that was ever admitted, in order, with its usage; `apply` is total."""

    session_id: str = ""
    children: dict[str, Child] = {}
    attribution: Attribution = msgspec.field(default_factory=Attribution)

    def apply(self, entry: r.Entry) -> None:
        """Take in the next record of the session's journal."""
        match entry.record:
            case r.SessionOpened(session_id=session_id):
                self.session_id = session_id
            case r.ChildAdmitted() as record:
                self.children[record.child_id] = Child(
                    admitted=record,
                    admitted_at_ms=entry.at_ms,
                    foreign=record.parent_id != self.session_id,
                    turn_id=record.turn_id,
                    item_id=record.item_id,
                )
            case r.ChildStatusChanged() as record:
                self._change(record)
            case r.ChildDeleted(child_id=child_id):
                if (child := self.children.get(child_id)) is not None:
                    child.recorded = Status.DELETED
            case r.ChildUsageAttributed() as record:
                self.attribution.apply(record)
            case (
                r.InputQueued(item=ChildMessage() as item)
                | r.ItemCompleted(item=ChildMessage() as item)
            ):
                self._hear(item)
            case r.ItemCompleted(item=AgentMessage(id=item_id) | ReplCell(id=item_id)):
                self.attribution.settle(item_id)
            case _:
                pass

    def _change(self, record: r.ChildStatusChanged) -> None:
        child = self.children.get(record.child_id)
        if child is None or child.recorded is Status.DELETED:
            return
        child.generation = record.generation
        if record.status == "queued":
            child.turn_id, child.item_id = record.turn_id, record.item_id
            child.replied = False
            child.outcome = child.error = None
        if record.outcome is not None:
            child.outcome, child.error = record.outcome, record.error
            child.children = record.children
            if record.outcome == "submitted":
                child.result_generation = record.generation
        child.started = child.started or record.status == "running"
        beyond = record.status == "running" and child.outcome is not None
        child.recorded = Status.AWAKE if beyond else Status(record.status)

    def _hear(self, item: ChildMessage) -> None:
        child = self.children.get(item.sender_id)
        if child is None or item.relationship != "child":
            return
        if item.notice is None:
            child.replied = child.replied or child.recorded in OPEN
        elif item.id == notice_id(child.id, child.generation):
            child.notified = child.generation

    def living(self) -> list[Child]:
        """Give the children that can be addressed, in order of admission."""
        return [child for child in self.children.values() if child.living]

    def known(self) -> list[Child]:
        """Give all children but the deleted ones, in order of admission."""
        return [c for c in self.children.values() if c.status is not Status.DELETED]

    def taken(self) -> frozenset[str]:
        """Give the names and ids that a new child's name must differ from."""
        return frozenset(
            word
            for child in self.living()
            for word in (child.name, child.id, child.admitted.session_id)
        )

    def busy(self) -> list[Child]:
        """Give the children of this session that are doing something."""
        return [child for child in self.children.values() if child.status in BUSY]

    def unsettled(self) -> bool:
        """Whether a child is doing something, or the news of its end has not arrived here."""
        return any(c.status in BUSY or c.owes_notice for c in self.children.values())

    def by_session(self, session_id: str) -> Child | None:
        """Give the child whose session this is."""
        for child in self.children.values():
            if child.admitted.session_id == session_id:
                return child
        return None

    def dump(self) -> Any:
        """Give the state as JSON builtins."""
        return msgspec.to_builtins(self)

    def load(self, state: Any) -> None:
        """Take a dumped state. Raises ValueError (msgspec.ValidationError) when it is none."""
        loaded = msgspec.convert(state, Registry)
        self.session_id, self.children = loaded.session_id, loaded.children
        self.attribution = loaded.attribution


def select(children: Iterable[Child], target: str) -> Child:
    """
    Give the one child that `target` names: its child id, session id, or its name while it lives.

    Raises:
        AgentNotFound: none fits.
        AgentAmbiguous: several fit; their ids are in the error.
    """
    wanted = target.strip()
    fitting = [
        child
        for child in children
        if wanted in (child.id, child.admitted.session_id)
        or (child.living and wanted == child.name)
    ]
    if not fitting:
        raise AgentNotFound(f"No child fits {wanted!r}.", target=wanted)
    if len(fitting) > 1:
        ids = [child.id for child in fitting]
        raise AgentAmbiguous(f"{wanted!r} fits {', '.join(ids)}.", target=wanted, ids=ids)
    return fitting[0]


def usage_of(registry: Registry, child: Child) -> Usage:
    """Give what the child's whole subtree has used, as far as it was folded in."""
    return registry.attribution.by_child.get(child.id, Usage())
