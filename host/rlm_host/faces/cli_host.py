"""`rlm-host serve`, `attach`, `stop`, `schema`: hosts that several clients share."""

import argparse
import asyncio
import contextlib
import os
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rlm_protocol.errors import HostLost, RlmError

from .. import paths
from ..client import HostClient
from ..rpc.context import Handlers
from ..rpc.hosting import serve_socket
from ..rpc.lifetime import Lifetime
from ..rpc.services import Services
from ..rpc.sockets import connect, listening, peer_of, user_socket
from ..sessions.lease import owner_socket
from .launch import App, prepare, run_host, say_error

START_S = 20.0
"""How long `attach --start` waits for the host that it has started."""
CHUNK_BYTES = 1 << 16


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


def attach(fds: tuple[int, int], argv: Sequence[str]) -> int:
    """`rlm-host attach`: be the stdio of a host that others use too."""
    parser = argparse.ArgumentParser(
        prog="rlm-host attach", description="Join a running host, with stdin and stdout."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--socket", type=Path, help="default: the user's own host")
    which.add_argument("--session", metavar="ID", help="the host that owns this root session")
    parser.add_argument("--start", action="store_true", help="start the host when none runs")
    parser.add_argument("--stdio", action="store_true", help="as editors append it; no effect")
    parser.add_argument("--clientProcessId", metavar="PID", help="as editors append it; no effect")
    options = parser.parse_args(argv)
    if options.start and options.session is not None:
        parser.error("--start does not go with --session: its owner runs, or any host can open it")
    try:
        env = dict(os.environ)
        home = paths.rlm_home(env)
        if options.session is not None:
            path = _owner_of(home, options.session)
        else:
            path = options.socket or user_socket(env, home)
        sock = _connected(path, start=options.start)
    except (RlmError, OSError) as why:
        say_error("rlm-host attach", why, "Nothing was changed.")
        return 1
    return _bridge(fds, sock)


def _owner_of(home: Path, session_id: str) -> Path:
    """Give the socket of the host that owns a session. Raises HostLost."""
    known = owner_socket(paths.sessions(home), session_id) if paths.is_id(session_id) else None
    if known is None:
        raise HostLost(
            f"No host has the session {session_id[:64]!r} open; any host of this home can open it."
        )
    return known


def _connected(path: Path, *, start: bool) -> sockets.socket:
    """Connect to the host at `path`; with `start`, start it first. Raises HostLost, OSError."""
    try:
        return connect(path)
    except OSError as why:
        if not start:
            raise HostLost(
                f"No host serves on {path} ({why.strerror}); start one with `rlm-host serve`, "
                "or attach with --start."
            ) from None
    starting = _start_host(path)
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            sock = connect(path)
            _end_if_late(starting, sock)
            return sock
        except OSError:
            ended = starting.poll()
            if ended is not None and not path.exists():
                raise HostLost(f"The host ended with code {ended} before it served.") from None
            time.sleep(0.02)
    raise HostLost(f"The host that was started does not serve on {path} within {START_S:.0f} s.")


def _end_if_late(starting: "subprocess.Popen[bytes]", sock: sockets.socket) -> None:
    """End the host that we have started when another one was faster."""
    server = peer_of(sock)
    if server is not None and server.pid != starting.pid:
        starting.terminate()
        starting.wait()


def _start_host(path: Path) -> "subprocess.Popen[bytes]":
    """Start the user's host, in a session of its own, with nothing of our descriptors."""
    command = [sys.executable, "-m", "rlm_host", "serve", "--idle-exit", "--socket", str(path)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _bridge(fds: tuple[int, int], sock: sockets.socket) -> int:
    """Carry bytes both ways until either side ends. Does not return: the process exits."""
    read, write = fds

    def inwards() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(read, CHUNK_BYTES):
                sock.sendall(data)
        with contextlib.suppress(OSError):
            sock.shutdown(sockets.SHUT_WR)

    threading.Thread(target=inwards, daemon=True, name="bridge-in").start()
    with contextlib.suppress(OSError):
        while data := sock.recv(CHUNK_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(write, view) :]
    os._exit(0)


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

    async def ask(path: Path) -> int:
        async with HostClient.attach(path, reconnect_s=0) as client:
            params = {} if options.all else {"sessionId": options.session}
            stopped = await client.request("host/stop", params)
            return int(stopped["sessions"])

    try:
        env = dict(os.environ)
        path = options.socket or user_socket(env, paths.rlm_home(env))
        count = asyncio.run(ask(path))
    except RlmError as why:
        say_error("rlm-host stop", why, "Nothing was stopped.")
        return 1
    sys.stdout.write(f"stopped {count} session{'' if count == 1 else 's'}\n")
    return 0


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
