"""
One limiter per provider and key: how many requests run at once, and when the next may start.

What one session learns from a refusal, all sessions of the host obey. Time, sleep and chance are
arguments.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio

from .provider import ErrorKind, ProviderError

REFUSALS: frozenset[ErrorKind] = frozenset({"rate_limit", "overloaded"})
"""What says "not so many": other failures say nothing about the load."""
FIRST_WAIT_MS = 500
LONGEST_WAIT_MS = 30_000
"""The longest wait that we choose ourselves. A vendor's Retry-After may be longer."""
GROWTH = 4
"""How slowly it tries whether the vendor bears more: each such try may cost one refusal."""
QUEUE_WAIT_MS = 60_000
"""A wait longer than this is an error at once, with the time in it, not a silent hang."""


class Slot:
    """The right to have one request running. What came of it is told once, before it ends."""

    def __init__(self, limiter: "Limiter", epoch: int) -> None:
        self._limiter = limiter
        self._epoch = epoch

    def succeeded(self) -> None:
        """Say that the vendor answered in full."""
        self._limiter._learn_success()

    def failed(self, error: ProviderError) -> None:
        """Say what the vendor answered instead; only refusals change anything."""
        if error.kind in REFUSALS:
            self._limiter._learn_refusal(self._epoch, error.retry_after_ms)


class Limiter:
    """
    Admits requests in the order they came, at most `max_concurrent` at once.

    A refusal lowers the number to what else is running, for that many the vendor bore; `GROWTH`
    times as many successes raise it by one. A refusal also holds everything back: for the vendor's
    Retry-After, else for a random part of a wait that doubles with each refusal in a row.
    """

    def __init__(
        self,
        max_concurrent: int,
        *,
        monotonic_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        self._max = self.allowed = max_concurrent
        self._monotonic_ms = monotonic_ms
        self._sleep = sleep
        self._random = random
        self._running = 0
        self._successes = 0
        self._refusals = 0
        self._not_before_ms = 0
        # Counts the waits: a refusal of a request that began before the last one teaches nothing.
        self._epoch = 0
        self._head = anyio.Lock()  # first come, first served
        self._freed = anyio.Event()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncGenerator[Slot, None]:
        """
        Wait for a turn and hold it for the length of the block.

        Raises:
            ProviderError: `rate_limit`, when the vendor's wish holds everything back for longer
                than `QUEUE_WAIT_MS`; nothing was sent.
        """
        async with self._head:
            while not await self._may_start():
                pass
            self._running += 1
        try:
            yield Slot(self, self._epoch)
        finally:
            self._running -= 1
            self._freed.set()

    async def _may_start(self) -> bool:
        wait_ms = self._not_before_ms - self._monotonic_ms()
        if wait_ms > QUEUE_WAIT_MS:
            raise ProviderError(
                "rate_limit",
                f"The provider asked to be left alone for {wait_ms // 1000} s; nothing was sent.",
                retry_after_ms=wait_ms,
            )
        if wait_ms > 0:
            await self._sleep(wait_ms / 1000)
            return False
        if self._running >= self.allowed:
            self._freed = anyio.Event()
            await self._freed.wait()
            return False
        return True

    def _learn_success(self) -> None:
        self._refusals = 0
        self._successes += 1
        if self._successes >= GROWTH * self.allowed:
            self._successes = 0
            self.allowed = min(self._max, self.allowed + 1)

    def _learn_refusal(self, epoch: int, retry_after_ms: int | None) -> None:
        self._successes = 0
        if self._running > 1:  # alone, it was refused for something else than company
            self.allowed = min(self.allowed, self._running - 1)
        if epoch == self._epoch:
            self._epoch += 1
            self._refusals += 1
        longest_ms = min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (self._refusals - 1))
        # Never less than half of it: a wait of nothing would be no wait. A vendor's wish is kept
        # whole, with a little more, so that not everybody comes back at the same moment.
        wait_ms = longest_ms * (1 + self._random()) / 2
        if retry_after_ms is not None:
            wait_ms = retry_after_ms + FIRST_WAIT_MS * self._random()
        until_ms = self._monotonic_ms() + round(wait_ms)
        self._not_before_ms = max(self._not_before_ms, until_ms)
