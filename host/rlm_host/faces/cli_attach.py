"""`rlm-host attach`: be the stdio of a host that others use too."""

import argparse
import contextlib
import os
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlm_protocol.errors import HostLost, RlmError, SessionNotFound

from .. import paths
from ..rpc.sockets import connect, peer_of, user_socket
from ..sessions.lease import holder_of
from .launch import say_error

START_S = 20.0
"""How long `attach --start` waits for the host that it has started."""
CHUNK_BYTES = 1 << 16


def attach(fds: tuple[int, int], argv: Sequence[str]) -> int:
    """`rlm-host attach`: be the stdio of a host that others use too."""
    parser = argparse.ArgumentParser(
        prog="rlm-host attach", description="Join a running host, with stdin and stdout."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--socket", type=Path, help="default: the user's own host")
    which.add_argument(
        "--session", metavar="ID", help="the host that owns this session; the user's if none does"
    )
    parser.add_argument("--start", action="store_true", help="start the host when none runs")
    parser.add_argument("--stdio", action="store_true", help="as editors append it; no effect")
    parser.add_argument("--clientProcessId", metavar="PID", help="as editors append it; no effect")
    options = parser.parse_args(argv)
    try:
        env = dict(os.environ)
        sock = _owner(env, options.session) if options.session else None
        if sock is None:
            path = options.socket or user_socket(env, paths.rlm_home(env))
            sock = _connected(path, start=options.start)
    except (RlmError, OSError) as why:
        say_error("rlm-host attach", why, "Nothing was changed.")
        return 1
    return _bridge(fds, sock)


def _owner(env: Mapping[str, str], session_id: str) -> sockets.socket | None:
    """Connect to the host that owns a session; None when none does. Raises SessionNotFound."""
    journal = paths.journal(paths.rlm_home(env), session_id)
    if not journal.is_file():
        raise SessionNotFound(session_id=session_id)
    with paths.Directory.open(journal.parent) as directory:
        holder = holder_of(directory, journal.name)
    if holder is None or holder.socket is None:
        return None
    try:
        return connect(Path(holder.socket))
    except OSError:  # it died without taking its record away
        return None


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
