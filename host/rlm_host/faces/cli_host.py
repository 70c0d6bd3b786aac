"""`rlm-host serve`, `stop`, `schema`: hosts that several clients share."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rlm_protocol.errors import RlmError

from .. import paths
from ..client import HostClient
from ..rpc.context import Handlers
from ..rpc.hosting import serve_socket
from ..rpc.lifetime import Lifetime
from ..rpc.services import Services
from ..rpc.sockets import listening, user_socket
from .cli_client import exit_code
from .launch import App, prepare, run_host, say_error


def serve(argv: Sequence[str], app: App) -> int:
    """`rlm-host serve`."""
    parser = argparse.ArgumentParser(
        prog="rlm-host serve", description="Serve clients on a unix socket until stopped."
    )
    parser.add_argument("--socket", type=Path, help="default: the user's own, where attach looks")
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument(
        "--idle-exit",
        action="store_true",
        help="end after half an hour (host.idle_exit_s) with nobody attached and nothing running",
    )
    options = parser.parse_args(argv)
    try:
        launch = prepare(options.config)
        path = options.socket or user_socket(launch.env, launch.home)

        with contextlib.ExitStack() as block:
            server = block.enter_context(listening(path))
            _say(f"rlm-host serves on {path}")

            async def serve(services: Services, handlers: Handlers, lifetime: Lifetime) -> int:
                return await serve_socket(
                    server,
                    services=services,
                    handlers=handlers,
                    lifetime=lifetime,
                    idle_exit_s=launch.settings.host.idle_exit_s if options.idle_exit else None,
                )

            return run_host(launch, app, serve, socket=path.absolute(), at_exit=block.close)
    except RlmError as why:
        say_error("rlm-host serve", why, "Nothing was started.")
        return 1


def stop(argv: Sequence[str]) -> int:
    """`rlm-host stop`: stop the work of one session or of all, on the user's host."""
    parser = argparse.ArgumentParser(
        prog="rlm-host stop",
        description="Stop what sessions are doing: turns, cells, children. The host goes on.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("session", nargs="?", help="a session's id: it and all below it")
    which.add_argument("--all", action="store_true", help="every session of the host")
    parser.add_argument("--socket", type=Path, help="default: the user's own host")
    options = parser.parse_args(argv)

    async def ask() -> int:
        env = dict(os.environ)
        path = options.socket or user_socket(env, paths.rlm_home(env))
        async with HostClient.attach(path, reconnect_s=0) as client:
            count = (await client.host.stop(session_id=options.session)).sessions
        sys.stdout.write(f"stopped {count} session{'' if count == 1 else 's'}\n")
        return 0

    return exit_code("rlm-host stop", ask(), kept=lambda: "Nothing was stopped.")


def schema(argv: Sequence[str]) -> int:
    """`rlm-host schema`: print the protocol, or write all its generated files."""
    parser = argparse.ArgumentParser(
        prog="rlm-host schema", description="Print the OpenRPC document of this version."
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write every schema below DIR")
    options = parser.parse_args(argv)
    from rlm_protocol import schema as generated

    if options.out is None:
        sys.stdout.write(generated.openrpc())
        return 0
    try:
        generated.main([str(options.out)])
    except OSError as why:
        say_error("rlm-host schema", why, "Files written before are kept.")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
