"""When a namespace is saved: when somebody asks, and when it has been quiet for a moment."""

import asyncio
import logging

import msgspec

from rlm_protocol.errors import RlmError

from ..clock import Clock
from .cell import OnSaved, SnapshotReport
from .slot import KernelSlot
from .worker import Worker

log = logging.getLogger(__name__)


class Saver:
    """
    Saves what is in a slot. `now` and `quietly` are jobs of the slot's worker.

    `unsaved` says whether cells ran since the last snapshot; `last_cell` is the newest of them.
    """

    def __init__(
        self,
        slot: KernelSlot,
        worker: Worker,
        *,
        clock: Clock,
        after_ms: int,
        on_saved: OnSaved | None,
    ) -> None:
        self._slot, self._worker, self._clock = slot, worker, clock
        self._after_ms, self._on_saved = after_ms, on_saved
        self.unsaved = False
        self.last_cell: str | None = None
        self._last_ms = 0
        self._quiet: asyncio.Task[None] | None = None

    def soon(self) -> None:
        """Save once no cell has run for `after_ms`."""
        self.unsaved = True
        self._last_ms = self._clock.monotonic_ms()
        if self._quiet is None or self._quiet.done():
            self._quiet = asyncio.create_task(self._when_quiet())

    def stop(self) -> None:
        """Save no more by itself."""
        if self._quiet is not None:
            self._quiet.cancel()

    async def quietly(self) -> None:
        """Save what is unsaved, if that can be; a failure is only logged."""
        if not (self.unsaved and self._slot.keeps and self._slot.live):
            return
        try:
            await self.now()
        except RlmError as why:
            log.warning("the kernel's namespace was not saved: %s", why)

    async def now(self, *, prune_oversized: bool = False) -> SnapshotReport:
        """Save, and tell of it. Raises SnapshotFailed, KernelDied."""
        saved = await self._slot.save(prune_oversized=prune_oversized)
        report = msgspec.structs.replace(saved, cell_id=self.last_cell)
        self.unsaved = False
        if self._on_saved is not None:
            await self._on_saved(report)
        return report

    async def _when_quiet(self) -> None:
        while (left_ms := self._last_ms + self._after_ms - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep(left_ms)
        if self._slot.keeps and not self._worker.waiting:
            await self._worker.put(self.quietly)
