"""
What guard and kernel share: one lock, the name of the running request, unfinished UTF-8.

Both processes write frames into the same stream. Whoever writes holds the lock, so no frame is ever
torn, and whoever reads a captured pipe holds it until the frame is written, so that "lock held and
pipe empty" proves that every captured byte has left. Imports C modules only: the guard is a fork
taken before anything else is loaded.
"""

import fcntl
import mmap
import os

ID_BYTES = 1024
"""Longest request id on the page, as JSON; the runtime refuses longer ones."""
_PARTIAL_AT = ID_BYTES + 16
_SIZE = 4096


class Page:
    """One anonymous shared mapping and one lock, inherited by fork."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _SIZE)
        self.fd = high_fd(_anonymous_file())

    def acquire(self) -> None:
        """Take the lock, waiting for the other process. Threads need a lock of their own."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the lock back."""
        fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def set_author(self, json_id: bytes) -> None:
        """Name the request that owns captured bytes, as JSON (`null`: nobody). Lock held."""
        size = len(json_id)
        self._map[: size + 2] = size.to_bytes(2, "little") + json_id

    def author(self) -> bytes:
        """Give the JSON of the request that owns captured bytes. Lock held."""
        size = int.from_bytes(self._map[:2], "little")
        return self._map[2 : 2 + size] or b"null"

    def set_partial(self, stream: int, data: bytes) -> None:
        """Keep up to three bytes of an unfinished character of fd `stream`. Lock held."""
        at = _PARTIAL_AT + 4 * stream
        self._map[at : at + 4] = bytes((len(data),)) + data.ljust(3, b"\0")

    def partial(self, stream: int) -> bytes:
        """Give the bytes of an unfinished character of fd `stream`. Lock held."""
        at = _PARTIAL_AT + 4 * stream
        return self._map[at + 1 : at + 1 + self._map[at]]


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlm-page")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def high_fd(fd: int, *, close: bool = True) -> int:
    """
    Give a private, non-inheritable copy of `fd` with a number that no cell reaches by chance.

    Numbers at the low end are what a cell's own files get, and what `closerange(3, 256)` closes.
    """
    for base in (900, 200, 10):
        try:
            copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, base)
        except OSError:
            continue
        if close:
            os.close(fd)
        return copy
    raise OSError("no file descriptor is left for the runtime")
