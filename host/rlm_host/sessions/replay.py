"""What a client that comes back has missed. Pure but for the reader that it is handed."""

from collections.abc import Callable, Iterator
from typing import Literal

from rlm_protocol import records as r
from rlm_protocol.base import Cursor
from rlm_protocol.limits import ATTACHMENT_SOFT_BYTES

from .scan import Found

REPLAY_RECORDS = 10_000
"""A client that missed more, or more than an attachment's byte budget, reads the session anew."""

Replay = Literal["complete", "partial", "none"]


def missed_by(
    cursor: Cursor | None,
    gen: int,
    upto: int,
    damage: list[r.DamageFound],
    read_after: Callable[[int], Iterator[Found]],
) -> tuple[Replay, list[r.Entry]]:
    """
    Give the entries behind `cursor` up to `upto`, each exactly once and in order.

    `partial` when damage took some of them. `none`, and no entry, without a cursor, for a cursor of
    another generation or of records that do not exist, and when too much was missed.
    """
    if cursor is None or cursor.gen != gen or cursor.seq > upto:
        return "none", []
    entries: list[r.Entry] = []
    size_bytes = 0
    for found in read_after(cursor.seq) if cursor.seq < upto else ():
        if found.entry.seq > upto:
            break
        entries.append(found.entry)
        size_bytes += found.end - found.offset
        if len(entries) > REPLAY_RECORDS or size_bytes > ATTACHMENT_SOFT_BYTES:
            return "none", []
    lost = any((one.before_seq or upto + 1) - 1 > max(one.after_seq, cursor.seq) for one in damage)
    return "partial" if lost else "complete", entries
