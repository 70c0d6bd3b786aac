"""The run stores under test, each behind the few things a test must be able to do to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import apsw
import pytest

from rlm_host.loops.head import fold_all
from rlm_host.loops.stores.base import RunStore
from rlm_host.loops.stores.open import open_store
from rlm_host.loops.stores.sqlite import SqliteRunStore
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
from support.services import Postgres


class StoreUnderTest(Protocol):
    store: RunStore

    def another(self) -> RunStore:
        """Give the store as another process opens it."""

    def expire_leases(self) -> None:
        """Let the time of every lease run out."""

    def alter(self, table: str, run_id: str, column: str) -> None:
        """Change a number in a stored body of a run (of events: the second one) behind its back."""

    def close(self) -> None:
        """Give back what is open."""


class SqliteUnderTest:
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


class PostgresUnderTest:
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


STORES: dict[str, Callable[[pytest.FixtureRequest, Path], StoreUnderTest]] = {
    "sqlite": lambda _, folder: SqliteUnderTest(folder),
    "postgres": lambda request, _: PostgresUnderTest(request.getfixturevalue("postgres")),
}


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
