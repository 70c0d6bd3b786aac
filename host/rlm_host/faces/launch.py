"""What every command that runs a host in this process needs: settings, log, signals, the app."""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from rlm_protocol.errors import InternalError, RlmError

from .. import config, log, paths
from ..rpc.context import Handlers
from ..rpc.lifetime import Lifetime
from ..rpc.services import Services

USAGE = 2


class App(Protocol):
    """What app.py offers; the command line hands it in, for nothing else knows app.py."""

    def build(
        self,
        config: config.Config,
        env: Mapping[str, str],
        *,
        home: Path,
        stop: Callable[[str], None],
        socket: Path | None = None,
        on_secret: Callable[[str], None] = ...,
    ) -> AbstractAsyncContextManager[Services]:
        """Own one host for the length of the block."""

    def handlers(self) -> Handlers:
        """Give every method that the host offers."""


class Launch(msgspec.Struct, frozen=True):
    """One start of a host: its environment, home and settings."""

    env: dict[str, str]
    home: Path
    settings: config.Config
    redactor: log.Redactor


Serve = Callable[[Services, Handlers, Lifetime], Awaitable[int]]


def prepare(config_file: Path | None) -> Launch:
    """Read the settings and set up the log. Raises ConfigInvalid; nothing was started then."""
    env = dict(os.environ)
    home = paths.rlm_home(env)
    settings = config.load(home, config_file)
    redactor = log.Redactor()
    log.set_up(level=settings.log.level, redactor=redactor, home=home)
    return Launch(env, home, settings, redactor)


def run_host(
    launch: Launch,
    app: App,
    serve: Serve,
    *,
    socket: Path | None,
    at_exit: Callable[[], None],
) -> int:
    """
    Run a host to its end, then `at_exit`. Does not return when it has run: the process exits.

    Raises:
        RlmError: the host cannot be started.
    """
    code = anyio.run(_run, launch, app, serve, socket)
    # What is acknowledged is on disk. Worker threads that still read or sync must not hold us up.
    at_exit()
    os._exit(code)


async def _run(launch: Launch, app: App, serve: Serve, socket: Path | None) -> int:
    lifetime = Lifetime()
    with lifetime.signals():
        async with app.build(
            launch.settings,
            launch.env,
            home=launch.home,
            stop=lambda why: lifetime.end(0, why),
            socket=socket,
            on_secret=launch.redactor.add,
        ) as services:
            return await serve(services, app.handlers(), lifetime)


def say_error(program: str, error: RlmError | OSError, kept: str) -> None:
    """Tell a person, in one line, what happened and what was kept."""
    from .visible import visible

    kind = f" [{error.kind}]" if isinstance(error, RlmError) else ""
    what = error.message if isinstance(error, RlmError) else str(error)
    if isinstance(error, InternalError):
        what += f" Token: {error.data.get('token')}."
    sys.stderr.write(visible(f"{program}:{kind} {what} {kept}\n"))
