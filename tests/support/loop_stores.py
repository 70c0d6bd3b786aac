"""The run stores under test, each behind the few things a test must be able to do to it."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import apsw
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from rlm_host.loops.head import fold_all
from rlm_host.loops.inputs import LoopObservation
from rlm_host.loops.stores.base import RunReader, RunRow, RunStore
from rlm_host.loops.stores.open import open_runs, open_store
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_host.loops.worker import Work
from rlm_protocol.loop import Provenance
from rlm_protocol.loop_records import (
    Decision,
    Event,
    GenerationDone,
    Head,
    Intent,
    LoopConfig,
    ObservationRecord,
    Submitted,
)
from support.services import Postgres, Temporal

PATIENCE_S = 60.0


class RunsUnderTest(Protocol):
    """Whatever keeps runs; `store` may be used as `RunReader` says."""

    store: RunReader

    def another(self) -> RunReader:
        """Give the store as another process opens it."""

    def complete(self, run_id: str, generations: int) -> None:
        """Let a run without any complete its first generations."""

    def acted(self, run_id: str, status: str) -> RunRow:
        """Give the run once what was requested of it has led to a status."""

    def soon(self, met: Callable[[], bool]) -> None:
        """Hold that something is so: at once, unless the engine's listings take a moment."""

    def close(self) -> None:
        """Give back what is open."""


class StoreUnderTest(RunsUnderTest, Protocol):
    store: RunStore

    def another(self) -> RunStore:
        """Give the store as another process opens it."""

    def expire_leases(self) -> None:
        """Let the time of every lease run out."""

    def alter(self, table: str, run_id: str, column: str) -> None:
        """Change a number in a stored body of a run (of events: the second one) behind its back."""


class _OwnStore:
    store: RunStore

    def complete(self, run_id: str, generations: int) -> None:
        lease, head = self.store.claim(run_id, "w"), Head()
        for n in range(generations):
            head = fold_all([generation(n)], head)
            self.store.append(lease, [generation(n)], head)
        self.store.release(lease)

    def acted(self, run_id: str, status: str) -> RunRow:
        row = self.store.head(run_id)
        assert row.status == status, "with no owner it happens at once"
        return row

    def soon(self, met: Callable[[], bool]) -> None:
        assert met()


class SqliteUnderTest(_OwnStore):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.sqlite3"
        self.clock_ms = 1_000_000
        self.opened: list[SqliteRunStore] = []
        self.store = self.another()

    def another(self) -> SqliteRunStore:
        store = SqliteRunStore(self.path, monotonic_ms=lambda: self.clock_ms)
        self.opened.append(store)
        return store

    def expire_leases(self) -> None:
        self.clock_ms += 10_000_000

    def alter(self, table: str, run_id: str, column: str) -> None:
        where = {
            "runs": "run_id=?",
            "events": "run=(SELECT id FROM runs WHERE run_id=?) AND seq=2",
        }
        db = apsw.Connection(str(self.path))
        db.execute(
            f"UPDATE {table} SET {column}=CAST(replace(CAST({column} AS TEXT), '0', '1') AS BLOB) WHERE {where[table]}",
            (run_id,),
        )
        assert db.changes() == 1
        db.close()

    def close(self) -> None:
        for store in self.opened:
            store.close()


class PostgresUnderTest(_OwnStore):
    def __init__(self, server: Postgres) -> None:
        self.server, self.url = server, server.new_url()
        self.opened: list[RunStore] = []
        self.store = self.another()

    def another(self) -> RunStore:
        store = open_store(self.url)
        self.opened.append(store)
        return store

    def expire_leases(self) -> None:
        self.server.sql(
            "UPDATE loop_runs SET expires_at = clock_timestamp() - interval '1 s' WHERE owner IS NOT NULL",
            self.url,
        )

    def alter(self, table: str, run_id: str, column: str) -> None:
        where = {
            "runs": f"run_id='{run_id}'",
            "events": f"run=(SELECT id FROM loop_runs WHERE run_id='{run_id}') AND seq=2",
        }
        altered = self.server.sql(
            f"UPDATE loop_{table} SET {column}=convert_to(replace(convert_from({column}, 'UTF8'), '0', '1'), 'UTF8')"
            f" WHERE {where[table]} RETURNING 1",
            self.url,
        )
        assert altered == [(1,)]

    def close(self) -> None:
        for store in self.opened:
            store.close()
        self.server.drop(self.url)


