"""Notifications of the host, as a client's program gets them."""

import asyncio
from collections import deque
from typing import Any, Self

import msgspec

from rlm_protocol.errors import Overloaded, RlmError
from rlm_protocol.methods import EVENTS

SUBSCRIBED_MAX = 100_000
"""Notifications that wait in one subscription before it is given up."""


class HostNotification(msgspec.Struct, frozen=True):
    """A notification of the host."""

    method: str
    raw: msgspec.Raw

    @property
    def params(self) -> dict[str, Any]:
        """The payload as plain data."""
        decoded: dict[str, Any] = msgspec.json.decode(self.raw)
        return decoded

    @property
    def payload(self) -> Any:
        """The payload as the registry's Struct. Raises KeyError for a newer host's event."""
        return msgspec.json.decode(self.raw, type=EVENTS[self.method].params)


class Subscription:
    """
    Notifications from the moment it was made; iterate it, any number of times.

    Raises from the iteration:
        HostLost: the connection is gone, after everything that came before has been given.
        Overloaded: more than SUBSCRIBED_MAX waited; the subscription is over.
    """

    def __init__(self, methods: frozenset[str], session_id: str | None) -> None:
        self._methods = methods
        self._session_id = session_id
        self._waiting: deque[HostNotification] = deque()
        self._end: RlmError | None = None
        self._wake: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> HostNotification:
        while not self._waiting:
            if self._end is not None:
                raise self._end
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self._waiting.popleft()

    def offer(self, event: HostNotification) -> None:
        """Take a notification if it is one of ours."""
        if self._end is not None or (self._methods and event.method not in self._methods):
            return
        if self._session_id is not None and event.params.get("sessionId") != self._session_id:
            return
        if len(self._waiting) >= SUBSCRIBED_MAX:
            self.end(Overloaded("This subscription is not being read.", waiting=SUBSCRIBED_MAX))
            return
        self._waiting.append(event)
        self._notify()

    def end(self, why: RlmError) -> None:
        """Give nothing new any more."""
        self._end = self._end or why
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
