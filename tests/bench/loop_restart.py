"""P11: from opening a store to the first new step, however many generations are recorded."""

import sys
import tempfile
from pathlib import Path

import runtime_bench as b

from rlm_host.loops.controller import decide
from rlm_host.loops.head import fold
from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_protocol.loop_records import GenerationDone

SIZES = (10, 1_000) if "--short" in sys.argv else (10, 1_000, 100_000)
BATCH = 5_000


class Reached(BaseException):
    """The first new step was called."""


def step(context) -> LoopObservation:
    raise Reached


def record(path: Path, generations: int) -> None:
    store, config = SqliteRunStore(path), LoopConfig("t", "w", max_generations=10**7)
    LoopKernel(store, config).submit("run")
    lease = store.claim("run", "w")
    assert lease is not None
    head, seen = lease.row.head, LoopObservation(reward=0.5, cost=1.0, elapsed_ms=1.0)
    events = []
    for n in range(generations):
        events.append(
            GenerationDone(
                generation=n,
                decision=decide(config, head, seen),
                applied=False,
                span_id=None,
                verdicts=(),
                observation=seen.to_record(),
            )
        )
        head = fold(head, events[-1])
        if len(events) == BATCH or n == generations - 1:
            store.append(lease, events, head)
            events.clear()
    store.release(lease)
    store.close()


def restart(path: Path) -> float:
    """Give the seconds from nothing open to the first new step."""
    began = b.now()
    store = SqliteRunStore(path)
    try:
        LoopKernel(store, None).run("run", "w", step)
    except Reached:
        return b.now() - began
    finally:
        store.close()
    raise AssertionError("no step was called")


def measure(report: b.Report, rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        places = {size: Path(folder) / f"{size}.sqlite3" for size in SIZES}
        for size, path in places.items():
            record(path, size)
            restart(path)
        took: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(rounds):
            for size, path in places.items():
                took[size].append(b.median([restart(path) for _ in range(9)]))
        for size in SIZES[1:]:
            report.ratio(f"{size} generations to {SIZES[0]}", took[size], took[SIZES[0]], 1.5)


if __name__ == "__main__":
    b.main("P11", measure, rounds=15, short=5)
