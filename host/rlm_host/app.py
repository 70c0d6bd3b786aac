"""The only place that builds concrete objects. Everything it builds ends with its block."""

import contextlib
import functools
import importlib
import logging
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from rlm_protocol.errors import RlmError

from . import paths
from .clock import Clock, SystemClock
from .config import BudgetConfig, Config
from .config_file import ConfigFile
from .lazily import Lazily
from .processes.facts import can_fork_guards, harden_host
from .processes.ledger import Ledger
from .processes.spawn import Processes
from .processes.sweep import left_running, sweep
from .processes.templates import Templates
from .rpc import sockets
from .rpc.context import Handlers
from .rpc.loop_clients import LoopClients
from .rpc.services import Services

if TYPE_CHECKING:
    from .children.service import ChildrenService
    from .children.spending import Spending
    from .kernels.environment import KernelHost
    from .kernels.recipe import Recipe
    from .loops.audit import DecisionLog
    from .loops.service import LoopService
    from .loops.stores.base import RunStore
    from .models.registry import Models
    from .sessions.session import SessionActor
    from .sessions.store import SessionStore

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
    socket: Path | None = None,
    clock: Clock | None = None,
    on_secret: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Services]:
    """
    Own one host for the length of the block; leaving it ends every session, kernel and run.

    The process is hardened for it: cells cannot read its memory, and it adopts their orphans.

    Args:
        config: the user's settings.
        env: the environment, of which kernels and providers get parts.
        home: RLM_HOME.
        stop: ends the whole host; the argument says why.
        socket: where this host listens, for whoever finds a session leased by it.
        clock: the machine's clock by default.
        on_secret: told each provider's key before it is used, so that no log shows it.
    """
    clock = clock or SystemClock()
    started_ms = clock.monotonic_ms()
    if not harden_host():
        log.warning("this machine does not hide the host's memory from its cells")
    processes = Processes(await anyio.to_thread.run_sync(_swept, home, env))
    async with contextlib.AsyncExitStack() as block:
        agents = Agents(
            config,
            env,
            home=home,
            clock=clock,
            processes=processes,
            socket=socket,
            on_secret=on_secret,
        )
        block.push_async_callback(agents.aclose)
        loop_clients = LoopClients()
        loops = await block.enter_async_context(
            Loops(home, env, processes=processes, clients=loop_clients, agents=agents)
        )
        yield Services(
            home=home,
            config_file=_config_file(config),
            now_ms=clock.now_ms,
            uptime_ms=lambda: clock.monotonic_ms() - started_ms,
            stop=stop,
            agents=agents,
            loops=loops,
            loop_clients=loop_clients,
        )


def handlers() -> Handlers:
    """Give every method that this host offers, with its handler."""
    from .rpc.handlers import agent, artifact, config, host, loop, model, repl, session, turn, usage

    nouns = (agent, artifact, config, host, loop, model, repl, session, turn, usage)
    return {name: handler for noun in nouns for name, handler in noun.HANDLERS.items()}


def kernel_host(config: Config, env: Mapping[str, str], *, home: Path) -> "KernelHost":
    """Give what kernels of this home share, for commands that look at kernels without a host."""
    from .kernels.environment import KernelHost

    processes = Processes(None)
    return KernelHost(
        home=home,
        environ=env,
        processes=processes,
        clock=SystemClock(),
        python=config.kernel_python,
        templates=_templates(config, processes),
        packages=config.kernel.packages,
        hidden=_hidden(env, None),
        defaults=_recipe_defaults(config),
    )


def _hidden(env: Mapping[str, str], socket: Path | None) -> tuple[Path, ...]:
    """Give what a cell in a sandbox must not reach, wherever its workspace lies."""
    own = (socket,) if socket is not None else ()
    return (paths.socket_folder(env), paths.ephemeral_home(env), *own)


