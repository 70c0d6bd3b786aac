"""The kernel a session owns: started by its first cell, revived when it died, ended with it."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from rlm_protocol import kernel
from rlm_protocol.errors import InvalidParams, KernelBusy, KernelDied
from rlm_protocol.limits import CELLS_QUEUED, INSPECT_MS
from rlm_protocol.repl import SnapshotInfo

from ..paths import check_id
from ..processes.pipes import to_the_end
from .bootstrap import Bootstrap, bind_code
from .cell import (
    CellOutcome,
    Completion,
    HostRequests,
    Inspection,
    KernelStatus,
    Names,
    OnEvent,
    OnSaved,
    OutputEvent,
    Revival,
    SnapshotReport,
)
from .client import Kernel, Question
from .environment import KernelHost, prepare
from .lifecycle import State
from .opening import After, open_kernel
from .recipe import Recipe, SessionFacts
from .saving import Saving
from .slot import KernelSlot
from .snapshots import SnapshotStore
from .worker import Worker, settle

YIELD_MS = 800
"""A session that closes or is stopped gives its running cell this long, then kills it."""
LAST_SAVE_MS = 5_000
DIED = (
    "The kernel ended in this cell. The next cell starts another, with the last snapshot's names."
)
OUT_OF_MEMORY = (
    "The kernel was ended in this cell: its processes held more memory than there is, or than its "
    "limit. The next cell starts another, with the last snapshot's names."
)
log = logging.getLogger(__name__)


class _Cell(msgspec.Struct, eq=False):
    id: str
    code: str
    silent: bool
    on_event: OnEvent
    future: asyncio.Future[CellOutcome] | None = None
    begun: bool = False
    interrupted: bool = False


class SessionKernel:
    """
    One session's kernel. An async context manager; leaving it is `aclose()`.

    No process exists before the first `execute`. One worker task serves the queue in order: cells,
    snapshots, restores, restarts; only it starts and ends the process. After a cell that went well
    the namespace is saved once it has been quiet for a moment.
    """

    def __init__(
        self,
        *,
        host: KernelHost,
        recipe: Recipe,
        cwd: Path,
        session_dir: Path,
        depth: int,
        max_depth: int,
        host_requests: HostRequests,
        on_background: Callable[[OutputEvent], None],
        on_status: Callable[[KernelStatus], None] | None = None,
        on_saved: OnSaved | None = None,
        persistent: bool = True,
        bootstrap: Bootstrap = bind_code,
    ) -> None:
        """
        Nothing is started and nothing written.

        Args:
            host: what all kernels of this host share.
            recipe: how the process is started.
            cwd: the session's folder; cells start there.
            session_dir: the session's artifact folder; snapshots lie there.
            depth: RLM_DEPTH of the kernel.
            max_depth: RLM_MAX_DEPTH of the kernel.
            host_requests: answers what cells ask.
            on_background: gets output that belongs to no running cell of ours.
            on_status: told of every change of `status`.
            on_saved: told of every snapshot, also of those that nobody asked for.
            persistent: keep snapshots.
            bootstrap: what a new process is told before its first cell.
        """
        self._host = host
        self._facts = SessionFacts(
            recipe=recipe, cwd=cwd, session_dir=session_dir, depth=depth, max_depth=max_depth
        )
        self._host_requests = host_requests
        self._on_background = on_background
        self._on_status = on_status
        store = SnapshotStore(host.home, session_dir) if persistent else None
        self._slot = KernelSlot(self._open, store, bootstrap)
        self._told_status = KernelStatus.ABSENT
        self._told_revival: Revival | None = None
        self._worker = Worker(self._between, self._end)
        self._cells: dict[str, _Cell] = {}
        self._running: _Cell | None = None
        self._saving = Saving(
            self._slot,
            self._worker,
            clock=host.clock,
            after_ms=host.snapshot_after_ms,
            on_saved=on_saved,
        )
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def status(self) -> KernelStatus:
        """What the kernel is doing."""
        return self._slot.status

    @property
    def revival(self) -> Revival | None:
        """What the living process brought back when it took an earlier one's place."""
        return self._slot.revival

    @property
    def pid(self) -> int | None:
        """The kernel's pid; None without a process, or where its guard cannot tell."""
        return self._slot.kernel.pid if self._slot.kernel is not None else None

    @property
    def snapshot_blocked(self) -> str | None:
        """Why the snapshot on disk could not be used. None is written until it is dropped."""
        return self._slot.blocked

    # --- cells ------------------------------------------------------------------------------------

    async def execute(
        self, code: str, *, cell_id: str, on_event: OnEvent, silent: bool = False
    ) -> CellOutcome:
        """
        Run a cell; waits behind earlier ones. Cancelling the call interrupts the cell.

        Raises:
            KernelDied: the process ended in this cell (exit_code, signal, stderr_tail). The next
                call starts a new one from the last snapshot.
            KernelBusy: too many cells wait already.
            KernelUnavailable: no kernel can be started from the recipe.
            InvalidParams: `cell_id` is not an id, or is in use.
            TooLarge: the code is over the limit of a request.
            SessionClosed: `aclose` was called.
        """
        if check_id(cell_id) in self._cells:
            raise InvalidParams("A cell with this id runs or waits already.", cell_id=cell_id)
        if self._worker.waiting >= CELLS_QUEUED:
            raise KernelBusy("Too many cells wait for this kernel.", waiting=CELLS_QUEUED)
        cell = _Cell(id=cell_id, code=code, silent=silent, on_event=on_event)
        cell.future = self._worker.put(functools.partial(self._run, cell))
        cell.future.add_done_callback(lambda _: self._forget(cell))
        self._cells[cell_id] = cell
        try:
            return await cell.future
        except asyncio.CancelledError:
            self._interrupt(cell)
            raise

    def interrupt(self, cell_id: str | None = None) -> bool:
        """
        Interrupt one cell, running or waiting (None: the running one). False: no such cell.

        Its `execute` returns when it has ended, killed with its process after 7 s if it does not
        yield; a cell that waited never starts.
        """
        cell = self._running if cell_id is None else self._cells.get(cell_id)
        if cell is None:
            return False
        self._interrupt(cell)
        return True

    async def stop(self) -> None:
        """
        End every cell, running or waiting, and the tasks and commands that cells left running.

        What does not yield in `YIELD_MS` is killed with the process; the last snapshot is kept.
        """
        ending = [cell.future for cell in self._cells.values() if cell.future is not None]
        for cell in list(self._cells.values()):
            self._interrupt(cell)
        if ending:
            _, stuck = await asyncio.wait(ending, timeout=YIELD_MS / 1000)
            if stuck:
                self.kill()
                return
        if self._slot.live is not None:
            # A snapshot that is just being written is waited for.
            limit_ms = LAST_SAVE_MS if self._worker.running else YIELD_MS
            stopping = self._worker.put(self._slot.stop_background, first=True)
            _, hanging = await asyncio.wait([stopping], timeout=limit_ms / 1000)
            if hanging:
                self.kill()

    # --- questions --------------------------------------------------------------------------------

    async def names(self, *, detail: bool = False) -> Names:
        """List the user's names, behind a running cell. Empty while there is no process."""
        if (live := self._slot.live) is None:
            return Names()
        done = await live.ask(kernel.ListNames(id=live.new_id(), detail=detail))
        details = tuple(done.details or ())
        return Names(
            names=tuple(done.names or (row.name for row in details)),
            details=details,
            truncated=bool(done.truncated),
        )

    async def complete(self, code: str, cursor: int) -> Completion:
        """
        Complete `code` at `cursor` (code points). Nothing while there is no process.

        Raises KernelBusy when a synchronous cell keeps the kernel from answering in time.
        """
        if (live := self._slot.live) is None:
            return Completion(cursor_start=cursor, cursor_end=cursor)
        request = kernel.Complete(id=live.new_id(), code=code, cursor=cursor)
        done = await self._soon(live, request)
        return Completion(
            matches=tuple(done.matches or ()),
            cursor_start=done.cursor_start or 0,
            cursor_end=done.cursor_end or 0,
        )

    async def inspect(self, code: str, cursor: int) -> Inspection:
        """
        Describe the name at `cursor` (code points). Nothing while there is no process.

        Raises KernelBusy when a synchronous cell keeps the kernel from answering in time.
        """
        if (live := self._slot.live) is None:
            return Inspection()
        request = kernel.Inspect(id=live.new_id(), code=code, cursor=cursor)
        done = await self._soon(live, request)
        return Inspection(found=bool(done.found), text=done.text or "")

    # --- the namespace as a whole -----------------------------------------------------------------

    def rebind(self) -> None:
        """Have a living process learn what `bootstrap` gives now, behind cells that wait."""
        if self._slot.kernel is not None and self._ending is None:
            # A process that dies over it is replaced by one that learns it at its start.
            self._worker.put(self._slot.rebind).add_done_callback(_look_at)

    async def snapshot(self, *, prune_oversized: bool = False) -> SnapshotReport:
        """
        Save the namespace now, behind cells that run or wait.

        Raises:
            SnapshotFailed: nothing was saved; the last snapshot is as it was.
            KernelDied: the process ended over it.
        """
        return await self._worker.put(lambda: self._saving.now(prune_oversized=prune_oversized))

    async def save_unsaved(self) -> None:
        """Save what is newer than the last snapshot, unless a cell runs or waits."""
        if not self._cells:
            await self._saving.unsaved()

    async def unload(self) -> bool:
        """
        Save the namespace and end the process, if nothing is lost by it: the next cell starts one.

        It stays while something that a cell began goes on (a thread, a task, a process, a request),
        when a name cannot be saved, and when no snapshot is kept. Tells whether there is none now.

        Raises SnapshotFailed, KernelDied.
        """
        if self.status is KernelStatus.ABSENT:
            return True
        ended = await self._worker.put(self._saving.unload)
        self._tell_status()
        return ended

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """Give the snapshots on disk, the newest first. Raises OSError."""
        return await self._slot.snapshots()

    async def restore(self, snapshot_id: str | None = None) -> Revival:
        """
        Load the last snapshot, or the named one, behind cells that run or wait.

        Raises:
            SnapshotUntrusted: this host has not written it.
            SnapshotFailed: there is none, or it cannot be loaded. It is kept.
            KernelDied: the process ended over it.
            KernelUnavailable: no kernel can be started.
        """
        return await self._worker.put(lambda: self._slot.restore(snapshot_id))

    async def restart(self, *, restore: bool) -> Revival | None:
        """
        Kill the process and start another, with the last snapshot's names or with none.

        Cells that run or wait end as interrupted. Raises KernelUnavailable, KernelDied.
        """

        async def renew() -> Revival | None:
            await self._slot.clear("restarted")
            await self._slot.ensure(restore=restore)
            return self._slot.revival

        for cell in list(self._cells.values()):
            self._interrupt(cell)
        self.kill()
        return await self._worker.put(renew, first=True)

    async def drop_snapshot(self) -> None:
        """Delete the snapshot, also one that was refused; new ones may be written again."""
        await asyncio.to_thread(self._slot.drop_snapshot)

    def kill(self) -> None:
        """End the process at once, without a snapshot. The next cell starts another."""
        if (alive := self._slot.kernel) is not None:
            alive.kill()

    async def aclose(self, *, snapshot: bool = True) -> None:
        """
        End everything; afterwards no process of this kernel lives. Never raises for the kernel.

        Waiting cells fail with SessionClosed. The running one is interrupted, and killed after
        `YIELD_MS`.
        With `snapshot` the namespace is saved if it is newer than its snapshot (5 s at most). Who
        must exit calls `kill()` first.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._close(snapshot))
        await to_the_end(self._ending)

    # --- the worker -------------------------------------------------------------------------------

    async def _between(self) -> None:
        self._tell_status()
        if self._slot.over and not self._worker.waiting:  # else the next start clears it away
            await self._slot.clear()
            self._tell_status()

    async def _end(self) -> None:
        await to_the_end(self._slot.clear())
        self._tell_status()

    async def _run(self, cell: _Cell) -> CellOutcome:
        self._running, told = cell, self._told_revival
        started_ms = self._host.clock.monotonic_ms()
        result: kernel.Result | None = None
        error: kernel.Error | None = None
        killed = False

        def heard(event: OutputEvent) -> None:
            nonlocal result, error
            if isinstance(event, kernel.Result):
                result = event
            elif isinstance(event, kernel.Error):
                error = event
            cell.on_event(event)

        try:
            live = await self._slot.ensure()
            self._tell_status()
            if cell.interrupted:
                return _never_began(cell)
            cell.begun = True
            request = kernel.Execute(id=cell.id, code=cell.code, silent=cell.silent)
            self._saving.begun(None if cell.silent else cell.id)
            await live.run(request, on_event=heard)
        except KernelDied as why:
            killed = self._slot.kernel is not None and self._slot.kernel.was_killed
            if not (cell.interrupted or killed):
                message = OUT_OF_MEMORY if why.data.get("reason") == "oom" else DIED
                raise KernelDied(message, **why.data) from None
            cell.interrupted, error = True, None
        finally:
            self._running = None
        stopped = cell.interrupted and result is None and (error is None or _is_interrupt(error))
        if error is None and not stopped:
            self._saving.soon()
        revival, self._told_revival = self._slot.revival, self._slot.revival
        return CellOutcome(
            cell_id=cell.id,
            status="interrupted" if stopped else "error" if error is not None else "ok",
            duration_ms=self._host.clock.monotonic_ms() - started_ms,
            result=result.text if result is not None else None,
            result_length=(result.length or len(result.text)) if result is not None else None,
            error=error,
            kernel_killed=killed,
            revival=revival if told is not revival else None,
        )

    def _interrupt(self, cell: _Cell) -> None:
        cell.interrupted = True
        if cell.begun:
            if self._slot.kernel is not None:
                self._slot.kernel.interrupt(cell.id)
        elif cell.future is not None:
            # It waits, or its kernel is being started: it need not wait for that.
            self._worker.withdraw(cell.future)
            settle(cell.future, result=_never_began(cell))

    def _forget(self, cell: _Cell) -> None:
        if self._cells.get(cell.id) is cell:
            del self._cells[cell.id]

    async def _open(self, after: After) -> contextlib.AbstractAsyncContextManager[Kernel]:
        self._tell_status()
        host = self._host
        return open_kernel(
            host.processes,
            await prepare(host, self._facts),
            templates=host.templates,
            after=after,
            host_requests=self._host_requests,
            on_background=self._on_background,
            on_state=self._state_changed,
            clock=host.clock,
            waits=host.waits,
        )

    def _state_changed(self, _: State) -> None:
        self._tell_status()
        if self._slot.over:
            self._worker.poke()

    def _tell_status(self) -> None:
        if (status := self._slot.status) is not self._told_status:
            self._told_status = status
            if self._on_status is not None:
                self._on_status(status)

    async def _soon(self, live: Kernel, request: Question) -> kernel.Done:
        # A busy kernel answers within INSPECT_MS or not before its cell has ended.
        limit_ms = INSPECT_MS if self._running is not None else 10 * INSPECT_MS
        try:
            async with asyncio.timeout(limit_ms / 1000):
                done = await live.ask(request)
        except TimeoutError:
            raise KernelBusy("A running cell keeps the kernel from answering.") from None
        if done.status != "ok":
            raise KernelBusy(done.reason or None)
        return done

    # --- the end ----------------------------------------------------------------------------------

    async def _close(self, snapshot: bool) -> None:
        self._saving.stop()
        if not self._worker.close():
            return
        if self._running is not None:
            self._interrupt(self._running)
        ended = await self._worker.last(_nothing, limit_ms=YIELD_MS)
        if ended and snapshot:
            ended = await self._worker.last(self._saving.quietly, limit_ms=LAST_SAVE_MS)
        if not ended:
            self.kill()
        await self._worker.finish(patience_ms=None if ended else YIELD_MS)


async def _nothing() -> None:
    pass


def _look_at(done: "asyncio.Future[None]") -> None:
    if not done.cancelled() and (why := done.exception()) is not None:
        log.warning("a kernel was not told what has changed: %s", why)


def _never_began(cell: _Cell) -> CellOutcome:
    return CellOutcome(cell_id=cell.id, status="interrupted", duration_ms=0)


def _is_interrupt(error: kernel.Error) -> bool:
    return error.ename == "KeyboardInterrupt"
