"""The only place that builds concrete objects. Everything it builds ends with its block."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import anyio.to_thread

from . import paths
from .clock import Clock, SystemClock
from .config import Config
from .loops.service import LoopService
from .loops.steps import ClientRunner, CommandRunner, Runners
from .loops.stores.base import RunStore
from .processes.ledger import Ledger
from .processes.spawn import Processes
from .processes.sweep import sweep
from .rpc.context import Handlers
from .rpc.loop_clients import LoopClients
from .rpc.services import Services

log = logging.getLogger(__name__)

STEP_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "RLM_HOME")
"""What a loop's external command sees of the host's environment: never a provider's key."""
RUN_STORE = "host"
"""Name of the run store of all loops that are submitted over the wire."""


@contextlib.asynccontextmanager
async def build(
    config: Config,
    env: Mapping[str, str],
    *,
    home: Path,
    stop: Callable[[str], None],
    clock: Clock | None = None,
) -> AsyncIterator[Services]:
    """
    Own one host for the length of the block; leaving it ends every session, kernel and run.

    Args:
        config: the user's settings.
        env: the environment, of which kernels and providers get parts.
        home: RLM_HOME.
        stop: ends the whole host; the argument says why.
        clock: the machine's clock by default.
    """
    clock = clock or SystemClock()
    started_ms = clock.monotonic_ms()
    processes = Processes(await anyio.to_thread.run_sync(_swept_ledger, home))
    async with contextlib.AsyncExitStack() as block:
        loop_clients = LoopClients()
        loops = await block.enter_async_context(
            _loops(home, env, processes=processes, clients=loop_clients)
        )
        yield Services(
            home=home,
            now_ms=clock.now_ms,
            uptime_ms=lambda: clock.monotonic_ms() - started_ms,
            stop=stop,
            loops=loops,
            loop_clients=loop_clients,
        )


def handlers() -> Handlers:
    """Give every method that this host offers, with its handler."""
    from .rpc.handlers import host, loop

    return {**host.HANDLERS, **loop.HANDLERS}


def _swept_ledger(home: Path) -> Ledger | None:
    """Give the ledger of this home after what dead hosts left was ended; None without a home."""
    try:
        ledger = Ledger(home)
        swept = sweep(ledger)
    except OSError as why:
        log.warning("no process can be recorded in %s: %s", home, why)
        return None
    if swept.killed:
        log.warning("ended what an earlier host left running: %s", swept)
    return ledger


def _loops(
    home: Path, env: Mapping[str, str], *, processes: Processes, clients: LoopClients
) -> LoopService:
    from rlm_protocol import loop as wire

    kept = {name: env[name] for name in STEP_VARIABLES if name in env}
    runners: Runners = {
        wire.CommandStep: CommandRunner(processes, env=kept, cwd=Path.cwd()),
        wire.ClientStep: ClientRunner(clients),
    }

    def open_store() -> RunStore:
        from .loops.stores.sqlite import SqliteRunStore

        path = paths.run_store(home, RUN_STORE)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return SqliteRunStore(path)

    return LoopService(
        open_store,
        runners,
        worker=f"rlm-host {os.getpid()}",
        on_generation=lambda told: clients.tell("loop/generation", told.run_id, told),
        on_completed=lambda told: clients.tell("loop/completed", told.run_id, told),
    )
