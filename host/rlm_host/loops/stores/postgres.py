"""Runs in a PostgreSQL database: the store of many hosts."""

import contextlib
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from psycopg import errors

from rlm_protocol import loop_records as records
from rlm_protocol.loop import Provenance, RunStatus
from rlm_protocol.loop_records import Event, Head, Submitted

from ..head import fold_all
from .base import (
    LEASE_MS,
    PAGE,
    Appended,
    Control,
    ControlAction,
    EventRow,
    Health,
    HintsOf,
    Lease,
    Page,
    RunRow,
    nothing,
)
from .group_commit import Fault, no_fault
from .postgres_hints import Hinter, listening
from .postgres_pool import CONNECTIONS, VERSION, Db, Pool
from .postgres_rows import (
    GIVEN,
    IS_OWNED,
    NOW_MS,
    ROW,
    act,
    columns,
    damage,
    find_event,
    find_run,
    insert_history,
    insert_run,
    is_half_done,
    is_owned,
    lease_of,
    missing,
    one,
    read_events,
)
from .rows import (
    TERMINAL,
    StoredRun,
    change_of,
    check_same_history,
    head_columns,
    held,
    lost,
    narrowed,
    not_completed,
    page_of,
)

T = TypeVar("T")
_EXPIRY = "clock_timestamp() + %(ttl_ms)s * interval '1 millisecond'"

# The fence, the head and the events are one statement: one round trip, one sync.
_APPEND = f"""
WITH fence AS (
  UPDATE loop_runs SET seq = seq + cardinality(%(keys)s::text[]), head = %(head)s,
    head_sum = %(head_sum)s, status = %(status)s, updated_at_ms = {NOW_MS},
    reason = CASE WHEN %(stays)s THEN reason ELSE %(reason)s END,
    owner = CASE WHEN %(stays)s THEN owner END, claim = CASE WHEN %(stays)s THEN claim END,
    expires_at = CASE WHEN %(stays)s THEN {_EXPIRY} END,
    pause = CASE WHEN %(stays)s THEN pause END, claims = CASE WHEN %(stays)s THEN 1 ELSE 0 END
  WHERE run_id = %(run_id)s AND token = %(token)s AND owner IS NOT NULL AND status = 'running'
    AND NOT EXISTS (SELECT FROM loop_events WHERE run = loop_runs.id AND key = ANY(%(keys)s))
  RETURNING id, seq, cancel, pause),
recorded AS (
  INSERT INTO loop_events
  SELECT id, seq - cardinality(%(keys)s::text[]) + nth, key, %(token)s, {NOW_MS}, sum, body
  FROM fence, {GIVEN} WITH ORDINALITY AS given(key, sum, body, nth))
SELECT cancel, pause FROM fence
"""
# A repeated claim finds what it has written the first time by its own id.
_CLAIM = f"""
UPDATE loop_runs SET token = token + (claim IS DISTINCT FROM %(claim)s)::int,
  claims = claims + (claim IS DISTINCT FROM %(claim)s)::int,
  owner = %(owner)s, claim = %(claim)s, expires_at = {_EXPIRY}
WHERE status = 'running' AND (NOT {IS_OWNED} OR claim = %(claim)s) AND
"""
_FREE = f"""
id = (SELECT id FROM loop_runs WHERE status = 'running' AND (claim = %(claim)s OR NOT
    coalesce({IS_OWNED}, false)) AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    AND (%(workspace)s::text IS NULL OR workspace = %(workspace)s)
  ORDER BY claim IS NOT DISTINCT FROM %(claim)s DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED)
"""


