"""Why and when the host ends: the first reason wins, and says with which exit code."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anyio

from ..processes.facts import exists, open_pidfd

log = logging.getLogger(__name__)

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SAME_PRESS_MS = 500
"""Two SIGINTs within this time are one: `uv run` doubles a person's Ctrl-C."""
GONE_MS = 900
"""From the reason to the end, whatever hangs."""
POLL_S = 1.0


class Lifetime:
    """
    One host's end, and that of the client that started it. Runs on the loop's thread.

    `code` is None while the host lives. From the first `end` on a watchdog thread ends the process
    after GONE_MS, for what is not on disk by then must be recovered at the next start anyway.
    """

    def __init__(self, *, watchdog: bool = True) -> None:
        self.code: int | None = None
        self.goes_on: Callable[[], bool] = lambda: False
        """Whether the host outlives its client; also asked by a signal handler: it only looks."""
        self._over = anyio.Event()
        self._left = anyio.Event()
        self._watchdog = watchdog
        self._timer: threading.Timer | None = None
        self._interrupted_at: float | None = None

    async def wait(self) -> int:
        """Wait for the end; give the exit code."""
        await self._over.wait()
        assert self.code is not None
        return self.code

    async def until_left(self) -> bool:
        """Wait until the client is gone or the host ends; tell whether the host goes on."""
        await self._left.wait()
        return self.code is None

    def end(self, code: int, reason: str) -> None:
        """End the host. A later reason changes nothing."""
        if self.code is not None:
            return
        log.info("ending: %s", reason)
        self.code = code
        self._over.set()
        self._left.set()
        self._watch(code)

    def leave(self, code: int, reason: str) -> None:
        """The client is gone: end, unless the host goes on."""
        if self.code is not None or not self.goes_on():
            self.end(code, reason)
            return
        log.info("going on without the client: %s", reason)
        self._left.set()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """
        Take SIGINT, SIGTERM and SIGHUP for the length of the block.

        By Python's own handlers, not the loop's: they start the watchdog even while something holds
        the loop. Only on the main thread. No signal is blocked in the block, as some clients leave
        it to the programs they start, and these to their children.
        """
        loop = asyncio.get_running_loop()

        def signalled(number: int, _frame: object) -> None:
            # What may go on is not watched: it would be killed in the midst of its work.
            if number != signal.SIGHUP or not self.goes_on():
                self._watch(EXIT_CODES[signal.Signals(number)])
            loop.call_soon_threadsafe(self._signalled, signal.Signals(number))

        old = {number: signal.signal(number, signalled) for number in EXIT_CODES}
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number, handler in old.items():
                signal.signal(number, handler)

    def _signalled(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self.leave(EXIT_CODES[number], number.name)
            return
        now = asyncio.get_running_loop().time()
        if self.code is not None:
            again = number == signal.SIGINT and self._interrupted_at is not None
            if again and (now - (self._interrupted_at or now)) * 1000 > SAME_PRESS_MS:
                os._exit(EXIT_CODES[number])
            return
        self._interrupted_at = now if number == signal.SIGINT else None
        self.end(EXIT_CODES[number], number.name)

    def _watch(self, code: int) -> None:
        """End the process after GONE_MS, whatever hangs."""
        if self._watchdog and self._timer is None:
            self._timer = threading.Timer(GONE_MS / 1000, os._exit, (code,))
            self._timer.daemon = True
            self._timer.start()

    def follow(self, pid: int) -> Callable[[], Coroutine[Any, Any, None]]:
        """
        Give what calls `leave`, with code 0, when the process `pid` is gone. Cancellable.

        The process is taken hold of at once: one that dies right after this call is seen to do so.

        A pid that does not exist is not followed: the client may live in another pid namespace, and
        the end of its stream tells the same.
        """
        fd = open_pidfd(pid)

        async def until_gone() -> None:
            await self._until_gone(pid, fd)

        return until_gone

    async def _until_gone(self, pid: int, fd: int | None) -> None:
        if fd is not None:
            try:
                await anyio.wait_readable(fd)
            finally:
                os.close(fd)
        elif exists(pid):
            while exists(pid):  # noqa: ASYNC110 - without a pidfd there is nothing to wait on
                await anyio.sleep(POLL_S)
        else:
            log.warning("the client's process %d cannot be seen from here", pid)
            return
        self.leave(0, f"the client's process {pid} is gone")
