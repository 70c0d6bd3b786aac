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
_SLOT = ID_BYTES + 2
_PARTIAL_AT = 1 + 2 * _SLOT
_NO_PARTIAL = bytes(8)
_SIZE = 4096


class _Semaphore:
    """
    A lock that costs no system call while it is free.

    It outlives a holder that was killed: the survivor breaks it (`break_`).
    """

    def __init__(self) -> None:
        import _multiprocessing  # type: ignore[import-not-found]

        name = f"/rlm-{os.getpid()}-{os.urandom(6).hex()}"
        self._lock = _multiprocessing.SemLock(1, 1, 1, name, True)
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def break_(self) -> None:
        """Give the lock back in the name of a dead process."""
        try:
            self._lock.release()
        except ValueError:
            return  # nobody held it


class _FileLock:
    """The same where there are no named semaphores; the system frees it when its holder dies."""

    def __init__(self) -> None:
        self._fd = high_fd(_anonymous_file())

    def acquire(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def break_(self) -> None:
        """Nothing to do: the system has."""


class Page:
    """One anonymous shared mapping and one lock, inherited by fork."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _SIZE)
        try:
            lock: _Semaphore | _FileLock = _Semaphore()
        except (ImportError, OSError):
            lock = _FileLock()
        self.acquire = lock.acquire
        """Take the lock, waiting for the other process. Threads need a lock of their own."""
        self.release = lock.release
        self.break_lock = lock.break_

    def set_author(self, json_id: bytes) -> None:
        """
        Name the request that owns captured bytes, as JSON (`null`: nobody). For the kernel.

        Needs no lock: the name goes to the slot that is not shown, then one byte shows it. The
        other slot stays whole until the kernel has held the lock in between.
        """
        shown = 1 - self._map[0]
        at = 1 + shown * _SLOT
        size = len(json_id)
        self._map[at : at + 2 + size] = size.to_bytes(2, "little") + json_id
        self._map[0] = shown

    def author(self) -> bytes:
        """Give the JSON of the request that owns captured bytes. Lock held."""
        at = 1 + self._map[0] * _SLOT
        size = int.from_bytes(self._map[at : at + 2], "little")
        return self._map[at + 2 : at + 2 + size] or b"null"

    def set_partial(self, stream: int, data: bytes) -> None:
        """Keep up to three bytes of an unfinished character of fd `stream`. Lock held."""
        at = _PARTIAL_AT + 4 * stream
        self._map[at : at + 4] = bytes((len(data),)) + data.ljust(3, b"\0")

    def partial(self, stream: int) -> bytes:
        """Give the bytes of an unfinished character of fd `stream`. Lock held."""
        at = _PARTIAL_AT + 4 * stream
        return self._map[at + 1 : at + 1 + self._map[at]]

    def has_partial(self) -> bool:
        """Tell whether any character is unfinished. Lock held."""
        return self._map[_PARTIAL_AT : _PARTIAL_AT + 8] != _NO_PARTIAL


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
