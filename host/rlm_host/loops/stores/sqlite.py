"""Runs in one SQLite file: the default store, for the hosts of one machine."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from rlm_protocol import loop_records as records
from rlm_protocol.errors import RunNotFound
from rlm_protocol.loop import Provenance, RunStatus
from rlm_protocol.loop_records import Event, Head, Submitted

from ...clock import SystemClock
from ...processes.facts import boot_id
from ...sqlite_file import BUSY_MS, open_file, store_errors
from . import liveness
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
from .group_commit import Fault, GroupCommit, no_fault
from .rows import (
    TERMINAL,
    change_of,
    check_same_history,
    check_same_run,
    claim_events,
    head_columns,
    held,
    lost,
    narrowed,
    not_completed,
    page_of,
    submitted_in,
)
from .sqlite_rows import (
    LAYOUT,
    SqliteRun,
    act,
    advance,
    copy_beginning,
    find_event,
    find_run,
    find_runs,
    insert_events,
    insert_history,
    insert_next,
    insert_run,
    is_half_done,
    leave,
    missing,
    read_events,
)

CHECKPOINT_PAGES = 4_000
"""Many runs at work change the same pages again and again: the fewer times these are copied, the
better. 16 MiB of log are read again after a crash, in some ten milliseconds."""
_CLOCK = SystemClock()


@dataclass(slots=True)
class _Process:
    """What belongs to one process: nothing of it may be used on the other side of a fork."""

    pid: int
    writer: GroupCommit
    reader: apsw.Connection | None = None
    reading: threading.Lock = field(default_factory=threading.Lock)
    lock: liveness.OwnerLock | None = None
    held: set[tuple[str, int]] = field(default_factory=set)
    """Leases that are worked under; any other lease of this process was abandoned."""


class SqliteRunStore:
    """
    A run store in one file: one workspace, any number of processes of one machine.

    It keeps the contract of `stores.base.RunStore`. A lease is timed by the machine's monotonic
    clock and boot id, so changes of the wall clock mean nothing, and it is free at once when its
    process has died. The store starts no thread and needs no close: `close` gives files back early.

    Args:
        path: the file; created if missing. Beside it lie SQLite's `-wal` and `-shm` files and a
            folder `-owners` with one locked file for each process that works on runs.
        busy_ms: how long to wait for another process's transaction.
        now_ms, monotonic_ms: clocks, in milliseconds.
        fault: called at each named point of a durable write.

    Raises:
        StoreCorrupt, SchemaTooNew, StoreUnavailable, StoreBusy, StoreFull: see `open_file`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_ms: int = BUSY_MS,
        now_ms: Callable[[], int] = _CLOCK.now_ms,
        monotonic_ms: Callable[[], int] = _CLOCK.monotonic_ms,
        fault: Fault = no_fault,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._busy_ms = busy_ms
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._fault = fault
        self._boot = boot_id()
        self._owners = self.path.with_name(self.path.name + "-owners")
        self._inherited: list[_Process] = []
        self._process = self._new_process()
        self._process.reader = self._open()

    def close(self) -> None:
        """Close the connections and let go of the process's lock; the next call opens them anew."""
        process = self._here()
        process.writer.close()
        with process.reading:
            if process.reader is not None:
                process.reader.close()
                process.reader = None
        if process.lock is not None:
            process.lock.close()
            process.lock = None

    def hints(
        self, on_hint: Callable[[], None], of: HintsOf = "all"
    ) -> contextlib.AbstractContextManager[None]:
        """Give none: a file tells nobody. See `RunReader.hints`."""
        return contextlib.nullcontext()

    def together(
        self, calls: Sequence[Callable[[], Any]], *, meanwhile: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        """Make calls durable with one sync. See `RunStore.together`."""
        return self._here().writer.together(calls, meanwhile)

    # --- runs ---------------------------------------------------------------------------------

    def submit(self, run_id: str, submitted: Submitted) -> bool:
        """Create a run. See `RunReader.submit`."""
        return self._here().writer.write(lambda db: self._create(db, run_id, submitted))

    def fork(self, parent: str, generation: int, run_id: str, submitted: Submitted) -> bool:
        """Create a run from the beginning of another. See `RunReader.fork`."""

        def work(db: apsw.Connection) -> bool:
            source = find_run(db, parent)
            last = find_event(db, source, f"generation:{generation}")
            if last is None:
                raise not_completed(parent, generation, source.to_row().head.generation)
            if not self._create(db, run_id, submitted):
                return False
            copy_beginning(db, source, find_run(db, run_id), last.seq)
            return True

        return self._here().writer.write(work)

    def adopt(self, row: RunRow, history: Sequence[EventRow]) -> bool:
        """Take over a run of another store. See `RunStore.adopt`."""

        def work(db: apsw.Connection) -> bool:
            try:
                run = find_run(db, row.run_id)
            except RunNotFound:
                insert_history(db, row, history)
                return True
            check_same_history(row.run_id, list(read_events(db, run, 0)), history)
            return False

        return self._here().writer.write(work)

    def _create(self, db: apsw.Connection, run_id: str, submitted: Submitted) -> bool:
        try:
            there = find_event(db, find_run(db, run_id), "submitted")
        except RunNotFound:
            insert_run(db, run_id, submitted, self._now_ms())
            return True
        check_same_run(run_id, submitted_in(there), submitted)
        return False

    # --- reading ------------------------------------------------------------------------------

    def head(self, run_id: str) -> RunRow:
        """Give the run's row. See `RunReader.head`."""
        with self._read() as db:
            return find_run(db, run_id).to_row()

    def events(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> tuple[EventRow, ...]:
        """Give a page of events. See `RunReader.events`."""
        with self._read() as db:
            return tuple(read_events(db, find_run(db, run_id), after, limit))

    def get(self, run_id: str, key: str) -> EventRow | None:
        """Give one event. See `RunReader.get`."""
        with self._read() as db:
            return find_event(db, find_run(db, run_id), key)

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
        where = narrowed("?", tenant=tenant, workspace=workspace, status=status, cursor=cursor)
        with self._read() as db:
            return page_of(find_runs(db, where, limit + 1), limit)

    def health(self, *, deep: bool = False) -> Health:
        """Look at the file; `deep` reads every page. See `RunReader.health`."""
        with self._read() as db:
            found = db.execute("PRAGMA integrity_check(20)").fetchall() if deep else []
            return Health(
                engine=f"sqlite {apsw.sqlite_lib_version()}",
                location=str(self.path),
                schema=LAYOUT.version,
                runs=db.execute("SELECT count(*) FROM runs").get,
                size_bytes=db.pragma("page_count") * db.pragma("page_size"),
                problems=tuple(str(line[0]) for line in found if line[0] != "ok"),
            )

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
        process = self._here()
        taken = set[tuple[str, int]]()

        def work(db: apsw.Connection) -> Lease | None:
            run = find_run(db, run_id)
            if run.status != "running":
                return None
            if self._is_owned(run):
                raise held(run_id, run.owner)
            token = run.token + 1
            claimed = claim_events(owner, provenance)
            db.execute(
                "UPDATE runs SET token=?, seq=?, owner=?, process=?, boot=?, expires_ms=?, claims=?"
                " WHERE id=?",
                (
                    token,
                    insert_events(db, run, token, claimed, self._now_ms()),
                    owner,
                    self._lock_name(),
                    self._boot,
                    self._expiry(ttl_ms),
                    run.claims + 1,
                    run.id,
                ),
            )
            taken.add((run_id, token))
            process.held.update(taken)
            row = find_run(db, run_id).to_row()
            return Lease(run_id=run_id, token=token, ttl_ms=ttl_ms, row=row)

        try:
            return process.writer.write(work)
        except BaseException:
            process.held.difference_update(taken)
            raise

    def renew(self, lease: Lease) -> Control:
        """Extend a lease. See `RunStore.renew`."""

        def work(db: apsw.Connection) -> Control:
            run = _fenced(find_run(db, lease.run_id), lease)
            db.execute(
                "UPDATE runs SET expires_ms=? WHERE id=?", (self._expiry(lease.ttl_ms), run.id)
            )
            return run.control

        return self._here().writer.write(work)

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
        process, after = self._here(), head_columns(head)

        def work(db: apsw.Connection) -> Appended:
            now_ms = self._now_ms()
            changed = {**after, "expires_ms": self._expiry(lease.ttl_ms), "now_ms": now_ms}
            if (
                len(events) == 1
                and status == "running"
                and insert_next(db, lease, events[0], now_ms)
            ):
                return Appended(fresh=True, control=advance(db, lease.run_id, 1, changed))
            run = find_run(db, lease.run_id)
            if run.token != lease.token:
                raise lost(lease)
            fresh = missing(db, run, lease.token, events)
            if not fresh:
                return Appended(fresh=False, control=run.control)
            insert_events(db, _fenced(run, lease), lease.token, fresh, now_ms)
            control = advance(db, lease.run_id, len(fresh), changed)
            if status != "running":
                leave(db, run, lease.token, status, reason)
            return Appended(fresh=True, control=control)

        appended = process.writer.write(work)
        if status != "running":
            process.held.discard((lease.run_id, lease.token))
        return appended

    def release(self, lease: Lease) -> None:
        """End a lease. See `RunStore.release`."""
        process = self._here()
        process.held.discard((lease.run_id, lease.token))

        def work(db: apsw.Connection) -> None:
            run = find_run(db, lease.run_id)
            if run.token == lease.token and run.owner is not None:
                db.execute(
                    "UPDATE runs SET owner=NULL, process=NULL, expires_ms=NULL, claims=0"
                    " WHERE id=?",
                    (run.id,),
                )

        process.writer.write(work)

    def request(self, run_id: str, action: ControlAction, reason: str) -> RunRow:
        """Ask for a cancel, a pause or a resume. See `RunReader.request`."""

        def work(db: apsw.Connection) -> RunRow:
            run = find_run(db, run_id)
            if run.status not in records.TERMINAL:
                owned, half_done = self._is_owned(run), is_half_done(db, run)
                change = change_of(run, action, reason, owned=owned, half_done=half_done)
                act(db, run, change, self._now_ms())
            return find_run(db, run_id).to_row()

        return self._here().writer.write(work)

    def prune(self, *, before_ms: int, limit: int = 100) -> int:
        """Delete old terminal runs. See `RunStore.prune`."""

        def work(db: apsw.Connection) -> int:
            found = db.execute(
                f"SELECT id FROM runs WHERE status IN ({TERMINAL}) AND updated_at_ms<? LIMIT ?",
                (before_ms, limit),
            ).fetchall()
            db.executemany("DELETE FROM events WHERE run=?", found)
            db.executemany("DELETE FROM runs WHERE id=?", found)
            db.execute("PRAGMA incremental_vacuum(1000)")
            return len(found)

        return self._here().writer.write(work)

    # --- this process -------------------------------------------------------------------------

    def _open(self) -> apsw.Connection:
        db = open_file(self.path, LAYOUT, busy_ms=self._busy_ms)
        db.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        return db

    def _new_process(self) -> _Process:
        return _Process(os.getpid(), GroupCommit(self.path, self._open, self._fault))

    def _here(self) -> _Process:
        if self._process.pid != os.getpid():
            # Connections and locks must not be carried over a fork, not even to be closed.
            self._inherited.append(self._process)
            self._process = self._new_process()
        return self._process

    @contextlib.contextmanager
    def _read(self) -> Iterator[apsw.Connection]:
        process = self._here()
        with process.reading:
            if process.reader is None:
                process.reader = self._open()
            # One moment for all that is read: a run is pruned for the whole block, or not at all.
            with store_errors(self.path, process.reader), process.reader:
                yield process.reader

    def _lock_name(self) -> str:
        process = self._here()
        if process.lock is None:
            liveness.sweep(self._owners)
            process.lock = liveness.OwnerLock(self._owners)
        return process.lock.name

    def _expiry(self, ttl_ms: int) -> int:
        return self._monotonic_ms() + ttl_ms

    def _is_owned(self, run: SqliteRun) -> bool:
        """Tell whether somebody lives who may write to the run."""
        if run.owner is None or run.process is None or run.expires_ms is None:
            return False
        if run.boot != self._boot or run.expires_ms <= self._monotonic_ms():
            return False
        process = self._here()
        if process.lock is not None and run.process == process.lock.name:
            return (run.run_id, run.token) in process.held
        return not liveness.is_dead(self._owners, run.process)


def _fenced(run: SqliteRun, lease: Lease) -> SqliteRun:
    """Give the run if the lease is still its own. The token decides, never a clock."""
    if run.token != lease.token or run.owner is None or run.status != "running":
        raise lost(lease)
    return run
