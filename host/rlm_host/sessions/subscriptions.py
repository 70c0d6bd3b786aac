"""
Who hears what of a session, and in which order.

One order holds for everyone: what was said while a record was not yet durable is held back until it
is, so that no listener hears of anything that a crash could take back. A listener that attaches
gets what its cursor missed, then every open item with its text so far, then the rest.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from rlm_protocol.base import Params
from rlm_protocol.item import Item, ItemStarted

from .notifications import Notification

Listener = Callable[[str, msgspec.Struct], None]
"""`(method, payload)`, called in the loop, in order; must not block and must not raise."""


@runtime_checkable
class Askable(Protocol):
    """A listener that is a client: it can be asked, too."""

    @property
    def client_id(self) -> str:
        """The same for all listeners of one client."""

    def __call__(self, method: str, payload: msgspec.Struct, /) -> None: ...

    async def ask(self, method: str, params: Params) -> msgspec.Raw:
        """
        Ask the client and give its raw result; cancelling the call tells the client.

        Raises:
            HostLost: the client is gone.
            RlmError: the client refused.
        """


class Heard(Protocol):
    """A session, as far as it is known who hears it."""

    @property
    def subscriptions(self) -> "Subscriptions": ...

    @property
    def ancestors(self) -> "Sequence[Heard]": ...


def audience(session: Heard) -> tuple[Askable, ...]:
    """Give every client that hears a session or one above it, each once, the nearest first."""
    clients: dict[str, Askable] = {}
    for one in (session, *session.ancestors):
        for listener in one.subscriptions.listeners:
            if isinstance(listener, Askable):
                clients.setdefault(listener.client_id, listener)
    return tuple(clients.values())


class Subscription:
    """One listener. While it catches up, what happens meanwhile is kept for it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._backlog: list[Notification] | None = []

    def send(self, method: str, payload: msgspec.Struct) -> None:
        """Hand a notification over, or keep it until the listener has caught up."""
        if self._backlog is None:
            self.listener(method, payload)
        else:
            self._backlog.append((method, payload))

    def caught_up(self, missed: Iterable[Notification]) -> None:
        """Hand over what was missed, then what was kept, then everything as it comes."""
        backlog, self._backlog = self._backlog or [], None
        for method, payload in [*missed, *backlog]:
            self.listener(method, payload)


class Subscriptions:
    """All listeners of one session, its open items, and what waits for a record to be durable."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._all: list[Subscription] = []
        self._open: dict[str, tuple[int, Callable[[], Item]]] = {}
        self._held: deque[tuple[int, str, msgspec.Struct]] = deque()
        self._durable_seq = 0

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Everyone who is attached, in order."""
        return tuple(one.listener for one in self._all)

    def add(self, listener: Listener) -> Subscription:
        """Attach. The subscription keeps everything until `caught_up`."""
        self.remove(listener)
        self._all.append(one := Subscription(listener))
        return one

    def remove(self, listener: Listener) -> None:
        """Detach; not being attached is fine."""
        self._all = [one for one in self._all if one.listener is not listener]

    # --- open items ---

    def open_item(self, item_id: str, seq: int, render: Callable[[], Item]) -> None:
        """Remember an item that grows: `render` gives it as it is now, `seq` is its start's."""
        self._open[item_id] = (seq, render)

    def close_item(self, item_id: str) -> None:
        """Forget an item that is complete."""
        self._open.pop(item_id, None)

    def open_items(self, gen: int) -> list[Notification]:
        """Give `item/started` of every open item, with its text so far."""
        return [
            (
                "item/started",
                ItemStarted(session_id=self._session_id, seq=seq, gen=gen, item=render()),
            )
            for seq, render in self._open.values()
            if seq <= self._durable_seq
        ]

    # --- order ---

    def emit(self, after_seq: int, method: str, payload: msgspec.Struct) -> None:
        """Send once the record `after_seq` is durable, behind everything that was said before."""
        if after_seq <= self._durable_seq and not self._held:
            self._send(method, payload)
        else:
            self._held.append((after_seq, method, payload))

    def durable(self, seq: int, notification: Notification | None) -> None:
        """A record became durable: send what it means, then what waited for it."""
        self._durable_seq = seq
        if notification is not None:
            self._send(*notification)
        while self._held and self._held[0][0] <= seq:
            _, method, payload = self._held.popleft()
            self._send(method, payload)

    def failed(self) -> None:
        """The records that others waited for will never be durable: what waited is dropped."""
        self._held.clear()

    def _send(self, method: str, payload: msgspec.Struct) -> None:
        for one in tuple(self._all):
            one.send(method, payload)
