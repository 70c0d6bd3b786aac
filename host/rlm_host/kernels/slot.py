"""
The place of a session's kernel process: one at a time, started, filled, saved, cleared away.

Used by one task only, the session kernel's worker: nothing in here waits for anything else in here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from rlm_protocol import kernel
from rlm_protocol.errors import KernelDied, KernelUnavailable, SnapshotFailed, SnapshotUntrusted
from rlm_protocol.repl import SnapshotInfo

from ..processes.pipes import to_the_end
from .bootstrap import STOP, Bootstrap
from .cell import KernelStatus, OutputEvent, Revival, SnapshotReport
from .client import Kernel
from .lifecycle import State
from .opening import After, at_once
from .snapshots import SnapshotStore

RESTORE_MS = 60_000
"""A snapshot that takes longer to load is refused: 256 MiB take about a second."""
NO_SNAPSHOT = "There is no snapshot of this session."
log = logging.getLogger(__name__)

Reason = Literal["died", "killed", "restarted", "resumed"]
Open = Callable[[After], Awaitable[contextlib.AbstractAsyncContextManager[Kernel]]]

_STATUS = {
    State.STARTING: KernelStatus.STARTING,
    State.IDLE: KernelStatus.IDLE,
    State.BUSY: KernelStatus.BUSY,
    State.INTERRUPTING: KernelStatus.INTERRUPTING,
    State.ESCALATING: KernelStatus.INTERRUPTING,
    State.STOPPING: KernelStatus.STOPPING,
    State.TERMINATING: KernelStatus.STOPPING,
    State.KILLING: KernelStatus.STOPPING,
    State.EXITED: KernelStatus.ABSENT,
}


class KernelSlot:
    """Owns at most one kernel process. `clear` before it is dropped."""

    def __init__(self, open_: Open, store: SnapshotStore | None, bootstrap: Bootstrap) -> None:
        """
        Take a place that is empty.

        Args:
            open_: gives the block that owns a new process, which acts after what it is given.
            store: keeps the snapshots; None keeps none.
            bootstrap: what a process is told before its first cell.
        """
        self._open = open_
        self._bootstrap = bootstrap
        self._store = store
        self._stack = contextlib.AsyncExitStack()
        self._lost: Reason | None = None
        self._starting = False
        self.kernel: Kernel | None = None
        self.revival: Revival | None = None
        self.blocked: str | None = None
        """Why the snapshot on disk could not be used. Until it is dropped none is written."""

    @property
    def status(self) -> KernelStatus:
        """What the process is doing."""
        if self._starting:
            return KernelStatus.STARTING
        return KernelStatus.ABSENT if self.kernel is None else _STATUS[self.kernel.state]

    @property
    def live(self) -> Kernel | None:
        """The process, if it is there and can be asked."""
        usable = {KernelStatus.IDLE, KernelStatus.BUSY, KernelStatus.INTERRUPTING}
        return self.kernel if self.status in usable else None

    @property
    def over(self) -> bool:
        """Tell whether there is a process that has ended and must be cleared away."""
        return self.kernel is not None and self.kernel.state in (State.KILLING, State.EXITED)

    @property
    def keeps(self) -> bool:
        """Tell whether a snapshot may be written."""
        return self._store is not None and self.blocked is None

    async def ensure(self, *, restore: bool = True) -> Kernel:
        """
        Give the process; start and fill one when there is none.

        It gets ready beside the end of the last one, and acts only once that can act no more.

        Raises:
            KernelUnavailable: none can be started.
            KernelDied: it ended while it was started.
        """
        if (kernel_ := self.live) is not None:
            return kernel_
        last, block = self._take_out(None)
        ending = asyncio.create_task(block.aclose())
        self._starting = True
        lost = self._lost
        try:
            await self._start(restore, after=lambda: _acts_no_more(last, ending))
        except BaseException:
            await self.clear()
            self._lost = lost  # what failed to start held nothing that could be lost
            raise
        finally:
            self._starting = False
            await to_the_end(ending)
        assert self.kernel is not None
        return self.kernel

    async def clear(self, reason: Reason | None = None) -> None:
        """End the process, if there is one. `reason` says why when it is not its own doing."""
        _, block = self._take_out(reason)
        await block.aclose()

    def _take_out(self, reason: Reason | None) -> tuple[Kernel | None, contextlib.AsyncExitStack]:
        """Empty the place. Gives what was in it, and the block that ends it."""
        gone, self.kernel = self.kernel, None
        block, self._stack = self._stack, contextlib.AsyncExitStack()
        if reason is not None:
            self._lost = reason
        elif gone is not None:
            self._lost = "killed" if gone.was_killed else "died"
        return gone, block

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """Give what is on disk, the newest first. Raises OSError."""
        return await asyncio.to_thread(self._store.kept) if self._store is not None else ()

    async def restore(self, snapshot_id: str | None = None) -> Revival:
        """
        Load the snapshot into the live process, over what is there.

        An earlier one, named by its id, becomes the last one.

        Raises:
            SnapshotUntrusted: this host has not written it.
            SnapshotFailed: there is none, it is not kept any more, or it cannot be loaded.
            KernelDied: the process ended over it.
        """
        if snapshot_id is not None and self._store is not None:
            try:
                kept = await asyncio.to_thread(self._store.adopt, self._store, snapshot_id)
            except OSError as why:
                raise SnapshotFailed(why=str(why)) from why
            if not kept:
                raise SnapshotFailed("This snapshot is not kept any more.", snapshot=snapshot_id)
        kernel_ = await self.ensure(restore=False)
        self.blocked = None  # the user may have mended it
        revival = await self._load(kernel_, "resumed")
        if revival is None:
            raise SnapshotFailed(NO_SNAPSHOT)
        if revival.refused is not None:
            raise SnapshotFailed("The snapshot cannot be loaded; it is kept.", why=revival.refused)
        await self._bind(kernel_)
        self.revival = revival
        return revival

    async def rebind(self) -> None:
        """Tell the live process, if there is one, what `bootstrap` gives now."""
        if self.live is not None:
            await self._bind(self.live)

    async def save(self, *, prune_oversized: bool = False) -> SnapshotReport:
        """Save the live namespace. Raises SnapshotFailed (the last snapshot stays), KernelDied."""
        if self.live is None:
            raise SnapshotFailed("There is no kernel whose names could be saved.")
        if self._store is None:
            raise SnapshotFailed("An ephemeral session keeps no snapshot.")
        if self.blocked is not None:
            raise SnapshotFailed(
                "An earlier snapshot could not be used and is kept; drop it to save again.",
                why=self.blocked,
            )
        try:
            payload, manifest = await asyncio.to_thread(self._store.next_pair)
            request = kernel.Snapshot(
                id=self.live.new_id(),
                path=str(payload),
                manifest_path=str(manifest),
                prune_oversized=prune_oversized,
            )
            done = await self.live.run(request)
            snapshot_id = await asyncio.to_thread(self._store.commit) if done.status == "ok" else ""
        except OSError as why:
            raise SnapshotFailed(why=str(why)) from why
        if done.status != "ok":
            raise SnapshotFailed(why=done.reason or None)
        return SnapshotReport(
            id=snapshot_id,
            saved=tuple(done.saved or ()),
            skipped=tuple(done.skipped or ()),
            pruned=tuple(done.pruned or ()),
            size_bytes=done.bytes or 0,
            unverified=bool(done.unverified),
        )

    async def stop_background(self) -> None:
        """End what cells left running in the live process; a dead one has left nothing."""
        if self.live is None:
            return
        with contextlib.suppress(KernelDied):
            await self.live.run(kernel.Execute(id=self.live.new_id(), code=STOP, silent=True))

    def drop_snapshot(self) -> None:
        """Delete the snapshot. Raises OSError."""
        if self._store is not None:
            self._store.drop()
        self.blocked = None

    async def _start(self, restore: bool, *, after: After) -> None:
        lost, self._lost = self._lost, None
        self.revival = None
        self.kernel = await self._stack.enter_async_context(await self._open(after))
        if restore:
            try:
                self.revival = await self._load(self.kernel, lost or "resumed")
            except SnapshotUntrusted:
                pass  # `blocked` says why
            except KernelDied:
                self.blocked = "The kernel died while it loaded the snapshot."
                await self.clear()
                # The snapshot ends kernels: start once more, without it.
                self.kernel = await self._stack.enter_async_context(await self._open(at_once))
        if self.revival is None and (lost is not None or self.blocked is not None):
            refused = (self.blocked or NO_SNAPSHOT) if restore else None
            self.revival = Revival(reason=lost or "resumed", refused=refused)
        await self._bind(self.kernel)

    async def _load(self, kernel_: Kernel, reason: Reason) -> Revival | None:
        if self._store is None or self.blocked is not None:
            return None
        try:
            path = await asyncio.to_thread(self._store.check)
        except SnapshotUntrusted as why:
            self.blocked = str(why)
            raise
        except OSError as why:
            self.blocked = str(why)
            return Revival(reason=reason, refused=self.blocked)
        if path is None:
            return None
        await self._bind(kernel_)  # what names are made of may be a skill's
        try:
            async with asyncio.timeout(RESTORE_MS / 1000):
                done = await kernel_.run(kernel.Restore(id=kernel_.new_id(), path=str(path)))
        except TimeoutError:
            kernel_.kill()
            raise KernelDied("The snapshot took too long to load.") from None
        if done.status != "ok":
            self.blocked = done.reason or "The runtime refused the snapshot."
            return Revival(reason=reason, refused=self.blocked)
        return Revival(
            reason=reason, restored=tuple(done.restored or ()), failed=tuple(done.failed or ())
        )

    async def _bind(self, kernel_: Kernel) -> None:
        errors: list[kernel.Error] = []

        def heard(event: OutputEvent) -> None:
            if isinstance(event, kernel.Error):
                errors.append(event)

        code = await asyncio.to_thread(self._bootstrap)
        request = kernel.Execute(id=kernel_.new_id(), code=code, silent=True)
        done = await kernel_.run(request, on_event=heard)
        if done.status != "ok":
            why = errors[0] if errors else None
            raise KernelUnavailable(
                "The kernel started, but its `rlm` cannot be used.",
                why=f"{why.ename}: {why.evalue}" if why else None,
                traceback="".join(why.traceback) if why else None,
            )


async def _acts_no_more(last: Kernel | None, ending: asyncio.Task[None]) -> None:
    """Wait until nothing of a process is left: by its guard's word, or after all of its end."""
    if last is not None:
        either: set[asyncio.Future[Any]] = {last.ended, ending}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if last is None or not last.left_nothing:
        await asyncio.wait({ending})
