"""A guard and a kernel that a template has forked and that wait for an environment."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from rlm_protocol import warm

from .guard import GuardLink
from .handles import Forked

END_S = 1.0
"""A guard whose host has let go of it ends within this time, or is killed."""


class Spare:
    """
    Owns everything that is held of the two, until a child is made of it. `aclose` ends both.

    Nothing of a user has run in them.
    """

    def __init__(self) -> None:
        """Make both ends of everything; `theirs` go to the template. Raises OSError."""
        self.process: Forked
        """Set once the template has forked it."""
        self.theirs = contextlib.ExitStack()
        self._ours = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            stdin, self._stdin = self._pipe(ours_reads=False)
            stdout, self._stdout = self._pipe(ours_reads=True)
            stderr, self._stderr = self._pipe(ours_reads=True)
            self._birth, birth = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._ours.callback(self._birth.close)
            self.theirs.callback(birth.close)
            self.guard = GuardLink(lambda _: None)
            self._ours.callback(self.guard.close)
            self.theirs.callback(self.guard.theirs.close)
            undo.pop_all()
        self.to_send = (stdin, stdout, stderr, self.guard.theirs.fileno(), birth.fileno())
        """Descriptors of the order that forks it, as `warm.Fork` names them."""

    def _pipe(self, *, ours_reads: bool) -> tuple[int, int]:
        read_end, write_end = os.pipe()
        theirs, ours = (write_end, read_end) if ours_reads else (read_end, write_end)
        self.theirs.callback(os.close, theirs)
        self._ours.callback(os.close, ours)
        return theirs, ours

    @property
    def alive(self) -> bool:
        """Tell whether its guard is there."""
        return self.process.poll() is None

    def live(self, env: Mapping[str, str], cwd: Path) -> None:
        """
        Give it the whole environment and its folder: it becomes a kernel.

        Raises OSError: it is gone, the environment is too large for it, or there is no such folder.
        """
        environment = tuple((os.fsencode(name), os.fsencode(env[name])) for name in env)
        folder = os.open(cwd, os.O_PATH | os.O_DIRECTORY)
        try:
            message = warm.encode(warm.Birth(environment=environment))
            socket.send_fds(self._birth, [message], [folder], socket.MSG_DONTWAIT)
        finally:
            os.close(folder)

    def release(self) -> tuple[int, int, int]:
        """Hand over our ends of stdin, stdout and stderr, with `guard` and `process`."""
        self._ours.pop_all()
        self._birth.close()
        return self._stdin, self._stdout, self._stderr

    def close(self) -> None:
        """Let go of all ends; a guard that holds the others ends with its kernel."""
        self.theirs.close()
        self._ours.close()

    async def aclose(self) -> None:
        """End it. Nothing of it is left."""
        self.close()
        loop = asyncio.get_running_loop()
        pidfd = self.process.open_pidfd()
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(END_S):
                await ended.wait()
        except TimeoutError:
            self.process.signal(signal.SIGKILL)
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self.process.poll()
            self.process.close()
