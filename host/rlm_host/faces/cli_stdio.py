"""`rlm-host [--stdio]`: the process behind one client, from its options to its exit code."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import anyio

from rlm_protocol.errors import ConfigInvalid

from .. import config, log, paths
from ..rpc.context import Handlers
from ..rpc.lifetime import Lifetime
from ..rpc.services import Services
from ..rpc.stdio import serve_stdio

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
    ) -> AbstractAsyncContextManager[Services]:
        """Own one host for the length of the block."""

    def handlers(self) -> Handlers:
        """Give every method that the host offers."""


class Options:
    """What an editor may append."""

    def __init__(self, args: list[str]) -> None:
        """Raises ConfigInvalid for what is not an option."""
        self.client_pid: int | None = None
        self.config: Path | None = None
        rest = list(args)
        while rest:
            name, equals, value = rest.pop(0).partition("=")
            if name == "--stdio" and not equals:
                continue
            if name not in ("--clientProcessId", "--config"):
                raise ConfigInvalid(f"There is no option {name}.")
            if not equals:
                if not rest:
                    raise ConfigInvalid(f"{name} needs a value.")
                value = rest.pop(0)
            if name == "--config":
                self.config = Path(value)
            elif value.isdigit():
                self.client_pid = int(value)
            else:
                raise ConfigInvalid("--clientProcessId needs a number.")


def run(fds: tuple[int, int], args: list[str], app: App) -> int:
    """Serve the client on `fds`. Does not return when the host has run: it exits."""
    env = dict(os.environ)
    try:
        options = Options(args)
        home = paths.rlm_home(env)
        settings = config.load(home, options.config)
    except ConfigInvalid as why:
        sys.stderr.write(f"rlm-host: {why.message} Nothing was started.\n")
        return USAGE
    redactor = log.Redactor()
    log.set_up(level=settings.log.level, redactor=redactor, home=home)
    code = anyio.run(_serve, fds, env, options, home, settings, app)
    # What is acknowledged is on disk. Worker threads that still read or sync must not hold us up.
    os._exit(code)


async def _serve(
    fds: tuple[int, int],
    env: Mapping[str, str],
    options: Options,
    home: Path,
    settings: config.Config,
    app: App,
) -> int:
    lifetime = Lifetime()
    with lifetime.signals():
        async with app.build(
            settings, env, home=home, stop=lambda why: lifetime.end(0, why)
        ) as services:
            return await serve_stdio(
                fds,
                services=services,
                handlers=app.handlers(),
                lifetime=lifetime,
                client_pid=options.client_pid,
            )
