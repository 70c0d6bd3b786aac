"""
A live kernel forked in two: the other goes on with a copy of the namespace, on its own channels.

No request asks for it yet; what is kept here is the ability. It takes a moment between two cells at
which the runtime has one thread. Tasks and threads of cells stay with the origin; the branch has a
guard of its own, and ends with the origin's at the latest.
"""

import asyncio
import os
import socket
from typing import NoReturn

from . import _birth, _guard, _linux, _runtime, repl

_ORDER_BYTES = 64
_FDS = 4


def after_this_cell(link: socket.socket) -> None:
    """
    Branch as soon as the running cell has ended.

    With one datagram on the SOCK_SEQPACKET socket `link`, for which this waits, come the branch's
    stdin, stdout, stderr and the control socket of its guard. They are closed unused when threads
    of cells still run then: a fork would copy the locks they hold.

    Raises:
        ValueError: other descriptors came.
    """
    _, fds = _birth.receive(link, _ORDER_BYTES)
    if len(fds) != _FDS:
        _close(fds)
        raise ValueError(f"a branch takes {_FDS} descriptors, not {len(fds)}")
    origin = _runtime.current()

    def branch() -> None:
        nonlocal fds
        taken, fds = fds, []
        if not taken:
            return  # this cell had its branch
        origin.stop_threads()
        if _linux.threads() == 1:
            if (pid := os.fork()) == 0:
                _go_on(origin, taken)
            os.waitpid(pid, 0)
        _close(taken)

    origin.execution.after_cell(branch)


def _go_on(origin: "_runtime.Runtime", fds: list[int]) -> NoReturn:
    """Be the guard of the branch, and in another fork the branch."""
    if os.fork() != 0:
        os._exit(0)  # the origin's guard adopts and reaps what is no child of its cells
    os.setsid()
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    _close([*fds[:3], *origin.channels.captured, *origin.channels.pipes])
    channels = _guard.split(control=fds[3], owner_fd=None)
    asyncio._set_running_loop(None)  # the origin's, in whose callback this is
    repl.start(channels, origin)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
