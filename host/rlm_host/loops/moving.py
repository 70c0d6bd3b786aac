"""Taking a run out of one store and into another: JSON lines, the same history on both sides."""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol.errors import SchemaTooNew, StoreCorrupt
from rlm_protocol.loop_records import (
    EXPORT_VERSION,
    Completed,
    ExportedEvent,
    ExportedRun,
    ExportEnd,
    Submitted,
)

from .head import fold_all
from .report import read_events
from .stores.base import Control, EventRow, RunReader, RunRow, RunStore


def export_run(store: RunReader, run_id: str) -> Iterator[bytes]:
    """
    Give a run, as it is at one moment, as lines of JSON with their newlines.

    The run goes on in its store. To move it, pause it first: nothing else stops a run that is in
    two stores from being worked on in both.

    Raises:
        RunNotFound, StoreCorrupt: as the store says.
    """
    row = store.head(run_id)
    digest = hashlib.blake2b(digest_size=32)
    for line in _lines(store, row):
        digest.update(line)
        yield line
    yield records.encode_line(ExportEnd(digest=digest.hexdigest()))


def _lines(store: RunReader, row: RunRow) -> Iterator[bytes]:
    first = ExportedRun(
        version=EXPORT_VERSION,
        run_id=row.run_id,
        parent=row.parent,
        status=row.status,
        reason=row.reason,
        cancel=row.control.cancel,
        pause=row.control.pause,
        token=row.token,
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
        config=msgspec.Raw(row.config),
    )
    yield records.encode_line(first)
    for event in read_events(store, row.run_id, until=row.seq):
        yield records.encode_line(ExportedEvent(**msgspec.structs.asdict(event)))


def import_run(store: RunStore, lines: Iterable[bytes]) -> RunRow:
    """
    Take a run into a store, with all that happened to it, and give its row there.

    Importing it again is a no-op. Nothing is written before the last line has been checked.

    Raises:
        StoreCorrupt: a line is damaged or missing, or does not follow from those before it.
        SchemaTooNew: a newer version exported it.
        Conflict: the id belongs to a run with another history.
    """
    row, history = _read(lines)
    store.adopt(row, history)
    return store.head(row.run_id)


def _read(lines: Iterable[bytes]) -> tuple[RunRow, list[EventRow]]:
    run: ExportedRun | None = None
    history: list[EventRow] = []
    digest, number = hashlib.blake2b(digest_size=32), 0
    for number, line in enumerate(lines, 1):
        match _decoded(line, number):
            case ExportedRun() as run if number == 1:
                pass
            case ExportedEvent() as event if run is not None:
                if event.seq != number - 1 or event.key != records.key_of(event.event, event.token):
                    raise _damaged(number, "the event is not the next one")
                history.append(EventRow(**msgspec.structs.asdict(event)))
            case ExportEnd() as end if run is not None:
                if end.digest != digest.hexdigest():
                    raise _damaged(number, "the lines before it are not those that were exported")
                return _row(run, history, number), history
            case _:
                raise _damaged(number, "it has no place here")
        digest.update(line)
    raise _damaged(number + 1, "the last line is missing")


def _decoded(line: bytes, number: int) -> records.ExportLine:
    try:
        decoded = records.decode_line(line)
    except msgspec.DecodeError as why:
        raise _damaged(number, str(why)) from why
    if isinstance(decoded, ExportedRun) and decoded.version > EXPORT_VERSION:
        raise SchemaTooNew(found=decoded.version, known=EXPORT_VERSION)
    return decoded


def _row(run: ExportedRun, history: list[EventRow], number: int) -> RunRow:
    """Give the row that belongs to a history; all that can be computed from it is."""
    events = [row.event for row in history]
    config = bytes(run.config)
    ends = [event for event in events if isinstance(event, Completed)]
    if not events or not isinstance(events[0], Submitted):
        raise _damaged(2, "a run begins with its submission")
    if config != records.encode(events[0].config):
        raise _damaged(1, "the configuration is not the one that was submitted")
    ended = [(end.status, end.reason) for end in ends]
    if ended != ([(run.status, run.reason)] if run.status in records.TERMINAL else []):
        raise _damaged(number, "the status does not follow from the events")
    if len({row.key for row in history}) < len(history):
        raise _damaged(number, "an event is there twice")
    return RunRow(
        run_id=run.run_id,
        tenant=events[0].config.tenant,
        workspace=events[0].config.workspace,
        parent=run.parent,
        status=run.status,
        reason=run.reason,
        config=config,
        head=fold_all(events),
        seq=len(events),
        token=max(run.token, *(row.token for row in history)),
        owner=None,
        claims=0,
        control=Control(cancel=run.cancel, pause=run.pause),
        created_at_ms=run.created_at_ms,
        updated_at_ms=run.updated_at_ms,
    )


def _damaged(number: int, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        "The exported run is damaged. Nothing was imported.", line=number, detail=why
    )