class TemporalUnderTest:
    """Runs of a namespace of its own. A worker comes for what cannot happen without one."""

    def __init__(self, server: Temporal) -> None:
        self.url = server.new_url()
        self.opened: list[RunReader] = []
        self.store = self.another()
        self.block = contextlib.ExitStack()
        self.portal: BlockingPortal | None = None
        self.wanted = 0

    def another(self) -> RunReader:
        runs = open_runs(self.url)
        self.opened.append(runs)
        return runs

    def complete(self, run_id: str, generations: int) -> None:
        self.wanted = generations
        self.work()
        self.soon(lambda: self.store.head(run_id).head.generation == generations)

    def acted(self, run_id: str, status: str) -> RunRow:
        self.work()
        self.soon(lambda: self.store.head(run_id).status == status)
        return self.store.head(run_id)

    def work(self) -> None:
        """Be a worker from now on, whose steps rest once enough is complete."""
        if self.portal is not None:
            return
        from rlm_host.loops.temporal.worker import working

        pause = threading.Event()

        def step(context) -> LoopObservation:
            while context.generation >= self.wanted and not context.cancelled:
                pause.wait(0.05)
            return LoopObservation(reward=0.5, artifact_id=f"a{context.generation}")

        runs = self.store
        at_work = working(
            runs.address,
            Work(step=step, apply=None, rollback=None),
            namespace=runs.namespace,
            queue=runs.queue,
        )
        self.portal = self.block.enter_context(start_blocking_portal())
        self.block.enter_context(self.portal.wrap_async_context_manager(at_work))

    def soon(self, met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.1)  # each look reads a history, which the server has to serve

    def close(self) -> None:
        self.block.close()
        for runs in self.opened:
            runs.close()


STORES: dict[str, Callable[[pytest.FixtureRequest, Path], StoreUnderTest]] = {
    "sqlite": lambda _, folder: SqliteUnderTest(folder),
    "postgres": lambda request, _: PostgresUnderTest(request.getfixturevalue("postgres")),
}
RUNS: dict[str, Callable[[pytest.FixtureRequest, Path], RunsUnderTest]] = {
    **STORES,
    "temporal": lambda request, _: TemporalUnderTest(request.getfixturevalue("temporal")),
}


@pytest.fixture(name="under_test", params=STORES)
def own_store(request: pytest.FixtureRequest, tmp_path: Path):
    """A store that `LoopKernel` works on. A module that imports it runs its tests on each."""
    opened = STORES[request.param](request, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(name="store")
def its_store(under_test):
    return under_test.store


PROVENANCE = Provenance(
    commit="c0ffee",
    dirty_digest=None,
    unknown=None,
    interpreter="CPython 3.11.7 linux x86_64",
    packages_digest="d1ce",
)


def submitted(run_id: str = "run", **config) -> Submitted:
    values = {"max_generations": 9, **config}
    return Submitted(config=LoopConfig("tenant", "workspace", **values), seed_root=run_id)


def decision(action: str = "reject", **values) -> Decision:
    return Decision(
        **{
            "row": "D12",
            "action": action,
            "reason": "no_gain",
            "stop": None,
            "also": (),
            "gain": None,
            "cost": 1.0,
            "elapsed_ms": 0.0,
            "budget_scale": 1.0,
            "policy_version": 1,
            **values,
        }
    )


def generation(n: int, action: str = "reject", reward: float = 0.5) -> GenerationDone:
    return GenerationDone(
        generation=n,
        decision=decision(action),
        applied=False,
        span_id=None,
        verdicts=(),
        observation=ObservationRecord(reward=reward, artifact_id=f"a{n}"),
    )


def intent(n: int) -> Intent:
    return Intent(
        generation=n,
        decision=decision("accept"),
        verdicts=(),
        observation=ObservationRecord(reward=0.5),
    )


def head_after(*events: Event) -> Head:
    return fold_all(events)
