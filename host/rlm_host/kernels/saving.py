"""
The snapshot of a session's namespace, kept up to date, and the end of a process that has one.

Everything that touches the process runs in the session kernel's worker, one thing at a time.
"""

import asyncio
import logging

import msgspec

from rlm_protocol import kernel
from rlm_protocol.errors import RlmError

from ..clock import Clock
from .bootstrap import IDLE_CODE
from .cell import OnSaved, SnapshotReport
from .client import Kernel
from .slot import KernelSlot
from .worker import Worker

log = logging.getLogger(__name__)


class Saving:
    """Saves the namespace of a slot once it has been quiet for `after_ms`. `stop` ends that."""

    def __init__(
        self,
        slot: KernelSlot,
        worker: Worker,
        *,
        clock: Clock,
        after_ms: int,
        on_saved: OnSaved | None,
    ) -> None:
        self._slot, self._worker = slot, worker
        self._clock, self._after_ms, self._on_saved = clock, after_ms, on_saved
        self._quiet: asyncio.Task[None] | None = None
        self._changed_ms = 0
        self._unsaved = False
        self._stopped = False
        self._last_cell_id: str | None = None
        self._current: tuple[Kernel, SnapshotReport] | None = None

    def begun(self, cell_id: str | None) -> None:
        """Note that a cell runs: what it changes is in no snapshot. None: a silent one."""
        self._current = None
        self._last_cell_id = cell_id or self._last_cell_id

    def soon(self) -> None:
        """Have what a cell has left saved when it is quiet."""
        self._unsaved = True
        self._changed_ms = self._clock.monotonic_ms()
        if self._quiet is None or self._quiet.done():
            self._quiet = asyncio.create_task(self._when_quiet())

    def stop(self) -> None:
        """Save nothing more by itself."""
        self._stopped = True
        if self._quiet is not None:
            self._quiet.cancel()

    async def unsaved(self) -> None:
        """Save what is newer than the last snapshot, behind what runs or waits: a save, say."""
        if self._unsaved:
            await self._worker.put(self.quietly)

    # --- in the worker ---

    async def now(self, *, prune_oversized: bool = False) -> SnapshotReport:
        """Save. Raises SnapshotFailed, KernelDied."""
        live = self._slot.live
        saved = await self._slot.save(prune_oversized=prune_oversized)
        report = msgspec.structs.replace(saved, cell_id=self._last_cell_id)
        self._unsaved = False
        self._current = (live, report) if live is not None else None
        if self._on_saved is not None:
            await self._on_saved(report)
        return report

    async def quietly(self) -> None:
        """Save what is newer than the last snapshot, if that can be done; never raises for it."""
        if not (self._unsaved and self._slot.keeps and self._slot.live):
            return
        try:
            await self.now()
        except RlmError as why:
            log.warning("the kernel's namespace was not saved: %s", why)

    async def unload(self) -> bool:
        """Save and end the process when nothing is lost by it; tell whether there is none now."""
        live = self._slot.live
        if live is None:
            await self._slot.clear()  # it may have died just now
            return True
        if not self._slot.keeps or not await _rests(live):
            return False
        known = self._current
        saved = known[1] if known is not None and known[0] is live else await self.now()
        if saved.skipped or saved.unverified or self._worker.waiting:
            return False
        await self._slot.clear("resumed")
        return True

    async def _when_quiet(self) -> None:
        while (left_ms := self._changed_ms + self._after_ms - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep(left_ms)
        if self._slot.keeps and not self._worker.waiting and not self._stopped:
            await self._worker.put(self.quietly)


async def _rests(live: Kernel) -> bool:
    """Tell whether nothing that a cell began would end with the process."""
    if live.asks:
        return False
    asked = kernel.Execute(id=live.new_id(), code=IDLE_CODE, silent=True)
    return (await live.run(asked)).status == "ok"
