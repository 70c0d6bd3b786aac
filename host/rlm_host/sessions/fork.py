"""Forking a session: the new header, and the copy of a journal's prefix, which blocks."""

import os
from collections.abc import Iterator

import msgspec

from rlm_protocol import __version__, child
from rlm_protocol import records as r
from rlm_protocol.errors import InvalidParams, StoreCorrupt
from rlm_protocol.limits import NAME_CHARS

from ..paths import Directory
from .recovery import read
from .state import SessionState

LEFT_BEHIND = (
    r.SessionOpened,
    r.SessionRenamed,
    r.SessionArchived,
    r.SessionDeleted,
    r.DamageFound,
    r.InputQueued,
    r.InputWithdrawn,
    r.InputsHeld,
    r.RequestReceived,
    r.RequestRecorded,
    r.SnapshotTaken,
    r.UnknownRecord,
    child.ChildUsageAttributed,
    child.BudgetReserved,
    child.BudgetSettled,
    child.BudgetWarned,
)
"""Facts of the old session that are none of the new one: name, keys, what waits, others' money."""


def fork_header(
    source: SessionState, session_id: str, *, name: str | None, turn_id: str | None
) -> r.SessionOpened:
    """Give the header of a fork: a root session with the source's prompt and options."""
    return msgspec.structs.replace(
        source.opened,
        session_id=session_id,
        name=name or f"{source.name} (fork)"[:NAME_CHARS],
        prompt=source.prompt,
        parent=None,
        fork=r.ForkOrigin(
            session_id=source.id,
            turn_id=turn_id,
            seq=source.seq,
            kernel="lost" if source.kernel else "none",
        ),
        host_version=__version__,
        key=None,
        request=None,
    )


def copy_prefix(
    source: Directory,
    source_name: str,
    target: Directory,
    target_name: str,
    *,
    header: r.SessionOpened,
    turn_id: str | None,
    damage: list[r.DamageFound],
    at_ms: int,
) -> None:
    """
    Write a new journal: `header`, then the records up to the end of `turn_id`, numbered anew.

    Whole or not at all, durably. With `turn_id` None there is no turn, and the header is all.

    Raises:
        InvalidParams: no such turn has ended.
        StoreCorrupt: records before that place are lost.
        OSError: the copy could not be written; nothing is left behind.
    """
    part = f"{target_name}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(target.open_file(part, flags), "wb") as file:
            file.write(r.encode_line(header, seq=1, gen=1, at_ms=at_ms))
            kept = _prefix(source, source_name, turn_id, damage) if turn_id else ()
            for seq, entry in enumerate(kept, 2):
                assert not isinstance(entry.record, r.UnknownRecord)
                file.write(r.encode_line(entry.record, seq=seq, gen=1, at_ms=entry.at_ms))
            file.flush()
            os.fsync(file.fileno())
        target.rename(part, target_name)
    except BaseException:
        target.remove(part)
        raise


def _prefix(
    source: Directory, name: str, turn_id: str, damage: list[r.DamageFound]
) -> Iterator[r.Entry]:
    for found in read(source, name):
        entry = found.entry
        if any(one.after_seq < entry.seq for one in damage):
            raise StoreCorrupt(
                "The journal is damaged before the end of this turn, so it is not forked there.",
                path=str(source.path / name),
            )
        if not isinstance(entry.record, LEFT_BEHIND):
            yield entry
        if isinstance(entry.record, r.TurnCompleted) and entry.record.turn_id == turn_id:
            return
    raise InvalidParams("No turn of this id has ended.", path="$.atTurnId")