class PostgresRunStore:
    """
    A run store in one schema of a PostgreSQL database, for the hosts that can reach it.

    It keeps the contract of `stores.base.RunStore`. Leases are timed by the server's clock alone; a
    host that has died keeps its run until its lease has run out. Tables are made at the first
    opening, in the first schema of the search path. The store opens connections when they are
    needed and needs no close: `close` gives them back early.

    Args:
        url: as libpq takes it.
        fault: called at each named point of a durable write.

    Raises:
        ConfigInvalid, SchemaTooNew, StoreUnavailable: see `Pool`.
    """

    def __init__(self, url: str, *, fault: Fault = no_fault) -> None:
        self._pool = Pool(url)
        self._url = url
        self._hinter = Hinter()
        self._fault = fault
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._pool.close()

    def together(
        self, calls: Sequence[Callable[[], Any]], *, meanwhile: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        """Make calls at once, on a connection each; the server syncs for all that wait."""
        meanwhile()
        if len(calls) == 1:
            return [_outcome(calls[0])]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(CONNECTIONS, "run-store-calls")
        return list(self._threads.map(_outcome, calls))

    # --- runs ---------------------------------------------------------------------------------

    def submit(self, run_id: str, submitted: Submitted) -> bool:
        """Create a run. See `RunReader.submit`."""
        return self._write(lambda db: insert_run(db, run_id, submitted))

    def fork(self, parent: str, generation: int, run_id: str, submitted: Submitted) -> bool:
        """Create a run from the beginning of another. See `RunReader.fork`."""

        def work(db: Db) -> bool:
            with db.transaction():
                source = find_run(db, parent)
                last = find_event(db, parent, f"generation:{generation}")
                if last is None:
                    raise not_completed(parent, generation, source.to_row().head.generation)
                if not insert_run(db, run_id, submitted):
                    return False
                child = find_run(db, run_id)
                db.execute(
                    "INSERT INTO loop_events SELECT %s, 1 + row_number() OVER (ORDER BY seq), key,"
                    " token, at_ms, body_sum, body FROM loop_events WHERE run = %s AND seq <= %s"
                    " AND key ~ '^(generation|intent|step_failed):'",
                    (child.id, source.id, last.seq),
                )
                rows = read_events(db, run_id)
                head = head_columns(fold_all(row.event for row in rows))
                db.execute(
                    "UPDATE loop_runs SET head = %(head)s, head_sum = %(head_sum)s, seq = %(seq)s"
                    " WHERE id = %(id)s",
                    {**head, "seq": len(rows), "id": child.id},
                )
                return True

        return self._write(work)

    def adopt(self, row: RunRow, history: Sequence[EventRow]) -> bool:
        """Take over a run of another store. See `RunStore.adopt`."""

        def work(db: Db) -> bool:
            if insert_history(db, row, history):
                return True
            check_same_history(row.run_id, read_events(db, row.run_id), history)
            return False

        return self._write(work)

    # --- reading ------------------------------------------------------------------------------

    def head(self, run_id: str) -> RunRow:
        """Give the run's row. See `RunReader.head`."""
        return self._pool.call(lambda db: find_run(db, run_id)).to_row()

    def events(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> tuple[EventRow, ...]:
        """Give a page of events. See `RunReader.events`."""
        return self._pool.call(lambda db: tuple(read_events(db, run_id, after, limit)))

    def get(self, run_id: str, key: str) -> EventRow | None:
        """Give one event. See `RunReader.get`."""
        return self._pool.call(lambda db: find_event(db, run_id, key))

    def list(
        self,
        *,
        tenant: str | None = None,
        workspace: str | None = None,
        status: RunStatus | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> Page:
        """Give a page of runs. See `RunReader.list`."""
        where = narrowed("%s", tenant=tenant, workspace=workspace, status=status, cursor=cursor)
        query = f"SELECT {ROW} FROM loop_runs WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT %s"
        found = self._pool.call(
            lambda db: db.execute(query, [*where.values(), limit + 1]).fetchall()
        )
        return page_of([StoredRun(*line) for line in found], limit)

    def health(self, *, deep: bool = False) -> Health:
        """Look at the server; `deep` reads every run and event. See `RunReader.health`."""

        def work(db: Db) -> Health:
            facts = one(
                db,
                "SELECT current_setting('server_version'), (SELECT count(*) FROM loop_runs),"
                " pg_total_relation_size('loop_runs') + pg_total_relation_size('loop_events')",
            )
            unsafe = db.execute(
                "SELECT name FROM pg_settings WHERE setting = 'off'"
                " AND name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
            ).fetchall()
            problems = [f"{name} is off: a crash can lose what was recorded" for (name,) in unsafe]
            return Health(
                engine=f"PostgreSQL {facts[0]}",
                location=self._pool.location,
                schema=VERSION,
                runs=facts[1],
                size_bytes=facts[2],
                problems=(*problems, *(damage(db) if deep else ())),
            )

        return self._pool.call(work)

    # --- leases -------------------------------------------------------------------------------

    def claim(
        self,
        run_id: str,
        owner: str,
        *,
        ttl_ms: int = LEASE_MS,
        provenance: Provenance | None = None,
    ) -> Lease | None:
        """Take a run. See `RunStore.claim`."""
        given = {"claim": uuid.uuid4(), "run_id": run_id, "owner": owner, "ttl_ms": ttl_ms}

        def work(db: Db) -> Lease | None:
            with db.transaction():
                line = db.execute(f"{_CLAIM} run_id = %(run_id)s RETURNING {ROW}", given).fetchone()
                if line is not None:
                    return lease_of(db, line, ttl_ms, provenance)
                run = find_run(db, run_id)
            if run.status != "running":
                return None
            raise held(run_id, run.owner)

        return self._write(work)

    def claim_next(
        self,
        owner: str,
        *,
        tenant: str | None = None,
        workspace: str | None = None,
        ttl_ms: int = LEASE_MS,
        provenance: Provenance | None = None,
    ) -> Lease | None:
        """Take the oldest run that nobody works on, or give None; claimants do not wait."""
        given = {
            "claim": uuid.uuid4(),
            "owner": owner,
            "ttl_ms": ttl_ms,
            "tenant": tenant,
            "workspace": workspace,
        }

        def work(db: Db) -> Lease | None:
            with db.transaction():
                line = db.execute(f"{_CLAIM} {_FREE} RETURNING {ROW}", given).fetchone()
                return None if line is None else lease_of(db, line, ttl_ms, provenance)

        return self._write(work)

    def renew(self, lease: Lease) -> Control:
        """Extend a lease. See `RunStore.renew`."""

        def work(db: Db) -> Control:
            line = db.execute(
                f"UPDATE loop_runs SET expires_at = {_EXPIRY} WHERE run_id = %(run_id)s"
                " AND token = %(token)s AND owner IS NOT NULL AND status = 'running'"
                " RETURNING cancel, pause",
                {"ttl_ms": lease.ttl_ms, "run_id": lease.run_id, "token": lease.token},
            ).fetchone()
            if line is None:
                find_run(db, lease.run_id)
                raise lost(lease)
            return Control(cancel=line[0], pause=line[1])

        return self._write(work)

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        head: Head,
        *,
        status: RunStatus = "running",
        reason: str | None = None,
    ) -> Appended:
        """Record events under a lease. See `RunStore.append`."""
        given = {
            **head_columns(head),
            "run_id": lease.run_id,
            "token": lease.token,
            "ttl_ms": lease.ttl_ms,
            "status": status,
            "reason": reason,
            "stays": status == "running",
        }

        def work(db: Db) -> Appended:
            absent = list(events)
            while True:
                try:
                    line = db.execute(_APPEND, given | columns(lease.token, absent)).fetchone()
                except errors.UniqueViolation:
                    line = None  # the same append was repeated while it was still at work
                if line is not None:
                    return Appended(fresh=True, control=Control(cancel=line[0], pause=line[1]))
                run = find_run(db, lease.run_id)
                if run.token != lease.token:
                    raise lost(lease)
                absent = missing(db, run, lease.token, events)
                if not absent:
                    return Appended(fresh=False, control=run.control)
                if run.owner is None or run.status != "running":
                    raise lost(lease)

        return self._write(work)

    def release(self, lease: Lease) -> None:
        """End a lease. See `RunStore.release`."""

        def work(db: Db) -> None:
            done = db.execute(
                "UPDATE loop_runs SET owner = NULL, claim = NULL, expires_at = NULL, claims = 0"
                " WHERE run_id = %s AND token = %s AND owner IS NOT NULL",
                (lease.run_id, lease.token),
            )
            if not done.rowcount:
                find_run(db, lease.run_id)

        self._write(work)

    def request(self, run_id: str, action: ControlAction, reason: str) -> RunRow:
        """Ask for a cancel, a pause or a resume. See `RunReader.request`."""

        def work(db: Db) -> StoredRun:
            with db.transaction():
                run = find_run(db, run_id, "FOR UPDATE")
                if run.status not in records.TERMINAL:
                    owned, half_done = is_owned(db, run), is_half_done(db, run)
                    act(db, run, change_of(run, action, reason, owned=owned, half_done=half_done))
                return find_run(db, run_id)

        return self._write(work, self._hinter.asked).to_row()

    def prune(self, *, before_ms: int, limit: int = 100) -> int:
        """Delete old terminal runs. See `RunStore.prune`."""
        query = f"""
WITH old AS (
  DELETE FROM loop_runs WHERE id IN (
    SELECT id FROM loop_runs WHERE status IN ({TERMINAL}) AND updated_at_ms < %s
    LIMIT %s FOR UPDATE SKIP LOCKED)
  RETURNING id),
gone AS (DELETE FROM loop_events WHERE run IN (SELECT id FROM old))
SELECT count(*) FROM old"""
        return int(self._write(lambda db: one(db, query, (before_ms, limit))[0]))

    def hints(
        self, on_hint: Callable[[], None], of: HintsOf = "all"
    ) -> contextlib.AbstractContextManager[None]:
        """Listen for the hints of all who write to this database. See `RunReader.hints`."""
        return listening(self._url, on_hint, of)

    def _write(self, work: Callable[[Db], T], hint: Callable[[Db], None] | None = None) -> T:
        """
        Do what changes something, between two points at which a test can end the process.

        Once it is durable, `hint` tells those who wait for changes.
        """

        def between(db: Db) -> T:
            self._fault("store.before_write")
            result = work(db)
            self._fault("store.committed")
            (hint or self._hinter.progressed)(db)
            return result

        return self._pool.call(between)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as why:
        return why
