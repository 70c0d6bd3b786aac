"""
Forking a session: a journal's prefix under a new header, and the namespace as it was then.

The fork's kernel finds the newest snapshot at or before the turn, if that one is still kept; the
header says what became of it. Writing blocks.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rlm_protocol import __version__, child
from rlm_protocol import records as r
from rlm_protocol.errors import InvalidParams, StoreCorrupt
from rlm_protocol.item import ReplCell
from rlm_protocol.limits import NAME_CHARS

from ..kernels.snapshots import SnapshotStore
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
        fork=r.ForkOrigin(session_id=source.id, turn_id=turn_id, seq=source.seq),
        host_version=__version__,
        key=None,
        request=None,
    )


class Place(msgspec.Struct, frozen=True):
    """Where a session lies: the folder and name of its journal, and its own folder."""

    folder: Path
    session_id: str
    artifacts: Path

    @property
    def journal(self) -> str:
        """The name of the journal in `folder`."""
        return f"{self.session_id}.jsonl"


def write_fork(
    source: Place,
    target: Place,
    home: Path,
    *,
    header: r.SessionOpened,
    damage: list[r.DamageFound],
    at_ms: int,
) -> None:
    """
    Write a new journal: `header`, then the records up to the end of its turn, numbered anew.

    Whole or not at all, durably. Without a turn the header is all. `home` holds the key that
    snapshots are signed with.

    Raises:
        InvalidParams: no such turn has ended.
        StoreCorrupt: records before that place are lost.
        OSError: the copy could not be written; nothing is left behind.
    """
    assert header.fork is not None
    turn_id, state = header.fork.turn_id, SnapshotStore(home, target.artifacts)
    with Directory.open(source.folder) as origin, Directory.open(target.folder) as directory:
        part = f"{target.journal}.part"
        try:
            had_kernel, taken = _newest_snapshot(origin, source.journal, turn_id)
            kept = taken is not None and state.adopt(
                SnapshotStore(home, source.artifacts), taken.snapshot
            )
            last = taken if kept else None
            whole = msgspec.structs.replace(header, fork=_origin(header.fork, had_kernel, last))
            records = _prefix(origin, source.journal, turn_id, damage) if turn_id else iter(())
            _write_journal(directory, part, whole, records, last, at_ms)
            directory.rename(part, target.journal)
        except BaseException:
            directory.remove(part)
            _remove_state(state, target.artifacts)
            raise


def _origin(fork: r.ForkOrigin, had_kernel: bool, snapshot: r.SnapshotTaken | None) -> r.ForkOrigin:
    if snapshot is None:
        return msgspec.structs.replace(fork, kernel="lost" if had_kernel else "none")
    return msgspec.structs.replace(
        fork, kernel="restored", snapshot=snapshot.snapshot, item_id=snapshot.item_id
    )


def _write_journal(
    directory: Directory,
    name: str,
    header: r.SessionOpened,
    entries: Iterator[r.Entry],
    last: r.SnapshotTaken | None,
    at_ms: int,
) -> None:
    seq = 1
    with open(directory.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(r.encode_line(header, seq=seq, gen=1, at_ms=at_ms))
        for seq, entry in enumerate(entries, 2):
            assert not isinstance(entry.record, r.UnknownRecord)
            file.write(r.encode_line(entry.record, seq=seq, gen=1, at_ms=entry.at_ms))
        if last is not None:
            file.write(r.encode_line(last, seq=seq + 1, gen=1, at_ms=at_ms))
        file.flush()
        os.fsync(file.fileno())


def _remove_state(state: SnapshotStore, artifacts: Path) -> None:
    """Take back what was adopted; the disk may be in any state."""
    with contextlib.suppress(OSError):
        state.drop()
        artifacts.rmdir()


def _newest_snapshot(
    source: Directory, name: str, turn_id: str | None
) -> tuple[bool, r.SnapshotTaken | None]:
    """
    Tell whether there was a kernel by the end of the turn, and the newest snapshot of that time.

    A snapshot is often taken a moment after the turn: what counts is the cell that it follows.
    """
    cells: set[str] = set()
    taken: list[tuple[bool, r.SnapshotTaken]] = []
    had_kernel, ended = False, turn_id is None
    for found in read(source, name):
        match found.entry.record:
            case r.KernelStarted() if not ended:
                had_kernel = True
            case r.ItemCompleted(item=ReplCell(id=item_id)) if not ended:
                cells.add(item_id)
            case r.SnapshotTaken() as record if record.snapshot:
                taken.append((not ended, record))
            case r.TurnCompleted() as record if record.turn_id == turn_id:
                ended = True
    of_then = [
        record
        for before, record in taken
        if (before if record.item_id is None else record.item_id in cells)
    ]
    return had_kernel, of_then[-1] if of_then else None


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
