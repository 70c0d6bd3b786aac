"""
Private descriptors: `os.close` and `os.closerange` of a cell pass over what the runtime needs.

This guards against accidents (`os.closerange(3, 4096)` before a daemon starts), not against malice.
"""

import errno
import os
import posix
import sys
from collections.abc import Iterable

from ._page import high_fd

_private: set[int] = set()
_close, _closerange = os.close, os.closerange
maybe_lost = False
"""A cell may have closed fd 0, 1 or 2: `mend`."""


def protect(fds: Iterable[int]) -> None:
    """Keep `fds` open against cells from now on."""
    _private.update(fds)
    for module in (os, posix):
        module.close, module.closerange = close, closerange  # type: ignore[attr-defined]


def unprotect() -> None:
    """Forget all: this process is a fork of a kernel and may close what it likes."""
    _private.clear()


def close(fd: int) -> None:
    """Close a file descriptor."""
    global maybe_lost
    if fd in _private:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if fd <= 2:
        maybe_lost = True
    _close(fd)


def closerange(fd_low: int, fd_high: int, /) -> None:
    """Close all file descriptors in [fd_low, fd_high), ignoring errors."""
    global maybe_lost
    if fd_low <= 2:
        maybe_lost = True
    at = fd_low
    for fd in sorted(fd for fd in _private if fd_low <= fd < fd_high):
        _closerange(at, fd)
        at = fd + 1
    _closerange(at, min(fd_high, sys.maxsize))


def mend(pipes: tuple[int, int]) -> None:
    """Fill fds 0, 1 and 2 (the captured pipes) where a cell closed them and nothing is there."""
    global maybe_lost
    maybe_lost = False
    null = high_fd(os.open(os.devnull, os.O_RDWR))
    for number, fd in enumerate((null, *pipes)):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(fd, number)
    _close(null)
