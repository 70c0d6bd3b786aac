"""
Unix sockets: where they lie, who may connect, and the listener that turns them into attachments.

A socket lies in a folder that only its user can enter; who connects is asked for its uid besides. A
lock beside the socket is held for life, so that a stale socket can be told from a living one.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from rlm_protocol.errors import ConfigInvalid, Conflict, RlmError

from .. import paths
from ..processes.facts import exists
from .endpoint import Endpoint

log = logging.getLogger(__name__)

PATH_BYTES = 107
"""A socket's path is no longer (sockaddr_un, with its final NUL)."""
BACKLOG = 64


def runtime_dir(env: Mapping[str, str]) -> Path:
    """
    Give the user's folder for sockets and create it as needed, 0700.

    Raises:
        ConfigInvalid: it is somebody else's, a link, or open to others.
    """
    folder = paths.socket_folder(env)
    try:
        folder.mkdir(mode=paths.DIRECTORY_MODE, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as why:
        raise ConfigInvalid(f"No folder for sockets: {why}.") from why
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if found.st_uid != os.getuid() or not private:
        raise ConfigInvalid(f"{folder} is not a private folder of this user.")
    return folder


def user_socket(env: Mapping[str, str], home: Path) -> Path:
    """Give the socket of the user's host of this home. Raises ConfigInvalid."""
    return runtime_dir(env) / f"{_digest(home)}.sock"


def private_socket(env: Mapping[str, str], home: Path) -> Path:
    """Give the socket of this very process, for `sessionLeased {owner}`. Raises ConfigInvalid."""
    return runtime_dir(env) / f"{_digest(home)}-{os.getpid()}.sock"


def sweep(env: Mapping[str, str]) -> int:
    """
    Remove the private sockets of killed hosts, with their locks; give how many.

    Raises:
        ConfigInvalid: see `runtime_dir`.
    """
    removed = 0
    for path in {
        file.parent / file.name.removesuffix(".lock") for file in runtime_dir(env).iterdir()
    }:
        pid = path.name.removesuffix(".sock").rpartition("-")[2]
        # A living process may be about to lock what is free yet. One that lives where its pid means
        # nothing to us, in a container that shares the folder, has its lock.
        if not pid.isdecimal() or exists(int(pid)):
            continue
        with contextlib.suppress(RlmError), _locked(path):
            path.unlink(missing_ok=True)
            _lock_of(path).unlink(missing_ok=True)
            removed += 1
    return removed


def serves(path: Path) -> bool:
    """Tell whether a host lives behind a socket: it holds the lock beside it for life."""
    try:
        fd = os.open(_lock_of(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def listening(path: Path, *, private: bool = False) -> Iterator[socket.socket]:
    """
    Own a listening socket at `path` for the length of the block.

    The lock beside it stays, for a lock that goes can be taken twice; but not that of a `private`
    socket, which nobody else listens at.

    Raises:
        Conflict: a living host listens there.
        ConfigInvalid: no socket can be made there.
    """
    if len(os.fsencode(path)) > PATH_BYTES:
        raise ConfigInvalid(f"The socket's path is longer than {PATH_BYTES} bytes: {path}.")
    with _locked(path):
        server = _bound(path)
        try:
            yield server
        finally:
            server.close()
            path.unlink(missing_ok=True)
            if private:
                _lock_of(path).unlink(missing_ok=True)


@contextlib.contextmanager
def accepting(server: socket.socket, accept: Callable[[Endpoint], None]) -> Iterator[None]:
    """Give each client of our own user to `accept`, on this loop, for the length of the block."""
    loop = asyncio.get_running_loop()
    loop.add_reader(server.fileno(), _accept, server, accept)
    try:
        yield
    finally:
        loop.remove_reader(server.fileno())


def connect(path: Path) -> socket.socket:
    """Connect to a host. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(os.fspath(path))
    except BaseException:
        sock.close()
        raise
    return sock


def _accept(server: socket.socket, accept: Callable[[Endpoint], None]) -> None:
    try:
        client, _ = server.accept()
    except OSError as why:  # gone again, or no descriptors left: the listener itself is well
        log.warning("a client could not be accepted: %s", why)
        return
    peer = peer_of(client)
    if peer is not None and peer.uid != os.getuid():
        log.warning("refused a client of user %d", peer.uid)
        client.close()
        return
    accept(Endpoint.of_socket(client))


class Peer(msgspec.Struct, frozen=True):
    """Who is at the other end of a socket: whoever connected, or whoever listened."""

    pid: int
    uid: int


def peer_of(sock: socket.socket) -> Peer | None:
    """Ask the kernel; None where the machine does not tell (the folder is private all the same)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    ucred = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", ucred)
    return Peer(pid, uid)


def _bound(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "something else lies there")  # somebody's file
        path.unlink(missing_ok=True)  # whoever made it is dead: we hold its lock
        old = os.umask(0o177)
        try:
            server.bind(os.fspath(path))
        finally:
            os.umask(old)
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError as why:
        server.close()
        raise ConfigInvalid(f"No socket can be made at {path}: {why.strerror}.") from why
    return server


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        fd = os.open(
            _lock_of(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, paths.FILE_MODE
        )
    except OSError as why:
        raise ConfigInvalid(f"No socket can be made at {path}: {why.strerror}.") from why
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"A host serves on {path} already.") from None
        yield
    finally:
        os.close(fd)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _digest(home: Path) -> str:
    return hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:12]
