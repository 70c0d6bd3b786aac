"""`rlm-host [--stdio]`: the process behind one client, from its options to its exit code."""

import contextlib
import logging
import socket as sockets
from pathlib import Path

from rlm_protocol.errors import ConfigInvalid, RlmError

from ..rpc.context import Handlers
from ..rpc.hosting import serve_stdio
from ..rpc.lifetime import Lifetime
from ..rpc.services import Services
from ..rpc.sockets import listening, private_socket
from .launch import USAGE, App, Launch, prepare, run_host, say_error

log = logging.getLogger(__name__)


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
    try:
        options = Options(args)
        launch = prepare(options.config)
    except ConfigInvalid as why:
        say_error("rlm-host", why, "Nothing was started.")
        return USAGE
    with contextlib.ExitStack() as block:
        path, server = _private_listener(launch, block)

        async def serve(services: Services, handlers: Handlers, lifetime: Lifetime) -> int:
            return await serve_stdio(
                fds,
                services=services,
                handlers=handlers,
                lifetime=lifetime,
                server=server,
                client_pid=options.client_pid,
                idle_exit_s=launch.settings.host.idle_exit_s,
            )

        return run_host(launch, app, serve, socket=path, at_exit=block.close)


def _private_listener(
    launch: Launch, block: contextlib.ExitStack
) -> tuple[Path | None, sockets.socket | None]:
    """Listen for whoever finds a session leased by this host; without a place for it, do not."""
    try:
        path = private_socket(launch.env, launch.home)
        return path, block.enter_context(listening(path, private=True))
    except RlmError as why:
        log.warning("no other client can join: %s", why)
        return None, None
