"""The tables of the SQLite run store, and its lines as typed rows."""

import zlib
from collections.abc import Iterator, Sequence

import apsw
import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol.errors import Conflict, RunNotFound, StoreCorrupt
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import Completed, Controlled, Event, Head, Submitted

from ..head import fold_all
from .base import Control, ControlAction, EventRow, RunRow
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
_ROW = (
    "id, run_id, tenant, workspace, parent, status, reason, config, config_sum, head, head_sum,"
    " seq, cancel, pause, token, owner, process, boot, expires_ms, claims, created_at_ms,"
    " updated_at_ms"
)


def checksum(key: str, body: bytes) -> int:
    """Give what is stored beside a body, so that an altered one is found."""
    return zlib.crc32(body, zlib.crc32(key.encode()))


class StoredRun(msgspec.Struct, frozen=True):
    """A line of `runs`, in the order of `_ROW`."""

    id: int
    run_id: str
    tenant: str
    workspace: str
    parent: str | None
    status: RunStatus
    reason: str | None
    config: bytes
    config_sum: int
    head: bytes
    head_sum: int
    seq: int
    cancel: str | None
    pause: str | None
    token: int
    owner: str | None
    process: str | None
    boot: str | None
    expires_ms: int | None
    claims: int
    created_at_ms: int
    updated_at_ms: int

    def to_row(self) -> RunRow:
        """Give what the contract promises. Raises StoreCorrupt: config or head is damaged."""
        for name, body, expected in (
            ("config", self.config, self.config_sum),
            ("head", self.head, self.head_sum),
        ):
            if checksum(name, body) != expected:
                raise damaged(self.run_id, name, "its checksum is wrong")
        try:
            head = records.decode_head(self.head)
        except msgspec.DecodeError as why:
            raise damaged(self.run_id, "head", str(why)) from why
        return RunRow(
            run_id=self.run_id,
            tenant=self.tenant,
            workspace=self.workspace,
            parent=self.parent,
            status=self.status,
            reason=self.reason,
            config=self.config,
            head=head,
            seq=self.seq,
            token=self.token,
            owner=self.owner,
            claims=self.claims,
            control=self.control,
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
        )

    @property
    def control(self) -> Control:
        """What operators want of the run."""
        return Control(cancel=self.cancel, pause=self.pause)


def damaged(run_id: str, what: str, why: str) -> StoreCorrupt:
    """Give the error for one damaged record."""
    return StoreCorrupt(
        f"The {what} of run {run_id} is damaged; other runs of the store are not touched.",
        run_id=run_id,
        record=what,
        detail=why,
    )


def find_run(db: apsw.Connection, run_id: str) -> StoredRun:
    """Give a run's line. Raises RunNotFound."""
    line = db.execute(f"SELECT {_ROW} FROM runs WHERE run_id=?", (run_id,)).fetchone()
    if line is None:
        raise RunNotFound(f"There is no run {run_id}.", run_id=run_id)
    return StoredRun(*line)


def find_runs(db: apsw.Connection, where: dict[str, str | int], limit: int) -> list[StoredRun]:
    """Give lines, newest first. `where` maps conditions to their values."""
    lines = db.execute(
        f"SELECT {_ROW} FROM runs WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
        (*where.values(), limit),
    )
    return [StoredRun(*line) for line in lines]


def find_event(db: apsw.Connection, run: StoredRun, key: str) -> EventRow | None:
    """Give one event, or None. Raises StoreCorrupt: it is damaged."""
    line = db.execute(
        "SELECT seq, key, token, at_ms, body_sum, body FROM events WHERE run=? AND key=?",
        (run.id, key),
    ).fetchone()
    return None if line is None else _event_row(run.run_id, *line)


def read_events(
    db: apsw.Connection, run: StoredRun, after: int, limit: int = -1
) -> Iterator[EventRow]:
    """Read events in order; a negative limit is none. Raises StoreCorrupt: one is damaged."""
    for line in db.execute(
        "SELECT seq, key, token, at_ms, body_sum, body FROM events WHERE run=? AND seq>?"
        " ORDER BY seq LIMIT ?",
        (run.id, after, limit),
    ):
        yield _event_row(run.run_id, *line)


def _event_row(
    run_id: str, seq: int, key: str, token: int, at_ms: int, body_sum: int, body: bytes
) -> EventRow:
    if checksum(key, body) != body_sum:
        raise damaged(run_id, f"event {seq} ({key})", "its checksum is wrong")
    try:
        event = records.decode_event(body)
    except msgspec.DecodeError as why:
        raise damaged(run_id, f"event {seq} ({key})", str(why)) from why
    return EventRow(seq=seq, key=key, token=token, at_ms=at_ms, event=event)


def missing(
    db: apsw.Connection, run: StoredRun, token: int, events: Sequence[Event]
) -> list[Event]:
    """Give the events that are not recorded yet. Raises Conflict: one is, with another body."""
    absent = []
    for event in events:
        key = records.key_of(event, token)
        body = db.execute("SELECT body FROM events WHERE run=? AND key=?", (run.id, key)).get
        if body is None:
            absent.append(event)
        elif body != records.encode(event):
            raise Conflict(f"Run {run.run_id} has another event {key}.", run_id=run.run_id, key=key)
    return absent


def insert_events(
    db: apsw.Connection, run: StoredRun, token: int, events: Sequence[Event], at_ms: int
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


def copy_beginning(db: apsw.Connection, source: StoredRun, child: StoredRun, last_seq: int) -> None:
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
    run: StoredRun,
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
    db: apsw.Connection, run: StoredRun, token: int, status: RunStatus, reason: str | None
) -> None:
    """Give the run a status and no owner."""
    db.execute(
        "UPDATE runs SET token=?, status=?, reason=?, owner=NULL, process=NULL, expires_ms=NULL,"
        " claims=0, pause=NULL WHERE id=?",
        (token, status, reason, run.id),
    )


def is_half_done(db: apsw.Connection, run: StoredRun) -> bool:
    """Tell whether a decision is recorded whose apply may have begun."""
    generation = records.decode_head(run.head).generation
    return find_event(db, run, f"intent:{generation}") is not None
