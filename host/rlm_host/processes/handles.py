"""
What the host holds of a process: a child of its own, or a guard that a template has forked.

Both can be watched, signalled and asked how they ended, without a moment at which their pid could
already be somebody else's.
"""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
from typing import Protocol

from . import facts


class Handle(Protocol):
    """One process."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """How it ended, negative for a signal; None until `poll` has seen its end."""

    def open_pidfd(self) -> int | None:
        """Give a descriptor that becomes readable at its end, for the caller to close."""

    def poll(self) -> int | None:
        """Look, and reap it when it has ended."""

    def wait(self) -> int:
        """Wait for its end, blocking."""

    def signal(self, number: signal.Signals, *, group: bool = True) -> None:
        """Signal it, with `group` all of what is known as its own. No error when it is gone."""

    async def swept(self, limit_s: float) -> None:
        """Wait until whoever adopts what it has left has ended that; at most `limit_s`."""

    def close(self) -> None:
        """Close what is held of it."""


class Spawned:
    """A child of ours, the leader of its group."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self.pid = popen.pid

    @property
    def returncode(self) -> int | None:
        """How it ended."""
        return self._popen.returncode

    def open_pidfd(self) -> int | None:
        """Give a descriptor that becomes readable at its end; None where there are none."""
        return facts.open_pidfd(self.pid)

    def poll(self) -> int | None:
        """Look, and reap it when it has ended."""
        return self._popen.poll()

    def wait(self) -> int:
        """Wait for its end, blocking."""
        return self._popen.wait()

    def signal(self, number: signal.Signals, *, group: bool = True) -> None:
        """Signal it, or its group."""
        # A reaped leader's number may belong to somebody else by now.
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(self.pid, number)

    async def swept(self, limit_s: float) -> None:
        """Wait for nobody: what it has left has fallen to us."""

    def close(self) -> None:
        """Close nothing: nothing is held."""


class Forked:
    """
    A guard that a template forked; our child only once its template is gone.

    Its guard link says how its kernel ended. One that said nothing was killed, as far as can be
    known from here.
    """

    def __init__(self, pid: int, pidfd: int, swept: asyncio.Event) -> None:
        """Take over `pidfd`; `swept` is set once the template has ended what the guard left."""
        self.pid = pid
        self._code: int | None = None
        self._swept = swept
        self._pidfd = pidfd

    @property
    def returncode(self) -> int | None:
        """How it ended."""
        return self._code

    def open_pidfd(self) -> int:
        """Give a descriptor that becomes readable at its end."""
        return os.dup(self._pidfd)

    def poll(self) -> int | None:
        """Look, and reap it when it has ended and fell to us."""
        if self._code is None and self._ended(0):
            self._code = -signal.SIGKILL
            with contextlib.suppress(ChildProcessError):  # its template reaps it
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        return self._code

    def wait(self) -> int:
        """Wait for its end, blocking."""
        self._ended(None)
        code = self.poll()
        assert code is not None
        return code

    def signal(self, number: signal.Signals, *, group: bool = True) -> None:
        """Signal the guard: its kernel has a group of its own."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def swept(self, limit_s: float) -> None:
        """Wait for the template's sweep; at most `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._swept.wait()

    def close(self) -> None:
        """Close what is held of it."""
        os.close(self._pidfd)

    def _ended(self, timeout_ms: int | None) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_ms))
