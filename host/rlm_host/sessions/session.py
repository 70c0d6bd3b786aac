"""The actor of one session: everything that changes it goes through here, its journal first."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from rlm_protocol import records as r
from rlm_protocol.base import Cursor
from rlm_protocol.errors import TurnBusy, TurnMismatch, TurnNotActive
from rlm_protocol.host import ArtifactReadResult
from rlm_protocol.item import Item, UserMessage
from rlm_protocol.repl import ReplExecuteResult
from rlm_protocol.session import SessionClosed as ClosedNotice
from rlm_protocol.session import (
    SessionOptions,
    SessionQuiet,
    SessionResumeResult,
    Thinking,
)
from rlm_protocol.turn import QueuedInput
from rlm_protocol.usage import Budget

from ..kernels.cell import SnapshotReport
from ..models.catalog import check_thinking
from ..paths import Directory
from .approvals import Approvals
from .artifacts import read_piece
from .cells import Cells, execute_result
from .configuring import change_options
from .lease import Lease
from .make_kernel import make_kernel
from .notifications import Notification
from .options import env_of
from .ports import Kernel
from .prompt import with_schema
from .recorded import CHECKPOINT_IDLE, Environment, Recorded, T
from .recovery import Recovered
from .requests import Requests
from .schema import check_schema
from .state import PERSONAL, closing_records
from .subscriptions import Listener
from .together import all_of
from .turn import Turn

END_S = 2.0
"""A closing session waits this long for its turn, and as long again for what it left behind."""


class SessionActor(Recorded):
    """
    One loaded session. Made by `SessionStore` alone; everything is called in the event loop.

    Every public coroutine may raise SessionClosed, StoreFull and StoreUnavailable; then nothing
    of what was asked has happened.
    """

    def __init__(
        self,
        shared: Environment,
        recovered: Recovered,
        *,
        directory: Directory,
        journal_name: str,
        artifacts_path: Path,
        lease: Lease,
        env: dict[str, str],
        on_changed: Callable[["SessionActor"], Awaitable[None]],
        on_closed: Callable[["SessionActor"], Awaitable[None]],
    ) -> None:
        super().__init__(
            shared,
            recovered,
            directory=directory,
            journal_name=journal_name,
            artifacts_path=artifacts_path,
        )
        self.cells = Cells(self)
        self.approvals = Approvals(self)
        self.tool_client: str | None = None
        """The client that declared the tools; nobody yet after a restart."""
        self._lease, self.env = lease, env
        self._on_changed, self._on_closed = on_changed, on_closed
        self._requests = Requests(self)
        self._turn: Turn | None = None
        self._running: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._delivering: set[str] = set()
        self._configuring = asyncio.Lock()
        self._closed: asyncio.Future[None] | None = None
        self.kernel: Kernel = self._make_kernel()

    async def start(self, damage: list[r.DamageFound]) -> None:
        """Record what opening found, close what a crash left open, take up what waits."""
        closing = closing_records(self.state, now_ms=self.clock.now_ms())
        if damage or closing:
            await self.append(*damage, *closing)
        for hook in self.ports.on_load:
            await hook(self)
        if self.pending("steer"):
            self.launch(self._next())

    def _notification(self, entry: r.Entry) -> Notification | None:
        project = self.ports.project.get(type(entry.record))
        return project(self, entry) if project else super()._notification(entry)

    # --- turns ---

    async def start_turn(
        self,
        text: str,
        *,
        client_message_id: str | None = None,
        output_schema: dict[str, Any] | None = None,
        budget: Budget | None = None,
        origin: r.Origin = "client",
    ) -> str:
        """
        Make an input durable and run a turn for it; give the turn's id.

        Raises:
            TurnBusy: a turn runs; `turn_id` names it.
            InvalidParams: `output_schema` is no JSON Schema.
        """
        if output_schema is not None:
            check_schema(output_schema)
        self._check_open()
        if self._turn is not None:
            raise TurnBusy(turn_id=self._turn.turn_id)
        now_ms = self.clock.now_ms()
        item = UserMessage(
            id=self.new_id("user"),
            text=text,
            client_message_id=client_message_id,
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )
        shown = None
        if output_schema is not None:
            shown = with_schema(text, json.dumps(output_schema, ensure_ascii=False))
        accepted = r.TurnAccepted(
            turn_id=self.new_id("turn"),
            origin=origin,
            client_message_id=client_message_id,
            output_schema=output_schema,
            budget=budget,
        )
        return await self._begin(accepted, [r.ItemCompleted(item=item, shown=shown)])

    async def steer(self, expected_turn_id: str, text: str) -> None:
        """Add to the running turn; enters before its next request. Raises Turn* errors."""
        self._check_open()
        if self._turn is None:
            raise TurnNotActive
        if self._turn.turn_id != expected_turn_id:
            raise TurnMismatch(expected=expected_turn_id, running=self._turn.turn_id)
        await self.append(r.InputQueued(item=self._said(text), origin="client", mode="steer"))

    async def queue(self, text: str) -> str:
        """Queue a follow-up for after the running turn, or start it at once; give its id."""
        self._check_open()
        item = self._said(text)
        await self.append(r.InputQueued(item=item, origin="queue", mode="follow_up"))
        if self._turn is None:
            await self._next(follow_up=True)
        return item.id

    def queued(self) -> tuple[QueuedInput, ...]:
        """Give the follow-ups that wait, oldest first."""
        return tuple(
            QueuedInput(queue_id=waiting.item.id, text=getattr(waiting.item, "text", ""))
            for waiting in self.pending("follow_up")
        )

    async def deliver(
        self,
        item: Item,
        *,
        shown: str,
        origin: r.Origin = "message",
        mode: Literal["steer", "follow_up"] = "steer",
    ) -> Literal["delivered", "queued"]:
        """
        Say something to the session: a new turn when it is idle, else steering or a follow-up.

        `item.id` identifies it: a second delivery of the same id, also after a restart, changes
        nothing. `delivered` when a turn has taken it up, `queued` while it waits for one.
        """
        self._check_open()
        if item.id not in self.state.pending and item.id not in self._delivering:
            if item.id in self.state.settled:
                return "delivered"
            self._delivering.add(item.id)
            try:
                record = r.InputQueued(item=item, origin=origin, mode=mode, shown=shown)
                await self.append(record)
            finally:
                self._delivering.discard(item.id)
            await self._next(follow_up=True)
        return "delivered" if item.id in self.state.settled else "queued"

    async def withdraw(self, item_id: str) -> bool:
        """Take back an input that waits. False: it was taken up already, or never queued."""
        if item_id not in self.state.pending:
            return False
        await self.append(r.InputWithdrawn(item_id=item_id))
        return True

    def pending(self, mode: Literal["steer", "follow_up"]) -> list[r.InputQueued]:
        """Give the inputs of a kind that wait, oldest first."""
        return [one for one in self.state.pending.values() if one.mode == mode]

    async def interrupt(self, turn_id: str | None = None, *, subtree: bool = False) -> str | None:
        """
        End the running turn, and with `subtree` everything below; `turn/completed` tells the rest.

        It comes in at most a second. Gives the turn's id, None when none runs. A `subtree` stop
        also ends the cells, background commands and tasks of the whole tree, those that do not
        yield with their kernels; nothing that waits starts a turn until a person starts one.

        Raises:
            TurnMismatch: another turn than `turn_id` runs.
        """
        turn = self._turn
        if turn_id is not None and turn is not None and turn.turn_id != turn_id:
            raise TurnMismatch(expected=turn_id, running=turn.turn_id)
        if turn is not None:
            turn.interrupt.set()
        if subtree:
            try:
                await self.append(r.InputsHeld())
            finally:  # a full disk keeps nothing running
                await all_of(self.kernel.stop(), *(stop(self) for stop in self.ports.on_stop))
        return turn.turn_id if turn else None

    async def wait_idle(self) -> None:
        """Return when no turn runs and nothing that may start one waits."""
        await self._idle.wait()

    async def _begin(self, accepted: r.TurnAccepted, items: list[r.ItemCompleted]) -> str:
        """Accept and run a turn. A caller that is cancelled meanwhile leaves a whole one behind."""
        turn = self._turn = Turn(self, accepted.turn_id, accepted.output_schema)
        self._idle.clear()
        await self.beside(self._accept(turn, accepted, items))
        return accepted.turn_id

    async def _accept(
        self, turn: Turn, accepted: r.TurnAccepted, items: list[r.ItemCompleted]
    ) -> None:
        mine = [
            msgspec.structs.replace(
                record, item=msgspec.structs.replace(record.item, turn_id=turn.turn_id)
            )
            for record in items
        ]
        try:
            await self.append(accepted, *mine)
        except BaseException:
            self._turn = None
            self._idle.set()
            raise
        self._running = self.launch(self._run(turn))

    async def _run(self, turn: Turn) -> None:
        try:
            ended = await turn.run()
            self._turn = None
            for hook in self.ports.after_turn:
                await hook(self, ended)
        finally:
            self._turn = None
            await self._next(follow_up=self.state.last_status != "interrupted")

    async def _next(self, *, follow_up: bool = False) -> None:
        """Start a turn for what waits; else the session is idle."""
        if self._turn is not None or self.closing:
            return
        taken = self._may_begin("steer")
        if not taken and follow_up:
            waiting = self._may_begin("follow_up")
            taken = [one for one in waiting if one.origin != "queue"] or waiting[:1]
        if taken:
            accepted = r.TurnAccepted(turn_id=self.new_id("turn"), origin=taken[0].origin)
            await self._begin(
                accepted, [r.ItemCompleted(item=one.item, shown=one.shown) for one in taken]
            )
            return
        self._idle.set()
        self._checkpoint(unless_fewer=CHECKPOINT_IDLE)
        for hook in self.ports.on_idle:
            await hook(self)
        self.check_quiet()

    def _may_begin(self, mode: Literal["steer", "follow_up"]) -> list[r.InputQueued]:
        """Give what waits; after a stop, only what a person has said since."""
        since_ms = max((held(self) for held in self.ports.held_since), default=0)
        if self.state.held:
            since_ms = max(since_ms, self.state.held_at_ms, 1)
        return [
            one
            for one in self.pending(mode)
            if not since_ms or (one.origin in PERSONAL and one.item.started_at_ms > since_ms)
        ]

    def check_quiet(self) -> None:
        """Tell clients when nothing of the session is unsettled any more."""
        if self.quiet:
            self.emit("session/quiet", SessionQuiet(**self.where()))

    def _said(self, text: str) -> UserMessage:
        now_ms = self.clock.now_ms()
        return UserMessage(
            id=self.new_id("user"), text=text, started_at_ms=now_ms, completed_at_ms=now_ms
        )

    def turn_of(self, cell_id: str | None) -> Turn | None:
        """Give the running turn that a cell belongs to; what a cell left behind is any turn's."""
        turn = self._turn
        if turn is None or self.cells.running.get(cell_id or "", turn.turn_id) != turn.turn_id:
            return None
        return turn

    @property
    def quiet(self) -> bool:
        """Whether no turn runs, nothing waits for one, and nothing below is unsettled."""
        return self._idle.is_set() and all(quiet(self) for quiet in self.ports.is_quiet)

    # --- the kernel ---

    async def execute_cell(
        self,
        code: str,
        *,
        author: Literal["client", "child", "host"] = "client",
        silent: bool = False,
    ) -> ReplExecuteResult:
        """
        Run a cell in the session's kernel, behind those that wait. Cancelling interrupts it.

        A `silent` cell leaves no record and no item.

        Raises:
            KernelDied, KernelBusy, KernelUnavailable: and the cell's item says so, too.
        """
        self._check_open()
        item_id = self.new_id("cell")
        if silent:
            return await self.cells.run_silent(code, item_id=item_id)
        try:
            run = await self.beside(self.cells.run(code, item_id=item_id, author=author))
        except asyncio.CancelledError:
            self.kernel.interrupt(item_id)
            raise
        if run.failure is not None:
            raise run.failure
        return execute_result(run)

    def artifacts(self) -> Directory:
        """Open the folder of the session's artifacts; the caller closes it."""
        with Directory.open(self.artifacts_path) as folder:
            return folder.sub("artifacts")

    async def read_artifact(self, artifact_id: str, offset: int, limit: int) -> ArtifactReadResult:
        """Give a piece of an artifact, in bytes. Raises ArtifactNotFound."""
        return await self.in_thread(read_piece, self.artifacts, artifact_id, offset, limit)

    async def snapshot(self) -> SnapshotReport:
        """Save the kernel's namespace now. Raises SnapshotFailed and Kernel* errors."""
        return await self.kernel.snapshot()

    async def save_unsaved(self) -> None:
        """Save the namespace if a resting kernel has names that are newer than its snapshot."""
        await self.kernel.save_unsaved()

    def inherited(self) -> SessionOptions:
        """Give the options with the values of variables: what a child starts from."""
        options = self.state.options
        if options.recipe is None:
            return options
        recipe = msgspec.structs.replace(options.recipe, env=self.env or None)
        return msgspec.structs.replace(options, recipe=recipe)

    def _make_kernel(self) -> Kernel:
        return make_kernel(self, self._shared.kernels, self.env)

    # --- changes of the session itself ---

    async def rename(self, name: str) -> None:
        """Give the session another name."""
        await self.append(r.SessionRenamed(name=name))
        await self._on_changed(self)

    async def configure(self, options: SessionOptions) -> None:
        """
        Change the fields of the options that are given.

        Another recipe ends the running kernel, with a snapshot; the next cell starts one by it.
        Other tools are bound behind the cells that run or wait.

        Raises:
            InvalidParams: a tool cannot be offered. Nothing has changed.
        """
        self._check_open()
        async with self._configuring:
            whole = await change_options(self, options)
            self.env = env_of(whole) or self.env
            if options.recipe is not None:
                await self.kernel.aclose()
                self.kernel = self._make_kernel()
            elif options.tools is not None:
                self.kernel.rebind()

    async def set_model(self, model: str, thinking: Thinking | None) -> None:
        """Use another model from the next request on. Raises ModelUnavailable, AuthRequired, …"""
        info = self.models.resolve(model)
        check_thinking(info, thinking)
        await self.append(r.ModelChanged(model=info.selector, thinking=thinking))

    async def archive(self, archived: bool) -> None:
        """Take the session out of the usual list, or back into it."""
        await self.append(r.SessionArchived(archived=archived))
        await self._on_changed(self)

    async def once(
        self,
        key: str | None,
        method: str,
        params: msgspec.Struct,
        run: Callable[[], Awaitable[T]],
    ) -> T:
        """Run a mutating request once per idempotency key; see `Requests.once`."""
        return await self._requests.once(key, method, params, run)

    async def attach(self, listener: Listener, cursor: Cursor | None = None) -> SessionResumeResult:
        """
        As `Recorded.attach`; then what waits for a person, below too, is put to the client.

        One that comes back hears last that the session is quiet: no record would tell it.
        """
        resumed = await super().attach(listener, cursor)
        for one in (self, *self.descendants):
            one.approvals.ask_again(listener)
        if cursor is not None and self.quiet:
            listener("session/quiet", SessionQuiet(**self.where(self.state.seq)))
        return resumed

    # --- life ---

    async def close(
        self,
        *,
        reason: Literal["detached", "archived", "deleted", "shutdown", "slow"] = "shutdown",
    ) -> None:
        """End the turn, the kernel and the journal. Closing twice is fine."""
        if self._closed is None:
            self.closing = True
            self._closed = asyncio.ensure_future(self._close(reason))
        await asyncio.shield(self._closed)

    async def _close(self, reason: Any) -> None:
        if self._turn is not None:
            self._turn.interrupt.set()
        # All of a tree at once: a cell that does not yield must not keep those below it waiting.
        kernel = asyncio.ensure_future(self.kernel.aclose(snapshot=not self.state.opened.ephemeral))
        for hook in self.ports.on_close:
            await hook(self)
        if self._running is not None:
            await asyncio.wait([self._running], timeout=END_S)
        await kernel
        if self._usage_timer is not None:
            self._usage_timer.cancel()
        left = [task for task in self._tasks if task is not self._checkpointing]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=END_S)
        if not self.state.opened.ephemeral:
            await self._last_checkpoint()
        await self._journal.aclose()
        closed = ClosedNotice(**self.where(self.state.seq), reason=reason)
        self.subscriptions.emit(0, "session/closed", closed)
        self._lease.release()
        self._directory.close()
        await self._on_closed(self)
