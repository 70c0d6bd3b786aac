"""What a client must have heard of a journal, to compare with what it did hear."""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlm_host.client import HostNotification
from rlm_host.sessions.notifications import notification_of
from rlm_host.sessions.state import SessionState
from rlm_protocol import records as r

LASTING = ("turn/started", "item/completed", "turn/completed")
"""Notifications that are records: each is heard exactly once, however often a client comes back."""
Told = tuple[str, int, str]
"""Method, sequence number, and the id of the item or turn."""


def journal_of(home: Path, session_id: str) -> list[r.Entry]:
    """Read a session's journal, in which nothing may be damaged."""
    path = home / "rlm" / "sessions" / f"{session_id}.jsonl"
    decoded = [r.decode_line(line) for line in path.read_bytes().splitlines()]
    assert all(isinstance(one, r.Entry) for one in decoded), "damage"
    return [one for one in decoded if isinstance(one, r.Entry)]


def told_by(entries: list[r.Entry]) -> list[Told]:
    """Give what a client must have heard of these records."""
    state = SessionState()
    told = []
    for entry in entries:
        state.apply(entry)
        view = functools.partial(state.view, journal_path=None, artifacts_path="")
        meant = notification_of(entry, state.id, view)
        if meant is not None and meant[0] in LASTING:
            told.append((meant[0], entry.seq, _id_of(meant[1])))
    return told


def heard_of(events: Iterable[HostNotification]) -> list[Told]:
    """Give what a client has heard of records."""
    return [
        (event.method, event.payload.seq, _id_of(event.payload))
        for event in events
        if event.method in LASTING
    ]


def _id_of(payload: Any) -> str:
    return str(payload.item.id if hasattr(payload, "item") else payload.turn_id)
