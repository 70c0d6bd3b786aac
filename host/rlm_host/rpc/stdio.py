"""The main face: one client on private descriptors, for as long as that client lives."""

from collections.abc import Mapping

import anyio

from rlm_protocol.host import InitializeParams

from .connection import Connection, Ended
from .context import Handler
from .endpoint import Endpoint
from .lifetime import Lifetime
from .services import Services


async def serve_stdio(
    fds: tuple[int, int],
    *,
    services: Services,
    handlers: Mapping[str, Handler],
    lifetime: Lifetime,
    client_pid: int | None = None,
) -> int:
    """
    Serve one client until it, a signal or `host/stop` ends the host; give the exit code.

    0 after `shutdown` and `exit`, or when the client is gone (end of stream, broken pipe, death of
    its process); 1 after an `exit` without `shutdown`, an unreadable header, or a client that was
    too slow; 128 + n after signal n.
    """
    async with anyio.create_task_group() as tasks:
        followed: set[int] = set()

        def follow(pid: int | None) -> None:
            if pid is not None and pid > 0 and pid not in followed:
                followed.add(pid)
                tasks.start_soon(lifetime.follow, pid)

        def on_end(ended: Ended) -> None:
            lifetime.end(0 if ended.clean else 1, ended.reason)

        def on_initialize(params: InitializeParams) -> None:
            follow(params.process_id)

        connection = Connection(
            Endpoint(*fds),
            services=services,
            handlers=handlers,
            tasks=tasks,
            on_end=on_end,
            on_initialize=on_initialize,
        )
        follow(client_pid)
        connection.start()
        code = await lifetime.wait()
        await connection.settle()
        await connection.close()
        tasks.cancel_scope.cancel()
    return code
