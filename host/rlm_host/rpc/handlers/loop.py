"""loop/*: durable loops."""

from collections.abc import Awaitable, Callable

from rlm_protocol import loop as wire

from ...loops.service import LoopService
from ..context import Context, Handler, Handlers


async def submit(context: Context, params: wire.LoopSubmitParams) -> wire.RunResult:
    """loop/submit."""
    run = await context.services.loops.submit(params)
    context.after_answer(
        lambda: context.services.loop_clients.follow(run.run_id, context.attachment)
    )
    return wire.RunResult(run=run)


async def run(context: Context, params: wire.LoopRunParams) -> wire.RunResult:
    """loop/run."""
    context.services.loop_clients.follow(params.run_id, context.attachment)
    return wire.RunResult(run=await context.services.loops.run(params.run_id))


async def resume(context: Context, params: wire.RunControlParams) -> wire.RunResult:
    """loop/resume."""
    context.services.loop_clients.follow(params.run_id, context.attachment)
    return wire.RunResult(run=await context.services.loops.resume(params))


def _control(
    act: Callable[[LoopService, wire.RunControlParams], Awaitable[wire.Run]],
) -> Handler:
    async def handler(context: Context, params: wire.RunControlParams) -> wire.RunResult:
        return wire.RunResult(run=await act(context.services.loops, params))

    return handler


async def report(context: Context, params: wire.LoopReportParams) -> wire.LoopReportResult:
    """loop/report."""
    return await context.services.loops.report(params)


async def decisions(context: Context, params: wire.LoopDecisionsParams) -> wire.LoopDecisionsResult:
    """loop/decisions."""
    return await context.services.loops.decisions(params)


async def snapshot(context: Context, params: wire.RunParams) -> wire.LoopSnapshotResult:
    """loop/snapshot."""
    return await context.services.loops.snapshot(params.run_id)


async def list_runs(context: Context, params: wire.LoopListParams) -> wire.LoopListResult:
    """loop/list."""
    return await context.services.loops.list_runs(params)


async def fork(context: Context, params: wire.LoopForkParams) -> wire.RunResult:
    """loop/fork."""
    return wire.RunResult(run=await context.services.loops.fork(params))


HANDLERS: Handlers = {
    "loop/submit": submit,
    "loop/run": run,
    "loop/resume": resume,
    "loop/cancel": _control(LoopService.cancel),
    "loop/pause": _control(LoopService.pause),
    "loop/report": report,
    "loop/decisions": decisions,
    "loop/snapshot": snapshot,
    "loop/list": list_runs,
    "loop/fork": fork,
}
