"""
Agents of a family talk, and a parent looks at its children: identity, reach, policies, receipts.

The host sets who a message is from; a cell only says to whom. Reach is the parent, the siblings and
the children.
"""

from typing import Literal

from rlm_protocol import bridge
from rlm_protocol.errors import PolicyDenied
from rlm_protocol.item import ChildMessage

from ..sessions.session import SessionActor
from .documents import Documents
from .kin import Kin, recent_of, registry_of
from .lifecycle import OPEN
from .messages import Buckets, check_pending, read_message, shown_message
from .registry import Child, select
from .runner import Runner, task_id


class Mail:
    """Carries messages between loaded and resting sessions. Made once, by the service."""

    def __init__(self, kin: Kin, documents: Documents, runner: Runner) -> None:
        self._kin, self._documents, self._runner = kin, documents, runner
        self._buckets = Buckets()
        self._in_flight: dict[str, int] = {}

    async def to_parent(self, actor: SessionActor, message: str) -> bridge.Receipt:
        """
        Write to the parent.

        Raises:
            NotAChild: a root has none.
            PolicyDenied: the spawn switched direct messages off.
            MessageLimit, InvalidParams: as for every message.
        """
        parent, child = await self._kin.parent_of(actor)
        if not child.admitted.context.messages:
            raise PolicyDenied("The spawn contract admits no direct messages to the parent.")
        item = self._item(child.id, child.name, "child", message)
        receipt = await self._send(actor.id, parent, item, parent.state.name or "parent")
        if child.status in OPEN:
            await self._documents.note(parent, child, child.generation, replied=True)
        return receipt

    async def to_sibling(self, actor: SessionActor, name: str, message: str) -> bridge.Receipt:
        """Write to another child of the same parent. Raises NotAChild, AgentNotFound, ..."""
        parent, own = await self._kin.parent_of(actor)
        others = [child for child in registry_of(parent).living() if child is not own]
        sibling = select(others, name)
        target = await self._kin.session_of(sibling)
        item = self._item(own.id, own.name, "sibling", message)
        return await self._send(actor.id, target, item, sibling.name)

    async def to_child(
        self, actor: SessionActor, name: str, message: str, *, item_id: str | None = None
    ) -> bridge.Receipt:
        """
        Write to a child: steering while it works on a task, the next task when it has none.

        Raises:
            AgentNotFound, AgentAmbiguous: no living child fits, or several do.
            PolicyDenied: the child belongs to the session that this one was forked from.
            MessageLimit, InvalidParams: as for every message.
        """
        child = select(registry_of(actor).living(), name)
        if child.foreign:
            raise PolicyDenied(
                f"{child.name} is a child of the session that this one was forked from: it can be "
                "read, not written to. Spawn another one.",
                parent_id=child.admitted.parent_id,
            )
        target = await self._kin.session_of(child)
        if child.status in OPEN:
            item = self._item(actor.id, actor.state.name or "parent", "parent", message)
            return await self._send(actor.id, target, item, child.name)
        text, pair = read_message(message), (actor.id, target.id)
        self._buckets.take(pair, now_ms=self._kin.clock.now_ms())
        try:
            delivery = await self._runner.follow_up(actor, child, text, item_id=item_id)
        except BaseException:
            self._buckets.refund(pair)
            raise
        return self._receipt(task_id(child.id, child.generation), child.name, delivery)

    async def _send(
        self, sender: str, target: SessionActor, item: ChildMessage, name: str
    ) -> bridge.Receipt:
        waiting = sum(
            isinstance(one.item, ChildMessage) and one.item.notice is None
            for one in target.state.pending.values()
        )
        check_pending(waiting + self._in_flight.get(target.id, 0))
        pair = (sender, target.id)
        self._buckets.take(pair, now_ms=self._kin.clock.now_ms())
        self._in_flight[target.id] = self._in_flight.get(target.id, 0) + 1
        try:
            delivery = await target.deliver(item, shown=shown_message(item))
        except BaseException:
            self._buckets.refund(pair)
            raise
        finally:
            self._in_flight[target.id] -= 1
        return self._receipt(item.id, name, delivery)

    def _item(
        self,
        sender_id: str,
        sender_name: str,
        relationship: Literal["parent", "sibling", "child"],
        message: str,
    ) -> ChildMessage:
        now_ms = self._kin.clock.now_ms()
        return ChildMessage(
            id=f"agentmsg_{self._kin.new_hex(24)}",
            sender_id=sender_id,
            sender_name=sender_name,
            relationship=relationship,
            text=read_message(message),
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )

    def _receipt(
        self, message_id: str, target: str, delivery: Literal["delivered", "queued"]
    ) -> bridge.Receipt:
        return bridge.Receipt(
            id=message_id,
            target=target,
            delivery_status=delivery,
            at_ms=self._kin.clock.now_ms(),
        )

    async def family(self, actor: SessionActor) -> bridge.Family:
        """Give who may be written to: the parent first, then siblings, then children, by name."""
        entries: list[bridge.FamilyMember] = []
        current = None
        if actor.state.opened.parent is not None:
            parent, own = await self._kin.parent_of(actor)
            current = self._member(parent, own, "child")
            entries.append(
                bridge.FamilyMember(
                    relationship="parent",
                    name=parent.state.name or "parent",
                    id=parent.id,
                    depth=own.admitted.depth - 1,
                    status=self._doing(parent.id),
                )
            )
            others = [child for child in registry_of(parent).living() if child is not own]
            entries += self._members(parent, others, "sibling")
        entries += self._members(actor, registry_of(actor).living(), "child")
        return bridge.Family(current=current, entries=tuple(entries))

    def _members(
        self, parent: SessionActor, children: list[Child], relationship: Literal["sibling", "child"]
    ) -> list[bridge.FamilyMember]:
        ours = (child for child in children if not child.foreign)
        ordered = sorted(ours, key=lambda child: (child.name, child.id))
        return [self._member(parent, child, relationship) for child in ordered]

    def _member(
        self, parent: SessionActor, child: Child, relationship: Literal["sibling", "child"]
    ) -> bridge.FamilyMember:
        return bridge.FamilyMember(
            relationship=relationship,
            name=child.name,
            id=child.id,
            depth=child.admitted.depth,
            status=self._doing(child.admitted.session_id),
            replied_since_task=child.replied if relationship == "child" else None,
        )

    def _doing(self, session_id: str) -> str:
        loaded = self._kin.loaded(session_id)
        if loaded is None:
            return "inactive"
        return "running" if loaded.state.turn is not None else "idle"

    async def observe(
        self, actor: SessionActor, target: str, limit: int, max_chars: int
    ) -> tuple[Child, tuple[bridge.ObservedMessage, ...]]:
        """
        Give the last messages of a child.

        Raises:
            InvalidParams: a number is out of its range.
            PolicyDenied: the spawn switched observation off.
            AgentNotFound, AgentAmbiguous: no child fits, or several do.
        """
        child = select(registry_of(actor).known(), target)
        if not child.admitted.context.observe:
            raise PolicyDenied("The spawn contract admits no observation.")
        session = await self._kin.session_of(child)
        return child, recent_of(session).last(limit, max_chars)
