"""The host's only clock. Whoever needs the time or waits for it is handed one of these."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """
    Wall time for records and people, monotonic time for deadlines.

    A deadline never uses `now_ms`: the wall clock jumps.
    """

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""

    async def sleep(self, duration_ms: int) -> None:
        """Wait. Cancellable."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, duration_ms: int) -> None:
        """Wait. Cancellable."""
        await asyncio.sleep(duration_ms / 1000)
