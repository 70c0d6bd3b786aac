"""
What guard and kernel share: one lock, the name of the running request, unfinished UTF-8.

Both processes write frames into the same stream. Whoever writes holds the lock, so no frame is ever
torn, and whoever reads a captured pipe holds it until the frame is written, so that "lock held and
pipe empty" proves that every captured byte has left. Imports C modules only: the guard is a fork
taken before anything else is loaded.
"""

import _thread
import fcntl
import mmap
import os

ID_BYTES = 1024
"""Longest request id on the page, as JSON; the runtime refuses longer ones."""
_COUNT_AT = (1, 2)
_PARTIAL_AT = (3, 6)
_ID_AT = 9
_NO_PARTIALS = bytes(2)
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
        self._thread = _thread.allocate_lock()  # to the system, all threads are one holder

    def acquire(self) -> None:
        self._thread.acquire()
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)
        self._thread.release()

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
        """Take the lock, waiting for the other process and for other threads. Not reentrant."""
        self.release = lock.release
        self.break_lock = lock.break_

    def set_author(self, json_id: bytes) -> None:
        """
        Name the request that owns captured bytes from now on, as JSON. For the kernel.

        Needs no lock: nobody reads the name before the byte that shows it has been set, and
        `set_nobody` was called under the lock.
        """
        page = self._map
        page[_ID_AT : _ID_AT + 1 + len(json_id)] = json_id + b"\n"
        page[0] = 1

    def set_nobody(self) -> bool:
        """Say that captured bytes belong to nobody. True: a character is unfinished. Lock held."""
        page = self._map
        page[0] = 0
        return page[1:3] != _NO_PARTIALS

    def author(self) -> bytes:
        """Give the JSON of the request that owns captured bytes; `null`: nobody. Lock held."""
        if not self._map[0]:
            return b"null"
        return self._map[_ID_AT : self._map.find(b"\n", _ID_AT)]

    def set_partial(self, stream: int, data: bytes) -> None:
        """Keep up to three bytes of an unfinished character of fd `stream`. Lock held."""
        at = _PARTIAL_AT[stream]
        self._map[at : at + 3] = data.ljust(3, b"\0")
        self._map[_COUNT_AT[stream]] = len(data)

    def partial(self, stream: int) -> bytes:
        """Give the bytes of an unfinished character of fd `stream`. Lock held."""
        at = _PARTIAL_AT[stream]
        return self._map[at : at + self._map[_COUNT_AT[stream]]]


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
