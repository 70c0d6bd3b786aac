"""The tables of the SQLite run store, and its lines as typed rows."""

from collections.abc import Iterator, Sequence

import apsw

from rlm_protocol import loop_records as records
from rlm_protocol.errors import RunNotFound
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import Completed, Controlled, Event, Head, Submitted

from ..head import fold_all
from .base import ControlAction, EventRow, RunRow
from .rows import StoredRun, check_same_event, checksum, event_row
from .sqlite_file import Layout

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
    absent = []
    for event in events:
        key = records.key_of(event, token)
        body = db.execute("SELECT body FROM events WHERE run=? AND key=?", (run.id, key)).get
        if body is None:
            absent.append(event)
        else:
            check_same_event(run.run_id, key, body, event)
    return absent


def insert_events(
    db: apsw.Connection, run: SqliteRun, token: int, events: Sequence[Event], at_ms: int
) -> int:
    """Write events after the last one and give the new last `seq`."""
    seq = run.seq
    for event in events:
        seq += 1
        key, body = records.key_of(event, token), records.encode(event)
        db.execute(
            "INSERT INTO events VALUES(?,?,?,?,?,?,?)",
            (run.id, seq, key, token, at_ms, checksum(key, body), body),
        )
    return seq


def insert_run(db: apsw.Connection, run_id: str, submitted: Submitted, now_ms: int) -> None:
    """Write a new run and its first event."""
    config, head = records.encode(submitted.config), records.encode(Head())
    db.execute(
        "INSERT INTO runs(run_id, tenant, workspace, parent, status, config, config_sum, head,"
        " head_sum, seq, created_at_ms, updated_at_ms)"
        " VALUES(?, ?, ?, ?, 'running', ?, ?, ?, ?, 0, ?, ?)",
        (
            run_id,
            submitted.config.tenant,
            submitted.config.workspace,
            submitted.parent,
            config,
            checksum("config", config),
            head,
            checksum("head", head),
            now_ms,
            now_ms,
        ),
    )
    run = find_run(db, run_id)
    seq = insert_events(db, run, 0, [submitted], now_ms)
    db.execute("UPDATE runs SET seq=? WHERE id=?", (seq, run.id))


def insert_history(db: apsw.Connection, row: RunRow, history: Sequence[EventRow]) -> None:
    """Write a run of another store with its events as they are."""
    head = records.encode(row.head)
    db.execute(
        "INSERT INTO runs(run_id, tenant, workspace, parent, status, reason, config, config_sum,"
        " head, head_sum, seq, cancel, pause, token, claims, created_at_ms, updated_at_ms)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
        (
            row.run_id,
            row.tenant,
            row.workspace,
            row.parent,
            row.status,
            row.reason,
            row.config,
            checksum("config", row.config),
            head,
            checksum("head", head),
            len(history),
            row.control.cancel,
            row.control.pause,
            row.token,
            row.created_at_ms,
            row.updated_at_ms,
        ),
    )
    run = find_run(db, row.run_id)
    for seq, event in enumerate(history, 1):
        body = records.encode(event.event)
        db.execute(
            "INSERT INTO events VALUES(?,?,?,?,?,?,?)",
            (run.id, seq, event.key, event.token, event.at_ms, checksum(event.key, body), body),
        )


def copy_beginning(db: apsw.Connection, source: SqliteRun, child: SqliteRun, last_seq: int) -> None:
    """Give a new run the generations of another up to an event, and the head they fold to."""
    db.execute(
        "INSERT INTO events SELECT ?1, 1 + row_number() OVER (ORDER BY seq), key, token, at_ms,"
        " body_sum, body FROM events WHERE run=?2 AND seq<=?3 AND"
        " (key GLOB 'generation:*' OR key GLOB 'intent:*' OR key GLOB 'step_failed:*')",
        (child.id, source.id, last_seq),
    )
    rows = list(read_events(db, child, 0))
    body = records.encode(fold_all(row.event for row in rows))
    db.execute(
        "UPDATE runs SET head=?, head_sum=?, seq=? WHERE id=?",
        (body, checksum("head", body), len(rows), child.id),
    )


def settle(
    db: apsw.Connection,
    run: SqliteRun,
    action: ControlAction,
    reason: str,
    now_ms: int,
    status: RunStatus,
) -> None:
    """Act on a request as the run's owner for a moment, with a token of its own."""
    token = run.token + 1
    events: list[Event] = [Controlled(action=action, reason=reason)]
    if status == "cancelled":
        events.append(Completed(status=status, reason=reason))
    seq = insert_events(db, run, token, events, now_ms)
    db.execute("UPDATE runs SET seq=?, updated_at_ms=? WHERE id=?", (seq, now_ms, run.id))
    leave(db, run, token, status, None if status == "running" else reason)


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
