"""Take the protocol's descriptors away from everybody else. Imports nothing that could print."""

import fcntl
import os

HIGH_FD = 10
"""Private descriptors start here, out of the way of shells and libraries that use 3 to 9."""


def claim_stdio() -> tuple[int, int]:
    """
    Move stdin and stdout to private descriptors; give them as (read, write).

    Afterwards fd 0 is /dev/null and fd 1 is stderr, so that no `print`, no library and no child
    process can put a byte into the protocol or take one out of it. Call it before any other import.
    Descriptors that were closed at the start are opened on /dev/null first.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free one: this
    read = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    write = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read, write
