"""The clients of one host: the one on stdio, and those that come by socket."""

import contextlib
import socket
from collections.abc import Callable, Mapping

import anyio
import anyio.abc

from rlm_protocol.host import InitializeParams

from ..processes.terminal import leave_terminal
from .connection import EXIT, Connection, Ended
from .context import Handler
from .detaching import LOOK_S, goes_on, is_attended, keeps
from .endpoint import Endpoint
from .lifetime import Lifetime
from .services import Services
from .sockets import accepting
from .workers import Workers


class Hosting:
    """Makes the connections of one host. `workers` owns their requests, also once clients left."""

    def __init__(
        self,
        services: Services,
        handlers: Mapping[str, Handler],
        lifetime: Lifetime,
        tasks: anyio.abc.TaskGroup,
        workers: Workers,
    ) -> None:
        self._services = services
        self._handlers = handlers
        self._lifetime = lifetime
        self._tasks, self._workers = tasks, workers
        self._followed: set[int] = set()

    def stdio(self, fds: tuple[int, int]) -> Connection:
        """Serve the client that started us: its end is the host's, unless a session goes on."""

        def on_end(ended: Ended) -> None:
            ends = self._lifetime.end if ended.reason == EXIT else self._lifetime.leave
            ends(0 if ended.clean else 1, ended.reason)

        def on_initialize(params: InitializeParams) -> None:
            self.follow(params.process_id)

        return self._connect(Endpoint(*fds), on_end, on_initialize)

    def accept(self, endpoint: Endpoint) -> None:
        """Serve a client that came by socket: its end is its own."""

        def on_end(_: Ended) -> None:
            self._tasks.start_soon(connection.close)

        connection = self._connect(endpoint, on_end, lambda _: None)

    def follow(self, pid: int | None) -> None:
        """End the host when this process is gone."""
        if pid is not None and pid > 0 and pid not in self._followed:
            self._followed.add(pid)
            self._tasks.start_soon(self._lifetime.follow(pid))

    def _connect(
        self,
        endpoint: Endpoint,
        on_end: Callable[[Ended], None],
        on_initialize: Callable[[InitializeParams], None],
    ) -> Connection:
        connection = Connection(
            endpoint,
            services=self._services,
            handlers=self._handlers,
            workers=self._workers,
            on_end=on_end,
            on_initialize=on_initialize,
        )
        connection.start()
        return connection


async def serve_stdio(
    fds: tuple[int, int],
    *,
    services: Services,
    handlers: Mapping[str, Handler],
    lifetime: Lifetime,
    server: socket.socket | None = None,
    client_pid: int | None = None,
    idle_exit_s: float,
) -> int:
    """
    Serve one client until it, a signal or `host/stop` ends the host; give the exit code.

    0 after `shutdown` and `exit`, or when the client is gone (end of stream, broken pipe, death of
    its process); 1 after an `exit` without `shutdown`, an unreadable header, or a client that was
    too slow; 128 + n after signal n. Others may come by `server` meanwhile.

    When the client is gone and the `onDetach` of a session wants it, the host leaves the client's
    terminal and goes on: with a session to keep until nobody was attached and nothing ran for
    `idle_exit_s`, else until nothing runs any more.
    """
    async with anyio.create_task_group() as tasks, Workers() as workers:
        hosting = Hosting(services, handlers, lifetime, tasks, workers)
        lifetime.goes_on = lambda: goes_on(
            services.agents.open_sessions, reachable=server is not None
        )
        hosting.follow(client_pid)
        connection = hosting.stdio(fds)
        with accepting(server, hosting.accept) if server else contextlib.nullcontext():
            if await lifetime.until_left():
                await _let_go(connection, services)
                patience_s = _patience(services, idle_exit_s)
                tasks.start_soon(_end_when_idle, services, lifetime, patience_s)
            code = await lifetime.wait()
        await connection.settle()
        await connection.close()
        tasks.cancel_scope.cancel()
    return code


async def _let_go(connection: Connection, services: Services) -> None:
    """Have nothing of the client's any more, and end the sessions that were only its."""
    await connection.close()
    leave_terminal()
    for actor in services.agents.open_sessions:
        alone = actor.depth == 0 and not is_attended(actor)
        if alone and actor.state.options.on_detach in (None, "stop"):
            services.feeds.leave(actor, at_once=True)


def _patience(services: Services, idle_exit_s: float) -> Callable[[], float]:
    """Give for how long a host waits for somebody: not at all without a session to keep."""
    return lambda: idle_exit_s if keeps(services.agents.open_sessions) else 0.0


async def serve_socket(
    server: socket.socket,
    *,
    services: Services,
    handlers: Mapping[str, Handler],
    lifetime: Lifetime,
    idle_exit_s: float | None = None,
) -> int:
    """
    Serve whoever comes by `server` until a signal; give the exit code.

    With `idle_exit_s` the host ends itself, with code 0, when nobody was attached and nothing ran
    for so long.
    """
    async with anyio.create_task_group() as tasks, Workers() as workers:
        hosting = Hosting(services, handlers, lifetime, tasks, workers)
        with accepting(server, hosting.accept):
            if idle_exit_s is not None:
                tasks.start_soon(_end_when_idle, services, lifetime, lambda: idle_exit_s)
            code = await lifetime.wait()
        tasks.cancel_scope.cancel()
    return code


async def _end_when_idle(
    services: Services, lifetime: Lifetime, patience_s: Callable[[], float]
) -> None:
    idle_s = 0.0
    while services.busy or idle_s < patience_s():
        await anyio.sleep(LOOK_S)
        idle_s = 0.0 if services.busy else idle_s + LOOK_S
    lifetime.end(0, f"nothing to do for {idle_s:.0f} s")