def _recipe_defaults(config: Config) -> "Recipe":
    from .kernels.recipe import Recipe

    kernel = config.kernel
    return Recipe(
        sandbox=kernel.sandbox,
        network=kernel.network,
        memory_bytes=kernel.memory_bytes,
    )


def _templates(config: Config, processes: Processes) -> Templates | None:
    if not (config.kernel.warm and can_fork_guards()):
        return None
    return Templates(processes, preload=config.kernel.preload)


def orphans(home: Path, *, end: bool) -> tuple[int, ...]:
    """Give the pids that dead hosts left running; with `end`, end them. Blocks; raises OSError."""
    if not paths.orphans(home).exists():
        return ()
    ledger = Ledger(home)
    return sweep(ledger).killed if end else left_running(ledger)


class Agents:
    """The models and sessions of a host, made by their first use."""

    def __init__(
        self,
        config: Config,
        env: Mapping[str, str],
        *,
        home: Path,
        clock: Clock,
        processes: Processes,
        socket: Path | None = None,
        on_secret: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._socket, self._on_secret = socket, on_secret
        self._config, self._env, self._home = config, env, home
        self._clock, self._processes = clock, processes
        self._templates = _templates(config, processes)
        self._models: Models | None = None
        self._sessions: SessionStore | None = None
        self._children: ChildrenService | None = None

    @property
    def models(self) -> "Models":
        """Raises ConfigInvalid when a provider's table is wrong."""
        if self._models is None:
            from .models.registry import Models

            self._models = Models(
                self._config.providers,
                base_dir=self._config.base_dir,
                auth_file=paths.auth(self._home),
                env=self._env,
                now_ms=self._clock.now_ms,
                monotonic_ms=self._clock.monotonic_ms,
                random=random.random,
                on_secret=self._on_secret,
            )
        return self._models

    @property
    def sessions(self) -> "SessionStore":
        """Raises ConfigInvalid when a provider's table is wrong."""
        if self._sessions is None:
            from .children.kin import ChildrenSettings
            from .children.service import ChildrenService
            from .kernels.environment import KernelHost
            from .kernels.session_kernel import SessionKernel
            from .kernels.skills import Skills, bundled
            from .sessions.checking import Checker
            from .sessions.options import SessionDefaults
            from .sessions.ports import SessionPorts
            from .sessions.store import SessionStore
            from .sessions.tools import ClientTools

            kernels = KernelHost(
                home=self._home,
                environ=self._env,
                processes=self._processes,
                clock=self._clock,
                python=self._config.kernel_python,
                templates=self._templates,
                packages=self._config.kernel.packages,
                hidden=_hidden(self._env, self._socket),
                defaults=_recipe_defaults(self._config),
            )
            ports, limits = SessionPorts(), self._config.children
            ClientTools(Checker(self._processes)).install(ports)
            self._children = ChildrenService(
                models=self.models,
                clock=self._clock,
                processes=self._processes,
                ports=ports,
                new_hex=lambda digits: secrets.token_hex(digits)[:digits],
                settings=ChildrenSettings(
                    running_max=limits.max_running, living_max=limits.max_living
                ),
                spending=_spending(self._config.budget, self._home),
            )
            self._sessions = SessionStore(
                home=self._home,
                ephemeral_home=paths.ephemeral_home(self._env),
                clock=self._clock,
                kernels=functools.partial(SessionKernel, host=kernels),
                models=self.models,
                ports=ports,
                defaults=SessionDefaults(
                    model=self._config.model,
                    thinking=self._config.thinking,
                    max_depth=limits.max_depth,
                ),
                socket=str(self._socket) if self._socket else None,
                skills=Skills(
                    bundled=bundled(),
                    home=self._home,
                    workspace=self._config.skills.workspace,
                    disabled=frozenset(self._config.skills.disabled),
                ),
                unload_after_ms=self._config.sessions.unload_after_s * 1000,
            )
            self._children.bind(self._sessions)
        return self._sessions

    @property
    def children(self) -> "ChildrenService":
        """Raises ConfigInvalid when a provider's table is wrong."""
        assert self.sessions is not None
        assert self._children is not None
        return self._children

    @property
    def open_sessions(self) -> "tuple[SessionActor, ...]":
        """Give the sessions that are loaded; asking loads nothing."""
        return self._sessions.loaded() if self._sessions else ()

    async def aclose(self) -> None:
        """End every session, then every connection to a provider."""
        if self._sessions is not None:
            await self._sessions.aclose()
        if self._children is not None:
            await self._children.aclose()
        if self._templates is not None:
            await self._templates.aclose()
        if self._models is not None:
            await self._models.aclose()


def _config_file(config: Config) -> ConfigFile:
    def check(read: Config) -> None:
        from .models.settings import read_providers

        read_providers(read.providers, base_dir=read.base_dir)

    file = ConfigFile(config.source, check)
    file.remember()
    return file


def _spending(config: BudgetConfig, home: Path) -> "Spending | None":
    """Give what holds the budgets of host and day; None without such limits."""
    from rlm_protocol.usage import Budget

    from .children.spending import Spending

    host, day = (
        Budget(usd=one.usd, tokens=one.tokens, spawns=one.spawns) if one is not None else None
        for one in (config.host, config.day)
    )
    return Spending(paths.budget_store(home), host=host, day=day) if host or day else None


def _swept(home: Path, env: Mapping[str, str]) -> Ledger | None:
    """Give the ledger of this home after what dead hosts left was ended; None without a home."""
    try:
        sockets.sweep(env)
    except RlmError as why:
        log.warning("the sockets of dead hosts are left: %s", why)
    try:
        ledger = Ledger(home)
        swept = sweep(ledger)
    except OSError as why:
        log.warning("no process can be recorded in %s: %s", home, why)
        return None
    if swept.killed:
        log.warning("ended what an earlier host left running: %s", swept)
    return ledger


class Loops(Lazily["LoopService"]):
    """The loops of a host, made by their first use."""

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        *,
        processes: Processes,
        clients: LoopClients,
        agents: Agents,
    ) -> None:
        super().__init__(self._load)
        self._home, self._env, self._processes = home, env, processes
        self._clients, self._agents = clients, agents

    @property
    def running(self) -> int:
        """How many runs this host is working on; asking loads nothing."""
        return self.known.running if self.known is not None else 0

    async def _load(self) -> "LoopService":
        name = f"{__package__}.loops.session_steps"
        await anyio.to_thread.run_sync(importlib.import_module, name)
        return self._service()

    def _service(self) -> "LoopService":
        from rlm_protocol import loop as wire

        from .loops.service import LoopService
        from .loops.session_steps import AgentRunner, ReplRunner
        from .loops.steps import ClientRunner, CommandRunner, Runners

        clients, kept = self._clients, {n: self._env[n] for n in STEP_VARIABLES if n in self._env}
        runners: Runners = {
            wire.CommandStep: CommandRunner(self._processes, env=kept, cwd=Path.cwd()),
            wire.ClientStep: ClientRunner(clients),
            wire.ReplStep: ReplRunner(self._session),
            wire.AgentStep: AgentRunner(self._session),
        }
        return LoopService(
            self._open_store,
            runners,
            open_log=self._open_log,
            worker=f"rlm-host {os.getpid()}",
            on_generation=lambda told: clients.tell("loop/generation", told.run_id, told),
            on_completed=lambda told: clients.tell("loop/completed", told.run_id, told),
        )

    async def _session(self, session_id: str) -> "SessionActor":
        return await self._agents.sessions.get(session_id)

    def _open_store(self) -> "RunStore":
        from .loops.stores.sqlite import SqliteRunStore
        from .sessions.journal import store_error

        path = paths.run_store(self._home, RUN_STORE)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as why:
            raise store_error(why, str(path.parent)) from why
        return SqliteRunStore(path)

    def _open_log(self) -> "DecisionLog":
        from .loops.audit import DecisionLog

        return DecisionLog(paths.decision_log(self._home))
