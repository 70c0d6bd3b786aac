"""
The life of children, carried out: tasks, ends, notices, cancellation, deletion, recovery.

What happens to a child is decided by `lifecycle.step` under the child's lock, made durable in its
parent's journal, and only then acted on. Every action may be repeated: after a crash the records
say what is still owed.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from rlm_protocol import records as r
from rlm_protocol.errors import RlmError, SessionClosed
from rlm_protocol.item import ChildMessage, Outcome
from rlm_protocol.session import SessionCreateParams

from ..models.provider import Request
from ..sessions.ports import SessionPorts
from ..sessions.session import SessionActor
from ..sessions.together import all_of
from .accounts import Accounts
from .documents import Documents
from .kin import Kin, link_of, recent_of, registry_of
from .lifecycle import BUSY, OPEN, Do, On, Status, step
from .messages import notice_text, shown_message, shown_notice
from .places import Places
from .registry import Child, notice_id

PREVIEW_CHARS = 400
STOPPED = "The task was cancelled before it reached the child."
REQUIRED = "The task ended without the result that its contract requires."

log = logging.getLogger(__name__)

StartTask = Callable[..., None]
"""`(function, *args)`: run a coroutine beside everything else, owned by the service."""


def task_id(child_id: str, generation: int) -> str:
    """Give the id of the message that carries a task: delivered at most once, by this id."""
    return f"task-{child_id}-{generation}"


class Runner:
    """Carries out what the life-cycle table says. Made once, by the service."""

    def __init__(
        self,
        kin: Kin,
        accounts: Accounts,
        documents: Documents,
        ports: SessionPorts,
        start_task: StartTask,
    ) -> None:
        self._kin, self._accounts, self._documents = kin, accounts, documents
        self._ports, self._start_task = ports, start_task
        self._places = Places(kin.settings.running_max)
        self._stops: dict[str, int] = {}

    # --- tasks ---

    def begin(self, parent: SessionActor, child: Child) -> None:
        """Create the session of a child that was just admitted and give it its first task."""
        self._kin.live(child).ours = True
        self._start_task(self._begin, parent, child)

    async def _begin(self, parent: SessionActor, child: Child) -> None:
        admitted, opened = child.admitted, parent.state.opened
        tools = parent.state.options.tools or ()
        params = SessionCreateParams(
            cwd=opened.cwd,
            model=admitted.model,
            name=admitted.name,
            thinking=admitted.thinking,
            ephemeral=opened.ephemeral,
            options=msgspec.structs.replace(
                parent.inherited(),
                tools=tuple(tool for tool in tools if tool.name in admitted.tools),
                budget=admitted.budget,
            ),
        )
        live = self._kin.live(child)
        try:
            if child.status not in OPEN:
                return  # stopped before anything of it was made
            await self._kin.store.create(
                params, parent=link_of(parent, admitted), session_id=admitted.session_id
            )
            live.exists.set()
            await self.give(parent, child, admitted.prompt)
        except RlmError as why:
            await self.feed(parent, child, On.FAIL, error=why.message)
        except Exception:
            log.exception("the child %s could not be started", admitted.session_id)
            await self.feed(parent, child, On.FAIL, error="The host has a bug; see its log.")
        finally:
            live.exists.set()
            if child.status not in BUSY:  # stopped while its session was being created
                await self.close_session(child)

    async def give(
        self, parent: SessionActor, child: Child, text: str
    ) -> Literal["delivered", "queued"]:
        """
        Hand the task that is open to the child's session.

        Raises:
            SessionClosed: the task was closed meanwhile. The child is told nothing.
        """
        actor = await self._kin.session_of(child)
        now_ms, generation = self._kin.clock.now_ms(), child.generation
        item = ChildMessage(
            id=task_id(child.id, generation),
            sender_id=parent.id,
            sender_name=parent.state.name or "parent",
            relationship="parent",
            text=text,
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )
        shown = text if generation == 1 else shown_message(item)
        async with self._kin.live(child).lock:
            if child.status not in OPEN:
                raise SessionClosed(STOPPED)
            # Without an item of the parent's it was a client that gave the task: a person.
            origin: r.Origin = "client" if child.item_id is None else "message"
            delivery = await actor.deliver(item, shown=shown, origin=origin)
        await self._documents.note(parent, child, generation, prompt_durable_at_ms=now_ms)
        return delivery

    async def follow_up(
        self, parent: SessionActor, child: Child, text: str, *, item_id: str | None
    ) -> Literal["delivered", "queued"]:
        """Give another task to a child whose last one is closed. Raises SessionClosed."""
        stops = self.stops(parent)
        await self._kin.session_of(child)
        await self.feed(parent, child, On.FOLLOW_UP, item_id=item_id)
        by_cell = item_id is not None
        if self.stops(parent) != stops or (by_cell and self._kin.held_since(parent)):
            await self.feed(parent, child, On.CANCEL)
            raise SessionClosed(STOPPED)
        return await self.give(parent, child, text)

    # --- the life-cycle ---

    async def feed(
        self,
        parent: SessionActor,
        child: Child,
        given: On,
        *,
        error: str | None = None,
        phase: Literal["beforePrompt", "afterPrompt"] | None = None,
        item_id: str | None = None,
    ) -> bool:
        """
        Let something happen to a child; False when it changes nothing.

        When this returns, the change is durable, and what it asks for is done: the parent's notice
        is queued, a stopped child's session and its descendants are closed.
        """
        # A fork may forget a child that it only reads; the child itself is not the fork's to end.
        actor = None if child.foreign else self._kin.loaded(child.admitted.session_id)
        async with self._kin.live(child).lock:
            status, actions = step(child.status, given)
            if status is child.status:
                return False
            if Do.STOP in actions and not child.foreign:
                # First stopped, then recorded: what it used until then is known, and a crash in
                # between leaves a task that recovery closes.
                await self.close_session(child, deleted=status is Status.DELETED)
            if actor is not None:
                await self._accounts.fold_up(actor)
            records = await self._records(
                parent,
                child,
                actor,
                given,
                status,
                actions,
                error=error,
                phase=phase,
                item_id=item_id,
            )
            if given is On.QUIET and actor is not None and not self._quiet(actor):
                return False  # something began meanwhile; its end asks again
            await parent.append(*records)
        await self._act(parent, child, actor, actions)
        return True

    async def _records(
        self,
        parent: SessionActor,
        child: Child,
        actor: SessionActor | None,
        given: On,
        status: Status,
        actions: tuple[Do, ...],
        *,
        error: str | None,
        phase: Literal["beforePrompt", "afterPrompt"] | None,
        item_id: str | None,
    ) -> list[r.Record]:
        records: list[r.Record] = []
        if Do.ADMIT in actions:
            turn = parent.state.turn
            records.append(
                r.ChildStatusChanged(
                    child_id=child.id,
                    status="queued",
                    generation=child.generation + 1,
                    turn_id=turn.turn_id if turn else None,
                    item_id=item_id,
                )
            )
        elif Do.END in actions:
            records.append(
                r.ChildStatusChanged(
                    child_id=child.id,
                    status=_CLOSED.get(status, "cancelled"),
                    generation=child.generation,
                    outcome=await self._outcome(parent, child, given),
                    error=error,
                    phase=phase,
                    children=len(registry_of(actor).children) if actor else 0,
                )
            )
        elif status is not Status.DELETED:
            told: Literal["running", "completed"] = "running" if status in BUSY else "completed"
            records.append(
                r.ChildStatusChanged(child_id=child.id, status=told, generation=child.generation)
            )
        if Do.BURY in actions:
            records.append(r.ChildDeleted(child_id=child.id))
        return records

    async def _outcome(self, parent: SessionActor, child: Child, given: On) -> Outcome:
        if given in (On.CANCEL, On.DELETE):
            return "cancelled"
        if given is not On.QUIET:
            return "failed"
        if await self._documents.has_result(parent, child, child.generation):
            return "submitted"
        return "replied" if child.replied else "endedWithoutReply"

    async def _act(
        self,
        parent: SessionActor,
        child: Child,
        actor: SessionActor | None,
        actions: tuple[Do, ...],
    ) -> None:
        if Do.ADMIT in actions:
            await self._documents.give(parent, child, child.generation)
        if Do.END in actions:
            await self.tell(parent, child, actor)
            await self._documents.note(
                parent,
                child,
                child.generation,
                ended_at_ms=self._kin.clock.now_ms(),
                outcome=child.outcome,
                replied=child.replied,
            )
        if child.status not in BUSY:
            self._start_task(self.settle, parent)

    async def tell(
        self, parent: SessionActor, child: Child, actor: SessionActor | None = None
    ) -> None:
        """Queue the notice of a task's end with the parent, if it is still owed."""
        if not child.owes_notice or child.outcome is None or not await self._listens(parent):
            return
        now_ms = self._kin.clock.now_ms()
        item = ChildMessage(
            id=notice_id(child.id, child.generation),
            sender_id=child.id,
            sender_name=child.name,
            relationship="child",
            notice=child.outcome,
            text=notice_text(
                child.outcome,
                name=child.name,
                generation=child.generation,
                error=child.error,
                preview=recent_of(actor).preview(PREVIEW_CHARS) if actor else "",
                contracted=child.admitted.contract is not None,
            ),
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )
        try:
            await parent.deliver(item, shown=shown_notice(item), origin="notice")
        except SessionClosed:
            return  # it is still owed: the parent gets it when it is opened again
        await self._documents.note(parent, child, child.generation, notice_admitted=True)

    async def _listens(self, actor: SessionActor) -> bool:
        """Whether a notice may start a turn: not in a child that failed or is about to be lost."""
        if actor.state.opened.parent is None:
            return True
        _, child = await self._kin.parent_of(actor)
        return child.living and self._kin.live(child).ours

    async def close_session(self, child: Child, *, deleted: bool = False) -> None:
        """Close a child's session and everything below it, if it is open."""
        self._places.release(child.admitted.session_id)
        loaded = self._kin.loaded(child.admitted.session_id)
        if loaded is not None:
            await loaded.close(reason="deleted" if deleted else "detached")

    # --- what sessions tell: hooks ---

    async def before_request(self, actor: SessionActor, request: Request, attempt: int) -> None:
        """
        Wait for a place to run, say that the child runs, and reserve from the budgets.

        Raises:
            SessionClosed: the child was stopped meanwhile.
            PolicyDenied: a person stopped the tree.
            BudgetExhausted: there is no room.
        """
        self._kin.unless_stopped(actor)
        link = actor.state.opened.parent
        if link is not None:
            await self._places.acquire(actor.id, link.depth)
            parent, child = await self._kin.parent_of(actor)
            given = On.START if child.status is Status.QUEUED else On.WAKE
            await self.feed(parent, child, given)
            if child.status not in BUSY:
                raise SessionClosed("The child was stopped.")
            self._kin.unless_stopped(actor)
        await self._accounts.reserve(actor, request, attempt)

    async def after_request(self, actor: SessionActor, attempt: int, usage: Any) -> None:
        """Settle the budgets and fold the usage upwards."""
        await self._accounts.settle(actor, attempt, usage)
        await self._accounts.fold_up(actor)

    async def after_turn(self, actor: SessionActor, ended: r.TurnCompleted) -> None:
        """Give the place back, and remember why a turn failed."""
        if actor.state.opened.parent is not None:
            self._start_task(self._rest, actor)
            _, child = await self._kin.parent_of(actor)
            self._kin.live(child).error = ended.error.message if ended.error else None

    async def _rest(self, actor: SessionActor) -> None:
        """Give the place back once no more kernels rest than may run: others need the machine."""
        try:
            for session_id in self._places.rest(actor.id, actor.depth):
                longest = self._kin.loaded(session_id)
                if longest is not None and longest.state.turn is None and not longest.closing:
                    await longest.kernel.unload()
        finally:
            if actor.state.turn is None:
                self._places.release(actor.id)

    async def on_idle(self, actor: SessionActor) -> None:
        """See, beside the session, whether its task is over."""
        self._start_task(self.settle, actor)

    def is_quiet(self, actor: SessionActor) -> bool:
        """Whether no child is doing anything or still to be told of."""
        return not registry_of(actor).unsettled()

    async def settle(self, actor: SessionActor) -> None:
        """Close a child's task if its session is quiet."""
        if actor.state.opened.parent is None or not self._quiet(actor):
            return
        parent, child = await self._kin.parent_of(actor)
        given, error = await self._ending(parent, child, actor)
        await self.feed(parent, child, given, error=error)

    def _quiet(self, actor: SessionActor) -> bool:
        busy = actor.state.turn or actor.state.pending or actor.closing
        return not busy and all(quiet(actor) for quiet in self._ports.is_quiet)

    async def wake(self, actor: SessionActor) -> None:
        """Say that a child does something though its task is over."""
        if actor.state.opened.parent is not None:
            parent, child = await self._kin.parent_of(actor)
            await self.feed(parent, child, On.WAKE)

    async def _ending(
        self, parent: SessionActor, child: Child, actor: SessionActor
    ) -> tuple[On, str | None]:
        contract, last = child.admitted.contract, actor.state.last_status
        if await self._documents.has_result(parent, child, child.generation):
            return On.QUIET, None
        if last == "interrupted":
            return On.CANCEL, None
        if last == "failed":
            return On.FAIL, self._kin.live(child).error
        if contract is not None and contract.required:
            return On.FAIL, REQUIRED
        return On.QUIET, None

    # --- stopping ---

    def stops(self, parent: SessionActor) -> int:
        """Count the stops of a session's subtree: a spawn that saw another number is too late."""
        return self._stops.get(parent.id, 0)

    async def on_stop(self, actor: SessionActor) -> None:
        """
        Cancel everything below a session; when this returns, nothing of it runs.

        Those that rest are closed too: their cells may have left commands and tasks running.
        """
        self._stops[actor.id] = self.stops(actor) + 1
        busy = [child for child in registry_of(actor).busy() if self._kin.live(child).ours]
        await all_of(*(self.feed(actor, child, On.CANCEL) for child in busy))
        await self._close_all(actor)

    async def on_close(self, actor: SessionActor) -> None:
        """
        A closing parent cancels its children and closes those that rest.

        Those that a crash left busy, and that are not recovered yet, are left to the next recovery.
        """
        self._places.release(actor.id)
        await self.on_stop(actor)

    async def _close_all(self, actor: SessionActor) -> None:
        own = [child for child in registry_of(actor).children.values() if not child.foreign]
        await all_of(*(self.close_session(child) for child in own))

    async def cancel(self, parent: SessionActor, child: Child) -> None:
        """Cancel a child's task, if one is open, and end its session's process tree."""
        await self.feed(parent, child, On.CANCEL)
        if not child.foreign:
            await self.close_session(child)

    async def delete(self, parent: SessionActor, child: Child, *, by_parent: bool) -> None:
        """
        Bury a child and everything below it; transcript and artifacts stay.

        The parent that deletes a child itself needs no notice of it; else an open task is cancelled
        first, with its notice.
        """
        if not by_parent and child.status in OPEN:
            await self.feed(parent, child, On.CANCEL)
        await self.feed(parent, child, On.DELETE)


_CLOSED: dict[Status, Literal["completed", "error"]] = {
    Status.COMPLETED: "completed",
    Status.ERROR: "error",
}
