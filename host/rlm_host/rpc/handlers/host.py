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

from ..context import Context, Handlers


async def status(context: Context, params: NoParams) -> HostStatusResult:
    """host/status."""
    services = context.services
    return HostStatusResult(
        version=__version__,
        pid=os.getpid(),
        uptime_ms=services.uptime_ms(),
        sessions=len(services.agents.open_sessions),
        kernels=sum(a.kernel.status not in ("none", "dead") for a in services.agents.open_sessions),
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
    actors = services.agents.open_sessions
    if params.session_id is not None:
        actors = (await services.sessions.get(params.session_id),)
    stopped = 0
    for actor in actors:
        turn_id = await actor.interrupt(subtree=True)
        stopped += bool(actor.kernel.interrupt() or turn_id)
    return HostStopResult(sessions=stopped)


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
