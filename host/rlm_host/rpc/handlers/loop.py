"""loop/*: durable loops."""

from rlm_protocol import loop as wire

from ..context import Context, Handlers


async def submit(context: Context, params: wire.LoopSubmitParams) -> wire.RunResult:
    """loop/submit."""
    loops = await context.services.loops.get()
    run = await loops.submit(params)
    context.after_answer(
        lambda: context.services.loop_clients.follow(run.run_id, context.attachment)
    )
    return wire.RunResult(run=run)


async def run(context: Context, params: wire.LoopRunParams) -> wire.RunResult:
    """loop/run."""
    context.services.loop_clients.follow(params.run_id, context.attachment)
    loops = await context.services.loops.get()
    return wire.RunResult(run=await loops.run(params.run_id))


async def resume(context: Context, params: wire.RunControlParams) -> wire.RunResult:
    """loop/resume."""
    context.services.loop_clients.follow(params.run_id, context.attachment)
    loops = await context.services.loops.get()
    return wire.RunResult(run=await loops.resume(params))


async def cancel(context: Context, params: wire.RunControlParams) -> wire.RunResult:
    """loop/cancel."""
    loops = await context.services.loops.get()
    return wire.RunResult(run=await loops.cancel(params))


async def pause(context: Context, params: wire.RunControlParams) -> wire.RunResult:
    """loop/pause."""
    loops = await context.services.loops.get()
    return wire.RunResult(run=await loops.pause(params))


async def report(context: Context, params: wire.LoopReportParams) -> wire.LoopReportResult:
    """loop/report."""
    loops = await context.services.loops.get()
    return await loops.report(params)


async def decisions(context: Context, params: wire.LoopDecisionsParams) -> wire.LoopDecisionsResult:
    """loop/decisions."""
    loops = await context.services.loops.get()
    return await loops.decisions(params)


async def snapshot(context: Context, params: wire.RunParams) -> wire.LoopSnapshotResult:
    """loop/snapshot."""
    loops = await context.services.loops.get()
    return await loops.snapshot(params.run_id)


async def list_runs(context: Context, params: wire.LoopListParams) -> wire.LoopListResult:
    """loop/list."""
    loops = await context.services.loops.get()
    return await loops.list_runs(params)


async def fork(context: Context, params: wire.LoopForkParams) -> wire.RunResult:
    """loop/fork."""
    loops = await context.services.loops.get()
    return wire.RunResult(run=await loops.fork(params))


HANDLERS: Handlers = {
    "loop/submit": submit,
    "loop/run": run,
    "loop/resume": resume,
    "loop/cancel": cancel,
    "loop/pause": pause,
    "loop/report": report,
    "loop/decisions": decisions,
    "loop/snapshot": snapshot,
    "loop/list": list_runs,
    "loop/fork": fork,
}
