"""How processes of one machine see at once that another has died: a lock that dies with it."""

import contextlib
import fcntl
import os
import secrets
import weakref
from pathlib import Path


class OwnerLock:
    """
    A locked file in `folder` whose name stands for this process.

    The lock ends with the process, by whatever death, or with `close`, which removes the file too.
    A file left by a killed process is removed by whoever finds it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.name = secrets.token_hex(8)
        path = folder / self.name
        while True:
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    break
            os.close(fd)  # somebody took the file for a dead one's before it was locked
        self.close = weakref.finalize(self, _let_go, fd, path, os.getpid())


def _let_go(fd: int, path: Path, pid: int) -> None:
    if os.getpid() == pid:  # after a fork the file is still the parent's
        path.unlink(missing_ok=True)
    os.close(fd)


def is_dead(folder: Path, name: str) -> bool:
    """Tell whether the process of that lock has ended; removes its file if so."""
    path = folder / name
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def sweep(folder: Path) -> None:
    """Remove the files that killed processes left."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            is_dead(folder, name)
