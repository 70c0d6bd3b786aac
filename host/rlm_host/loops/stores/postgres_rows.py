"""What is read from and written to the PostgreSQL run store's tables, on a given connection."""

from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

from rlm_protocol import loop_records as records
from rlm_protocol.errors import LeaseLost, RunNotFound, StoreCorrupt
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import Completed, Controlled, Event, Head, Submitted

from .base import ControlAction, EventRow, Lease
from .postgres_pool import Db
from .rows import StoredRun, check_same_event, check_same_run, checksum, event_row

ROW = ", ".join(StoredRun.__struct_fields__)
NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
IS_OWNED = "(owner IS NOT NULL AND expires_at > clock_timestamp())"
GIVEN = "unnest(%(keys)s::text[], %(sums)s::bigint[], %(bodies)s::bytea[])"
_EVENTS = (
    "SELECT e.seq, e.key, e.token, e.at_ms, e.body_sum, e.body FROM loop_events e"
    " JOIN loop_runs r ON r.id = e.run WHERE r.run_id = %s"
)
_SUBMIT = f"""
WITH run AS (
  INSERT INTO loop_runs(run_id, tenant, workspace, parent, status, config, config_sum, head,
    head_sum, seq, created_at_ms, updated_at_ms)
  VALUES(%(run_id)s, %(tenant)s, %(workspace)s, %(parent)s, 'running', %(config)s, %(config_sum)s,
    %(head)s, %(head_sum)s, 1, {NOW_MS}, {NOW_MS})
  ON CONFLICT (run_id) DO NOTHING RETURNING id)
INSERT INTO loop_events SELECT id, 1, 'submitted', 0, {NOW_MS}, %(sum)s, %(body)s FROM run
"""


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


def create(db: Db, run_id: str, submitted: Submitted) -> bool:
    """Write a new run and its first event, or give False. Raises Conflict: it is another."""
    config, head = records.encode(submitted.config), records.encode(Head())
    body = records.encode(submitted)
    made = db.execute(
        _SUBMIT,
        {
            "run_id": run_id,
            "tenant": submitted.config.tenant,
            "workspace": submitted.config.workspace,
            "parent": submitted.parent,
            "config": config,
            "config_sum": checksum("config", config),
            "head": head,
            "head_sum": checksum("head", head),
            "sum": checksum("submitted", body),
            "body": body,
        },
    )
    if not made.rowcount:
        first = find_event(db, run_id, "submitted")
        assert first is not None, "a run begins with its submission"
        check_same_run(run_id, records.encode(first.event), submitted)
    return bool(made.rowcount)


def columns(token: int, events: Sequence[Event]) -> dict[str, Any]:
    """Give events as the arrays that `GIVEN` reads."""
    keys = [records.key_of(event, token) for event in events]
    bodies = [records.encode(event) for event in events]
    sums = [checksum(key, body) for key, body in zip(keys, bodies, strict=True)]
    return {"keys": keys, "sums": sums, "bodies": bodies}


def missing(db: Db, run: StoredRun, token: int, events: Sequence[Event]) -> list[Event]:
    """Give the events that are not recorded yet. Raises Conflict: one is, with another body."""
    keyed = {records.key_of(event, token): event for event in events}
    there: dict[str, bytes] = dict(
        db.execute(
            "SELECT key, body FROM loop_events WHERE run = %s AND key = ANY(%s)",
            (run.id, list(keyed)),
        ).fetchall()
    )
    for key, body in there.items():
        check_same_event(run.run_id, key, body, keyed[key])
    return [event for key, event in keyed.items() if key not in there]


def request(db: Db, run: StoredRun, action: ControlAction, reason: str) -> None:
    """Act on a request, or note it for the living owner of a run that is locked and going."""
    owned = one(db, f"SELECT {IS_OWNED} FROM loop_runs WHERE id = %s", (run.id,))[0]
    match action:
        case "cancel":
            reason = reason if run.cancel is None else run.cancel
            db.execute("UPDATE loop_runs SET cancel = %s WHERE id = %s", (reason, run.id))
            if not owned and not _is_half_done(db, run):
                _settle(db, run, action, reason, "cancelled")
        case "pause" if run.status == "running" and run.pause is None:
            db.execute("UPDATE loop_runs SET pause = %s WHERE id = %s", (reason, run.id))
            if not owned:
                _settle(db, run, action, reason, "paused")
        case "resume" if run.status == "paused":
            _settle(db, run, action, reason, "running")
        case "resume":
            db.execute("UPDATE loop_runs SET pause = NULL WHERE id = %s", (run.id,))


def _is_half_done(db: Db, run: StoredRun) -> bool:
    """Tell whether a decision is recorded whose apply may have begun."""
    generation = records.decode_head(run.head).generation
    return find_event(db, run.run_id, f"intent:{generation}") is not None


def _settle(db: Db, run: StoredRun, action: ControlAction, reason: str, status: RunStatus) -> None:
    """Act as the run's owner for a moment, with a token of its own."""
    token = run.token + 1
    events: list[Event] = [Controlled(action=action, reason=reason)]
    if status == "cancelled":
        events.append(Completed(status=status, reason=reason))
    db.execute(
        f"INSERT INTO loop_events SELECT %(run)s, %(seq)s + nth, key, %(token)s, {NOW_MS}, sum,"
        f" body FROM {GIVEN} WITH ORDINALITY AS given(key, sum, body, nth)",
        columns(token, events) | {"run": run.id, "seq": run.seq, "token": token},
    )
    db.execute(
        f"UPDATE loop_runs SET seq = %s, token = %s, status = %s, reason = %s, owner = NULL,"
        f" claim = NULL, expires_at = NULL, claims = 0, pause = NULL, updated_at_ms = {NOW_MS}"
        " WHERE id = %s",
        (run.seq + len(events), token, status, None if status == "running" else reason, run.id),
    )


def lease_of(line: tuple[Any, ...], ttl_ms: int) -> Lease:
    """Give the lease of a line that was just claimed. Raises StoreCorrupt."""
    run = StoredRun(*line)
    return Lease(run_id=run.run_id, token=run.token, ttl_ms=ttl_ms, row=run.to_row())


def lost(lease: Lease) -> LeaseLost:
    """Give the refusal of a write under a lease that has ended."""
    return LeaseLost(run_id=lease.run_id, token=lease.token)


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
