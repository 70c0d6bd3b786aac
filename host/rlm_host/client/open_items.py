"""
Items that still grow, as far as this client was told of them. Pure.

A host sends each open item again, with its text so far, to a client that comes back. Of an item
that the client knows, only what it has not heard yet is handed on, as the deltas that it missed.
"""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.item import ItemCompleted, ItemDelta, ItemStarted
from rlm_protocol.turn import TurnCompleted

from .events import HostNotification

CHANNELS: tuple[str, ...] = get_args(get_type_hints(ItemDelta)["channel"])
METHODS = frozenset({"item/started", "item/delta", "item/completed", "turn/completed"})


class OpenItems:
    """What one connection after the other has told of open items."""

    def __init__(self) -> None:
        self._heard: dict[str, dict[str, int]] = {}  # item -> channel -> characters
        self._turns: dict[str, str | None] = {}

    def hear(self, event: HostNotification) -> Iterator[HostNotification]:
        """Give what is to be handed on of an event: nearly always the event itself."""
        try:
            payload = event.payload if event.method in METHODS else None
        except UNDECODABLE:  # an item of a newer host
            payload = None
        match payload:
            case ItemStarted() if payload.item.id in self._heard:
                yield from self._missed(payload)
                return
            case ItemStarted():
                self._heard[payload.item.id] = {c: len(t) for c, t in _texts(payload)}
                self._turns[payload.item.id] = payload.item.turn_id
            case ItemDelta():
                heard = self._heard.setdefault(payload.item_id, {})
                heard[payload.channel] = payload.offset + len(payload.text)
            case ItemCompleted():
                self._forget(payload.item.id)
            case TurnCompleted():
                for item_id in [one for one, of in self._turns.items() if of == payload.turn_id]:
                    self._forget(item_id)
        yield event

    def _missed(self, again: ItemStarted) -> Iterator[HostNotification]:
        heard = self._heard[again.item.id]
        for channel, text in _texts(again):
            offset = heard.get(channel, 0)
            if missed := text[offset:]:
                heard[channel] = len(text)
                yield _delta(again, channel, offset, missed)

    def _forget(self, item_id: str) -> None:
        self._heard.pop(item_id, None)
        self._turns.pop(item_id, None)


def _texts(started: ItemStarted) -> list[tuple[str, str]]:
    """Give an item's text by channel; output that was cut says nothing of what follows it."""
    if getattr(started.item, "truncated", False):
        return []
    texts = [(channel, getattr(started.item, channel, None)) for channel in CHANNELS]
    return [(channel, text) for channel, text in texts if isinstance(text, str)]


def _delta(again: ItemStarted, channel: Any, offset: int, text: str) -> HostNotification:
    delta = ItemDelta(
        session_id=again.session_id,
        seq=again.seq,
        gen=again.gen,
        item_id=again.item.id,
        channel=channel,
        offset=offset,
        text=text,
    )
    return HostNotification("item/delta", msgspec.Raw(msgspec.json.encode(delta)))
