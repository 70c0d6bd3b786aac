"""
How many children run at once: the right to run a turn, and so to keep a kernel busy.

Each depth has places of its own. A session that waits for its children never holds what they need,
so nothing can wait in a circle, however a model's cells poll. As many again may rest with a kernel.
"""

import anyio


class Places:
    """`size` turns at once for each depth. A session holds at most one place."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._limiters: dict[int, anyio.CapacityLimiter] = {}
        self._holders: dict[str, int] = {}
        self._resting: dict[int, dict[str, None]] = {}

    async def acquire(self, session_id: str, depth: int) -> None:
        """Wait for a place, first come first served; at once when the session has one."""
        self._resting.get(depth, {}).pop(session_id, None)
        if session_id in self._holders:
            return
        limiter = self._limiters.setdefault(depth, anyio.CapacityLimiter(self._size))
        await limiter.acquire_on_behalf_of(session_id)
        self._holders[session_id] = depth

    def rest(self, session_id: str, depth: int) -> list[str]:
        """Note that a session's turn is over; give those that have rested longest, over `size`."""
        resting = self._resting.setdefault(depth, {})
        resting.pop(session_id, None)
        resting[session_id] = None
        over = list(resting)[: -self._size]
        for one in over:
            del resting[one]
        return over

    def release(self, session_id: str) -> None:
        """Give the session's place back; fine when it has none."""
        depth = self._holders.pop(session_id, None)
        if depth is not None:
            self._limiters[depth].release_on_behalf_of(session_id)
