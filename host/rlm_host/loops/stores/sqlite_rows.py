"""The tables of the SQLite run store, and its lines as typed rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from rlm_protocol import loop_records as records
from rlm_protocol.errors import RunNotFound
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import Event, Submitted

from ...sqlite_file import Layout
from ..head import fold_all
from .base import Control, EventRow, Lease, RunRow
from .rows import (
    Change,
    StoredRun,
    checksum,
    event_columns,
    event_row,
    head_columns,
    moved_run,
    new_run,
    not_recorded,
)

LAYOUT = Layout(
    what="run store",
    application_id=0x726C6D72,
    version=1,
    ddl="""
CREATE TABLE runs(
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
  workspace TEXT NOT NULL, parent TEXT, status TEXT NOT NULL, reason TEXT,
  config BLOB NOT NULL, config_sum INTEGER NOT NULL,
  head BLOB NOT NULL, head_sum INTEGER NOT NULL,
  seq INTEGER NOT NULL, cancel TEXT, pause TEXT,
  token INTEGER NOT NULL DEFAULT 0, owner TEXT, process TEXT, boot TEXT, expires_ms INTEGER,
  claims INTEGER NOT NULL DEFAULT 0,
  created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL) STRICT;
CREATE INDEX runs_scope ON runs(tenant, workspace, id);
CREATE INDEX runs_status ON runs(status, id);
CREATE TABLE events(
  run INTEGER NOT NULL, seq INTEGER NOT NULL, key TEXT NOT NULL, token INTEGER NOT NULL,
  at_ms INTEGER NOT NULL, body_sum INTEGER NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY(run, seq)) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX events_key ON events(run, key);
""",
)


class SqliteRun(StoredRun, frozen=True):
    """A line of `runs`. Its lease is timed by this machine's clock."""

    process: str | None
    boot: str | None
    expires_ms: int | None


_ROW = ", ".join(SqliteRun.__struct_fields__)


def find_run(db: apsw.Connection, run_id: str) -> SqliteRun:
    """Give a run's line. Raises RunNotFound."""
    line = db.execute(f"SELECT {_ROW} FROM runs WHERE run_id=?", (run_id,)).fetchone()
    if line is None:
        raise RunNotFound(f"There is no run {run_id}.", run_id=run_id)
    return SqliteRun(*line)


def find_runs(db: apsw.Connection, where: dict[str, str | int], limit: int) -> list[SqliteRun]:
    """Give lines, newest first. `where` maps conditions to their values."""
    lines = db.execute(
        f"SELECT {_ROW} FROM runs WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
        (*where.values(), limit),
    )
    return [SqliteRun(*line) for line in lines]


def find_event(db: apsw.Connection, run: SqliteRun, key: str) -> EventRow | None:
    """Give one event, or None. Raises StoreCorrupt: it is damaged."""
    line = db.execute(
        "SELECT seq, key, token, at_ms, body_sum, body FROM events WHERE run=? AND key=?",
        (run.id, key),
    ).fetchone()
    return None if line is None else event_row(run.run_id, *line)


def read_events(
    db: apsw.Connection, run: SqliteRun, after: int, limit: int = -1
) -> Iterator[EventRow]:
    """Read events in order; a negative limit is none. Raises StoreCorrupt: one is damaged."""
    for line in db.execute(
        "SELECT seq, key, token, at_ms, body_sum, body FROM events WHERE run=? AND seq>?"
        " ORDER BY seq LIMIT ?",
        (run.id, after, limit),
    ):
        yield event_row(run.run_id, *line)


def missing(
    db: apsw.Connection, run: SqliteRun, token: int, events: Sequence[Event]
) -> list[Event]:
    """Give the events that are not recorded yet. Raises Conflict: one is, with another body."""

    def body_of(key: str) -> bytes | None:
        found: bytes | None = db.execute(
            "SELECT body FROM events WHERE run=? AND key=?", (run.id, key)
        ).get
        return found

    return not_recorded(run.run_id, token, events, body_of)


def insert_events(
    db: apsw.Connection, run: SqliteRun, token: int, events: Sequence[Event], at_ms: int
) -> int:
    """Write events after the last one and give the new last `seq`."""
    seq = run.seq
    for event in events:
        seq += 1
        _insert_event(db, run, seq, records.key_of(event, token), token, at_ms, event)
    return seq


