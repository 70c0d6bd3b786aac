"""The kernel a session owns: started by its first cell, revived when it died, ended with it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from ..clock import Clock
from .cell import (
    CellOutcome,
    Completion,
    HostRequests,
    Inspection,
    KernelStatus,
    Names,
    OnEvent,
    OutputEvent,
    Revival,
    SnapshotReport,
)
from .recipe import Recipe


class KernelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Waits and sizes of every kernel of a host. Times in milliseconds."""

    packages: tuple[str, ...] = ()
    """Requirements of the managed environment besides the runtime (`kernel.packages`)."""
    ready_ms: int = 30_000
    interrupt_again_ms: int = 2_000
    interrupt_kill_ms: int = 5_000
    shutdown_ms: int = 2_000
    terminate_ms: int = 500
    snapshot_after_ms: int = 1_500
    """Quiet time after a cell until the namespace is saved."""


class KernelHost(msgspec.Struct, frozen=True, kw_only=True):
    """What all kernels of one host share. Built once, by app.py."""

    home: Path
    environ: Mapping[str, str]
    """The host's environment; kernels get an allow-listed part of it."""
    clock: Clock
    settings: KernelSettings = KernelSettings()


class SessionKernel:
    """
    One session's kernel. An async context manager; leaving it is `aclose()`.

    No process exists before the first `execute`. Cells of several callers queue in order.
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
        persistent: bool = True,
    ) -> None:
        raise NotImplementedError

    @property
    def status(self) -> KernelStatus:
        raise NotImplementedError

    @property
    def revival(self) -> Revival | None:
        """What the living process brought back when it replaced an earlier one."""
        raise NotImplementedError

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
            SessionClosed: `aclose` was called.
        """
        raise NotImplementedError

    def interrupt(self, cell_id: str | None = None) -> bool:
        """Interrupt one cell, running or waiting (None: the running one). False: no such cell."""
        raise NotImplementedError

    async def names(self, *, detail: bool = False) -> Names:
        """List the user's names. Empty while there is no process."""
        raise NotImplementedError

    async def complete(self, code: str, cursor: int) -> Completion:
        """Raises KernelBusy when a synchronous cell keeps the kernel from answering in time."""
        raise NotImplementedError

    async def inspect(self, code: str, cursor: int) -> Inspection:
        """Raises KernelBusy when a synchronous cell keeps the kernel from answering in time."""
        raise NotImplementedError

    async def snapshot(self, *, prune_oversized: bool = False) -> SnapshotReport:
        """Save the namespace now, behind cells that run or wait. Raises SnapshotFailed."""
        raise NotImplementedError

    async def restore(self) -> Revival:
        """Load the last snapshot into the kernel. Raises SnapshotFailed, SnapshotUntrusted."""
        raise NotImplementedError

    async def restart(self, *, restore: bool) -> Revival | None:
        """Kill the process and start another. Running and waiting cells end as interrupted."""
        raise NotImplementedError

    def drop_snapshot(self) -> None:
        """Delete the snapshot, also one that was refused; later ones may be written again."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the process at once, without a snapshot. The next cell starts another."""
        raise NotImplementedError

    async def aclose(self, *, snapshot: bool = True) -> None:
        """End cells and process, saving the namespace first when it is newer than its snapshot."""
        raise NotImplementedError
