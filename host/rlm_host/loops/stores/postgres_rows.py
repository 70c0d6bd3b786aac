"""What is read from and written to the PostgreSQL run store's tables, on a given connection."""

from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol.errors import RunNotFound, StoreCorrupt
from rlm_protocol.loop import Provenance
from rlm_protocol.loop_records import Event, Submitted

from .base import EventRow, Lease, RunRow
from .postgres_pool import Db
from .rows import (
    Change,
    StoredRun,
    check_same_run,
    checksum,
    claim_events,
    event_columns,
    event_row,
    moved_run,
    new_run,
    not_recorded,
    submitted_in,
)

ROW = ", ".join(StoredRun.__struct_fields__)
NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
IS_OWNED = "(owner IS NOT NULL AND expires_at > clock_timestamp())"
GIVEN = "unnest(%(keys)s::text[], %(sums)s::bigint[], %(bodies)s::bytea[])"
_EVENTS = (
    "SELECT e.seq, e.key, e.token, e.at_ms, e.body_sum, e.body FROM loop_events e"
    " JOIN loop_runs r ON r.id = e.run WHERE r.run_id = %s"
)


def one(db: Db, query: str, given: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Give the one line that a query has."""
    line = db.execute(query, given).fetchone()
    assert line is not None, "such a query gives a line"
    return line


def find_run(db: Db, run_id: str, locking: LiteralString = "") -> StoredRun:
    """Give a run's line. Raises RunNotFound."""
    line = db.execute(f"SELECT {ROW} FROM loop_runs WHERE run_id = %s {locking}", (run_id,))
    found = line.fetchone()
    if found is None:
        raise RunNotFound(f"There is no run {run_id}.", run_id=run_id)
    return StoredRun(*found)


def find_event(db: Db, run_id: str, key: str) -> EventRow | None:
    """Give one event, or None. Raises RunNotFound, or StoreCorrupt: it is damaged."""
    line = db.execute(f"{_EVENTS} AND e.key = %s", (run_id, key)).fetchone()
    if line is None:
        find_run(db, run_id)
        return None
    return event_row(run_id, *line)


def read_events(db: Db, run_id: str, after: int = 0, limit: int | None = None) -> list[EventRow]:
    """
    Read events in order, all of one moment. Raises as `find_event` does.

    A run that is pruned meanwhile is there as a whole, or not at all.
    """
    lines = db.execute(
        f"{_EVENTS} AND e.seq > %s ORDER BY e.seq LIMIT %s", (run_id, after, limit)
    ).fetchall()
    if not lines:
        find_run(db, run_id)
    return [event_row(run_id, *line) for line in lines]


def insert_run(db: Db, run_id: str, submitted: Submitted) -> bool:
    """Write a new run and its first event, or give False. Raises Conflict: it is another."""
    with db.transaction():
        made = _insert_line(db, new_run(run_id, submitted))
        if made is not None:
            body = records.encode(submitted)
            db.execute(
                f"INSERT INTO loop_events VALUES(%s, 1, 'submitted', 0, {NOW_MS}, %s, %s)",
                (made, checksum("submitted", body), body),
            )
            return True
    check_same_run(run_id, submitted_in(find_event(db, run_id, "submitted")), submitted)
    return False


def insert_history(db: Db, row: RunRow, history: Sequence[EventRow]) -> bool:
    """Write a run of another store with its events as they are, or give False."""
    with db.transaction():
        made = _insert_line(db, moved_run(row, history))
        if made is not None:
            db.cursor().executemany(
                "INSERT INTO loop_events VALUES(%s, %s, %s, %s, %s, %s, %s)",
                [
                    (made, *event_columns(seq, told.key, told.token, told.at_ms, told.event))
                    for seq, told in enumerate(history, 1)
                ],
            )
        return made is not None


def _insert_line(db: Db, columns: dict[str, Any]) -> int | None:
    """Give the new line's id, or None: there is such a run. Times are the server's by default."""
    values = {name: f"%({name})s" for name in columns}
    values = {"created_at_ms": NOW_MS, "updated_at_ms": NOW_MS} | values
    made = db.execute(
        f"INSERT INTO loop_runs({', '.join(values)}) VALUES({', '.join(values.values())})"
        " ON CONFLICT (run_id) DO NOTHING RETURNING id",
        columns,
    ).fetchone()
    return None if made is None else int(made[0])


def columns(token: int, events: Sequence[Event]) -> dict[str, Any]:
    """Give events as the arrays that `GIVEN` reads."""
    keys = [records.key_of(event, token) for event in events]
    bodies = [records.encode(event) for event in events]
    sums = [checksum(key, body) for key, body in zip(keys, bodies, strict=True)]
    return {"keys": keys, "sums": sums, "bodies": bodies}


def missing(db: Db, run: StoredRun, token: int, events: Sequence[Event]) -> list[Event]:
    """Give the events that are not recorded yet. Raises Conflict: one is, with another body."""
    there: dict[str, bytes] = dict(
        db.execute(
            "SELECT key, body FROM loop_events WHERE run = %s AND key = ANY(%s)",
            (run.id, [records.key_of(event, token) for event in events]),
        ).fetchall()
    )
    return not_recorded(run.run_id, token, events, there.get)


def is_owned(db: Db, run: StoredRun) -> bool:
    """Tell whether somebody lives who may write to the run."""
    return bool(one(db, f"SELECT {IS_OWNED} FROM loop_runs WHERE id = %s", (run.id,))[0])


def is_half_done(db: Db, run: StoredRun) -> bool:
    """Tell whether a decision is recorded whose apply may have begun."""
    generation = records.decode_head(run.head).generation
    return find_event(db, run.run_id, f"intent:{generation}") is not None


def act(db: Db, run: StoredRun, change: Change) -> None:
    """Do what was asked: as the run's owner for a moment, or by a note to the one it has."""
    for name, value in change.columns.items():
        db.execute(f"UPDATE loop_runs SET {name} = %s WHERE id = %s", (value, run.id))
    if change.settles is None:
        return
    token = run.token + 1
    insert_events(db, run, token, change.events)
    db.execute(
        f"UPDATE loop_runs SET seq = %s, token = %s, status = %s, reason = %s, owner = NULL,"
        f" claim = NULL, expires_at = NULL, claims = 0, pause = NULL, updated_at_ms = {NOW_MS}"
        " WHERE id = %s",
        (run.seq + len(change.events), token, change.settles, change.reason, run.id),
    )


def insert_events(db: Db, run: StoredRun, token: int, events: Sequence[Event]) -> None:
    """Write events after the last one that the run's line tells of."""
    db.execute(
        f"INSERT INTO loop_events SELECT %(run)s, %(seq)s + nth, key, %(token)s, {NOW_MS}, sum,"
        f" body FROM {GIVEN} WITH ORDINALITY AS given(key, sum, body, nth)",
        columns(token, events) | {"run": run.id, "seq": run.seq, "token": token},
    )


def lease_of(db: Db, line: tuple[Any, ...], ttl_ms: int, provenance: Provenance | None) -> Lease:
    """Give the lease of a line that was just claimed, its claim recorded. Raises StoreCorrupt."""
    run = StoredRun(*line)
    claimed = missing(db, run, run.token, claim_events(str(run.owner), provenance))
    if claimed:
        insert_events(db, run, run.token, claimed)
        db.execute("UPDATE loop_runs SET seq = seq + %s WHERE id = %s", (len(claimed), run.id))
        run = msgspec.structs.replace(run, seq=run.seq + len(claimed))
    return Lease(run_id=run.run_id, token=run.token, ttl_ms=ttl_ms, row=run.to_row())


def damage(db: Db) -> Iterator[str]:
    """Read every run and event and say what is damaged."""
    with db.transaction(), db.cursor("runs") as runs, db.cursor("events") as events:
        for line in runs.execute(f"SELECT {ROW} FROM loop_runs"):
            try:
                StoredRun(*line).to_row()
            except StoreCorrupt as why:
                yield str(why)
        for run_id, *event in events.execute(
            "SELECT r.run_id, e.seq, e.key, e.token, e.at_ms, e.body_sum, e.body"
            " FROM loop_events e JOIN loop_runs r ON r.id = e.run"
        ):
            try:
                event_row(run_id, *event)
            except StoreCorrupt as why:
                yield str(why)
