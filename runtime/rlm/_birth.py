"""
How a fork of a template becomes a kernel of its own: environment, folder, random numbers.

What a new process gets from its birth and a fork does not is put right here. What remains
different is listed in docs/architecture.md (Processes of a kernel).
"""

import os
import socket
import sys
import threading
from typing import Any

from rlm_protocol import warm

_BIRTH_BYTES = 256 * 1024
_SITES = ("site-packages", "dist-packages")


class Conditions:
    """What was there when the template was made: a kernel that started now would have the same."""

    def __init__(self) -> None:
        self._files = {path: _stamp(path) for path in _read_at_start()}
        self._coerced = os.environ.get("LC_CTYPE")

    def take(self, fd: int) -> None:
        """
        Wait on the socket `fd` for a birth, and live by it. Closes `fd`.

        Ends the process when none comes, or when this template is out of date.
        """
        with socket.socket(fileno=fd) as link:
            data, fds = receive(link, _BIRTH_BYTES)
        if not data or len(fds) != 1:
            os._exit(0)
        if any(_stamp(path) != stamp for path, stamp in self._files.items()):
            os._exit(warm.STALE)
        os.fchdir(fds[0])
        os.close(fds[0])
        self._set_environment(dict(warm.decode_birth(data).environment))
        renew()

    def _set_environment(self, environment: dict[bytes, bytes]) -> None:
        if self._coerced is not None:
            # The interpreter sets it at its start when the locale is C (PEP 538).
            environment.setdefault(b"LC_CTYPE", os.fsencode(self._coerced))
        os.environb.clear()
        os.environb.update(environment)


def renew() -> None:
    """Give this process what a library has drawn or looked up before the fork."""
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # the standard library's `random` does so by itself at a fork
    if "multiprocessing.process" in sys.modules:
        import multiprocessing

        multiprocessing.current_process().authkey = os.urandom(32)


def receive(link: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Give one datagram and the descriptors with it; b"" at the end, or when it was cut."""
    room = socket.CMSG_SPACE(16 * 4)
    try:
        data, extras, flags, _ = link.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # the other end was killed before it had read what we said
        return b"", []
    fds = [
        int.from_bytes(packed[at : at + 4], sys.byteorder)
        for level, kind, packed in extras
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for at in range(0, len(packed) - 3, 4)
    ]
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        return b"", []
    return data, fds


def _read_at_start() -> list[str]:
    """Name what an interpreter reads at its start, and the code that was loaded from elsewhere."""
    sites = [path for path in sys.path if os.path.basename(path) in _SITES]
    installed = (*sites, os.path.dirname(os.__file__))
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return sites + [path for path in loaded if path and not path.startswith(installed)]


def _stamp(path: str) -> Any:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size