def insert_next(db: apsw.Connection, lease: Lease, event: Event, at_ms: int) -> bool:
    """
    Write an event if it is new and its lease alive, as almost all are.

    One statement, for nothing is read that it can check by itself. On False nothing was written,
    for a reason that is still to be found.
    """
    key = records.key_of(event, lease.token)
    body = records.encode(event)
    db.execute(
        "INSERT INTO events SELECT id, seq+1, ?, token, ?, ?, ? FROM runs WHERE run_id=?"
        " AND token=? AND owner IS NOT NULL AND status='running' ON CONFLICT DO NOTHING",
        (key, at_ms, checksum(key, body), body, lease.run_id, lease.token),
    )
    return bool(db.changes())


def advance(db: apsw.Connection, run_id: str, events: int, columns: dict[str, Any]) -> Control:
    """Write what a run's line says after so many more events; give what operators want of it."""
    cancel, pause = db.execute(
        "UPDATE runs SET seq=seq+:events, head=:head, head_sum=:head_sum, expires_ms=:expires_ms,"
        " claims=1, updated_at_ms=:now_ms WHERE run_id=:run_id RETURNING cancel, pause",
        {**columns, "events": events, "run_id": run_id},
    ).get
    return Control(cancel=cancel, pause=pause)


def _insert_event(
    db: apsw.Connection,
    run: SqliteRun,
    seq: int,
    key: str,
    token: int,
    at_ms: int,
    event: Event,
) -> None:
    columns = event_columns(seq, key, token, at_ms, event)
    db.execute("INSERT INTO events VALUES(?,?,?,?,?,?,?)", (run.id, *columns))


def insert_run(db: apsw.Connection, run_id: str, submitted: Submitted, now_ms: int) -> None:
    """Write a new run and its first event."""
    run = _insert_line(
        db, new_run(run_id, submitted) | {"created_at_ms": now_ms, "updated_at_ms": now_ms}
    )
    _insert_event(db, run, 1, "submitted", 0, now_ms, submitted)


def insert_history(db: apsw.Connection, row: RunRow, history: Sequence[EventRow]) -> None:
    """Write a run of another store with its events as they are."""
    run = _insert_line(db, moved_run(row, history))
    for seq, told in enumerate(history, 1):
        _insert_event(db, run, seq, told.key, told.token, told.at_ms, told.event)


def _insert_line(db: apsw.Connection, columns: dict[str, Any]) -> SqliteRun:
    values = ", ".join(f":{name}" for name in columns)
    db.execute(f"INSERT INTO runs({', '.join(columns)}) VALUES({values})", columns)
    return find_run(db, columns["run_id"])


def copy_beginning(db: apsw.Connection, source: SqliteRun, child: SqliteRun, last_seq: int) -> None:
    """Give a new run the generations of another up to an event, and the head they fold to."""
    db.execute(
        "INSERT INTO events SELECT ?1, 1 + row_number() OVER (ORDER BY seq), key, token, at_ms,"
        " body_sum, body FROM events WHERE run=?2 AND seq<=?3 AND"
        " (key GLOB 'generation:*' OR key GLOB 'intent:*' OR key GLOB 'step_failed:*')",
        (child.id, source.id, last_seq),
    )
    rows = list(read_events(db, child, 0))
    head = head_columns(fold_all(row.event for row in rows))
    db.execute(
        "UPDATE runs SET head=:head, head_sum=:head_sum, seq=:seq WHERE id=:id",
        {**head, "seq": len(rows), "id": child.id},
    )


def act(db: apsw.Connection, run: SqliteRun, change: Change, now_ms: int) -> None:
    """Do what was asked: as the run's owner for a moment, or by a note to the one it has."""
    for name, value in change.columns.items():
        db.execute(f"UPDATE runs SET {name}=? WHERE id=?", (value, run.id))
    if change.settles is not None:
        token = run.token + 1
        seq = insert_events(db, run, token, change.events, now_ms)
        db.execute("UPDATE runs SET seq=?, updated_at_ms=? WHERE id=?", (seq, now_ms, run.id))
        leave(db, run, token, change.settles, change.reason)


def leave(
    db: apsw.Connection, run: SqliteRun, token: int, status: RunStatus, reason: str | None
) -> None:
    """Give the run a status and no owner."""
    db.execute(
        "UPDATE runs SET token=?, status=?, reason=?, owner=NULL, process=NULL, expires_ms=NULL,"
        " claims=0, pause=NULL WHERE id=?",
        (token, status, reason, run.id),
    )


def is_half_done(db: apsw.Connection, run: SqliteRun) -> bool:
    """Tell whether a decision is recorded whose apply may have begun."""
    generation = records.decode_head(run.head).generation
    return find_event(db, run, f"intent:{generation}") is not None
