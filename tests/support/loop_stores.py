"""The run stores under test, each behind the few things a test must be able to do to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import apsw

from rlm_host.loops.head import fold_all
from rlm_host.loops.stores.base import RunStore
from rlm_host.loops.stores.sqlite import SqliteRunStore
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


STORES: dict[str, Callable[[Path], StoreUnderTest]] = {"sqlite": SqliteUnderTest}


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
