"""repl/*: a session's kernel, as a person or an editor uses it."""

from rlm_protocol import repl as p
from rlm_protocol.errors import StoreUnavailable
from rlm_protocol.session import SessionMutateParams, SessionParams

from ...kernels.cell import Revival
from ..context import Context, Handlers


async def execute(context: Context, params: p.ReplExecuteParams) -> p.ReplExecuteResult:
    """repl/execute: answered when the cell is done."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> p.ReplExecuteResult:
        return await actor.execute_cell(params.code, silent=params.silent)

    return await actor.once(params.idempotency_key, "repl/execute", params, run)


async def interrupt(context: Context, params: p.ReplInterruptParams) -> p.ReplInterruptResult:
    """repl/interrupt."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> p.ReplInterruptResult:
        return p.ReplInterruptResult(interrupted=actor.kernel.interrupt(params.cell_id))

    return await actor.once(params.idempotency_key, "repl/interrupt", params, run)


async def complete(context: Context, params: p.ReplCodeParams) -> p.ReplCompleteResult:
    """repl/complete."""
    actor = await context.services.sessions.get(params.session_id)
    found = await actor.kernel.complete(params.code, params.cursor)
    return p.ReplCompleteResult(
        matches=found.matches, cursor_start=found.cursor_start, cursor_end=found.cursor_end
    )


async def inspect(context: Context, params: p.ReplCodeParams) -> p.ReplInspectResult:
    """repl/inspect."""
    actor = await context.services.sessions.get(params.session_id)
    found = await actor.kernel.inspect(params.code, params.cursor)
    return p.ReplInspectResult(found=found.found, text=found.text)


async def names(context: Context, params: p.ReplNamesParams) -> p.ReplNamesResult:
    """repl/names."""
    actor = await context.services.sessions.get(params.session_id)
    found = await actor.kernel.names(detail=params.detail)
    return p.ReplNamesResult(names=found.names, details=found.details, truncated=found.truncated)


async def restart(context: Context, params: p.ReplRestartParams) -> p.ReplRestoreResult:
    """repl/restart."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> p.ReplRestoreResult:
        return _restored(await actor.kernel.restart(restore=params.restore))

    return await actor.once(params.idempotency_key, "repl/restart", params, run)


async def snapshot(context: Context, params: SessionMutateParams) -> p.ReplSnapshotResult:
    """repl/snapshot."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> p.ReplSnapshotResult:
        saved = await actor.snapshot()
        return p.ReplSnapshotResult(
            id=saved.id, saved=saved.saved, skipped=saved.skipped, size_bytes=saved.size_bytes
        )

    return await actor.once(params.idempotency_key, "repl/snapshot", params, run)


async def snapshots(context: Context, params: SessionParams) -> p.ReplSnapshotsResult:
    """repl/snapshots."""
    actor = await context.services.sessions.get(params.session_id)
    try:
        kept = await actor.kernel.snapshots()
    except OSError as why:
        raise StoreUnavailable(str(why)) from why
    return p.ReplSnapshotsResult(snapshots=kept)


async def restore(context: Context, params: p.ReplRestoreParams) -> p.ReplRestoreResult:
    """repl/restore."""
    actor = await context.services.sessions.get(params.session_id)

    async def run() -> p.ReplRestoreResult:
        return _restored(await actor.kernel.restore(params.snapshot_id))

    return await actor.once(params.idempotency_key, "repl/restore", params, run)


def _restored(revival: Revival | None) -> p.ReplRestoreResult:
    if revival is None:
        return p.ReplRestoreResult(restored=())
    return p.ReplRestoreResult(
        restored=revival.restored, failed=revival.failed, reason=revival.refused
    )


HANDLERS: Handlers = {
    "repl/execute": execute,
    "repl/interrupt": interrupt,
    "repl/complete": complete,
    "repl/inspect": inspect,
    "repl/names": names,
    "repl/restart": restart,
    "repl/snapshot": snapshot,
    "repl/snapshots": snapshots,
    "repl/restore": restore,
}
