"""How a kernel process comes into being: forked from a template where there is one, else cold."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from rlm_protocol.errors import KernelDied, KernelUnavailable
from rlm_protocol.warm import STALE

from ..clock import Clock
from ..processes.pipes import to_the_end
from ..processes.spare import Spare
from ..processes.spawn import Child, Processes
from ..processes.templates import Templates, key_of
from .cell import HostRequests, OutputEvent
from .client import Kernel, Launch, Waits
from .lifecycle import State

WARM_READY_MS = 5_000
"""A fork of a template that is not ready by then is given up for a cold start."""

_Block = contextlib.AbstractAsyncContextManager
After = Callable[[], Awaitable[None]]
"""Waits until a new kernel may act: the one whose place it takes can act no more."""


async def at_once() -> None:
    """Wait for nothing: no other kernel was in this place."""


@contextlib.asynccontextmanager
async def open_kernel(
    processes: Processes,
    launch: Launch,
    *,
    templates: Templates | None = None,
    after: After = at_once,
    host_requests: HostRequests,
    on_background: Callable[[OutputEvent], None],
    on_state: Callable[[State], None],
    clock: Clock,
    waits: Waits,
) -> AsyncIterator[Kernel]:
    """
    Own a kernel process for the length of the block; it is ready when the block begins.

    It is forked from a template where there is one, and started cold where there is none, or where
    that goes wrong. Leaving asks it to shut down, then escalates (SIGTERM, SIGKILL); a killed or
    dead one is only cleared away. Nothing of its tree is left, nothing waits for it any more.

    Args:
        after: nothing of a user runs in the kernel before it has ended. A fork gets ready
            meanwhile; a cold start, whose interpreter may run anything, begins then.

    Raises:
        KernelUnavailable: the program cannot be started, speaks another protocol, is another
            version of the runtime, or does not get ready in time.
        KernelDied: it ended before it was ready.
    """

    def make(waits: Waits) -> Kernel:
        return Kernel(host_requests, on_background, on_state, clock, waits)

    async with contextlib.AsyncExitStack() as stack:
        if templates is None or not launch.warm:
            await after()
            yield await stack.enter_async_context(_cold(processes, launch, make(waits)))
            return
        key = key_of(launch.argv, launch.env, launch.cwd, templates.preload)
        ready: Kernel | None = None
        if (spare := await templates.take(key)) is not None:
            quick = msgspec.structs.replace(waits, ready_ms=min(waits.ready_ms, WARM_READY_MS))
            try:
                block = _warm(processes, launch, make(quick), spare)
                ready = await stack.enter_async_context(block)
                templates.worked(key)
                await after()
            except (KernelUnavailable, KernelDied) as why:
                if why.data.get("exit_code") == STALE:
                    templates.drop(key)
                else:
                    templates.failed(key, why)
        if ready is None:
            await after()
            ready = await stack.enter_async_context(_cold(processes, launch, make(waits)))
        templates.want(key)
        yield ready


def _cold(processes: Processes, launch: Launch, made: Kernel) -> _Block[Kernel]:
    block = processes.spawn(
        launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        on_stdout=made.heard,
        guarded=True,
        label="kernel",
    )
    return _living(made, block, launch)


def _warm(processes: Processes, launch: Launch, made: Kernel, spare: Spare) -> _Block[Kernel]:
    block = processes.take(
        spare, env=launch.env, cwd=launch.cwd, on_stdout=made.heard, label="kernel"
    )
    return _living(made, block, launch)


@contextlib.asynccontextmanager
async def _living(made: Kernel, block: _Block[Child], launch: Launch) -> AsyncIterator[Kernel]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            child = await stack.enter_async_context(block)
            made.live(child)
            if launch.memory_bytes is not None and child.guard is not None:
                child.guard.limit_memory(launch.memory_bytes)
        except OSError as why:
            raise KernelUnavailable(
                "The kernel's program cannot be started.", argv=list(launch.argv), reason=str(why)
            ) from why
        try:
            await made.until_ready(launch)
            yield made
        finally:
            await to_the_end(made.stop())
