"""host/*: what the host is and holds."""

import functools
import os
import resource

from rlm_protocol import __version__
from rlm_protocol.base import NoParams
from rlm_protocol.host import (
    HostStatusResult,
    HostStopParams,
    HostStopResult,
    QueueStatus,
    SchemaResult,
)

from ...kernels.cell import KernelStatus
from ...sessions.together import all_of
from ..context import Context, Handlers


async def status(context: Context, params: NoParams) -> HostStatusResult:
    """host/status."""
    services = context.services
    return HostStatusResult(
        version=__version__,
        pid=os.getpid(),
        uptime_ms=services.uptime_ms(),
        sessions=len(services.agents.open_sessions),
        kernels=sum(
            one.kernel.status is not KernelStatus.ABSENT for one in services.agents.open_sessions
        ),
        runs=services.loops.running,
        queues=QueueStatus(
            bytes=services.attachments.unsent_bytes, dropped=services.attachments.dropped_bytes
        ),
        rss_bytes=_rss_bytes(),
        home=str(services.home),
    )


async def stop(context: Context, params: HostStopParams) -> HostStopResult:
    """host/stop: of one session and all below it, or of all. The host itself goes on."""
    services = context.services
    if params.session_id is not None:
        tops = [await services.sessions.get(params.session_id)]
    else:
        tops = [one for one in services.agents.open_sessions if one.depth == 0]
    trees = [one for top in tops for one in (top, *top.descendants)]
    working = [one for one in trees if one.state.turn or one.kernel.status is KernelStatus.BUSY]
    await all_of(*(top.interrupt(subtree=True) for top in tops))
    return HostStopResult(sessions=len(working))


async def schema(context: Context, params: NoParams) -> SchemaResult:
    """host/schema."""
    return _schema()


@functools.cache
def _schema() -> SchemaResult:
    from rlm_protocol.schema import openrpc_document

    return SchemaResult(openrpc=openrpc_document())


def _rss_bytes() -> int:
    """Resident memory now, or its maximum where there is no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


HANDLERS: Handlers = {"host/status": status, "host/schema": schema, "host/stop": stop}
