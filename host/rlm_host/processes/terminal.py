"""Leaving the terminal and the descriptors that a client gave to this process."""

import contextlib
import fcntl
import os
import termios

TERMINAL = "/dev/tty"


def leave_terminal() -> None:
    """
    Have nothing of the client's any more: no terminal, no session, descriptors 0 to 2 on nothing.

    The client sees the end of every pipe that it gave; closing its terminal signals nobody here.
    A process that leads its group cannot begin a session: it gives its terminal up instead.
    """
    try:
        os.setsid()
    except PermissionError:
        _give_up_terminal()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _give_up_terminal() -> None:
    try:
        fd = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # there is none
        return
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCNOTTY)
    os.close(fd)
