"""P10: one durable generation on SQLite, against its own statements on a bare connection."""

import asyncio
import tempfile
from pathlib import Path

import apsw
import runtime_bench as b

from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.stores.sqlite import SqliteRunStore

GENERATIONS = 200
MANY = 100


def reject(context) -> LoopObservation:
    return LoopObservation(reward=0.0, cost=1.0, elapsed_ms=1.0)


def accept(context) -> LoopObservation:
    return LoopObservation(reward=float(context.generation), cost=1.0, elapsed_ms=1.0)


async def areject(context) -> LoopObservation:
    return reject(context)


def kernel(path: Path, fault=lambda point: None) -> LoopKernel:
    config = LoopConfig("t", "w", max_generations=GENERATIONS, min_gain=0.5)
    return LoopKernel(SqliteRunStore(path, fault=fault), config)


def bare(path: Path) -> float:
    """Make the statements of so many rejected generations, and nothing else; give seconds."""
    loops = kernel(path)
    loops.submit("model")
    loops.run("model", "w", reject)
    body = loops.store.get("model", "generation:9").event
    loops.store.close()
    from rlm_protocol.loop_records import Head, encode

    event, head = encode(body), encode(Head())
    db = apsw.Connection(str(path.with_suffix(".bare")))
    db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE runs(id INTEGER PRIMARY KEY, run_id TEXT UNIQUE, head BLOB, seq INT)")
    db.execute(
        "CREATE TABLE events(run INT, seq INT, key TEXT, at INT, body BLOB, PRIMARY KEY(run, seq))"
        " WITHOUT ROWID; CREATE UNIQUE INDEX by_key ON events(run, key)"
    )
    db.execute("INSERT INTO runs VALUES(1, 'run', ?, 0)", (head,))
    began = b.now()
    for n in range(GENERATIONS):
        db.execute("BEGIN IMMEDIATE")
        run = db.execute("SELECT * FROM runs WHERE run_id='run'").fetchone()
        key = f"generation:{n}"
        assert db.execute("SELECT body FROM events WHERE run=? AND key=?", (1, key)).get is None
        db.execute("INSERT INTO events VALUES(1, ?, ?, ?, ?)", (run[3] + 1, key, n, event))
        db.execute("UPDATE runs SET seq=?, head=? WHERE id=1", (run[3] + 1, head))
        db.execute("COMMIT")
    took = b.now() - began
    db.close()
    return took


def synchronous(path: Path) -> float:
    loops = kernel(path)
    loops.submit("run")
    began = b.now()
    loops.run("run", "w", reject)
    took = b.now() - began
    loops.store.close()
    return took


def asynchronous(path: Path, runs: int) -> float:
    """Give the seconds that so many runs take at once."""
    loops = kernel(path)
    names = [loops.submit() for _ in range(runs)]

    async def all_of_them() -> float:
        began = b.now()
        await asyncio.gather(*(loops.carry_on(n, "w", work) for n in names))
        return b.now() - began

    from rlm_host.loops.worker import Work

    work = Work(step=areject, apply=None, rollback=None)
    took = asyncio.run(all_of_them())
    loops.store.close()
    return took


def commits(path: Path, step) -> float:
    """Give the commits, each with one sync, of a generation."""
    seen: list[str] = []
    loops = kernel(path, seen.append)
    loops.submit("run")
    seen.clear()
    loops.run("run", "w", step, apply=lambda context, observation: None)
    loops.store.close()
    return (seen.count("store.committed") - 1) / GENERATIONS  # and one for the claim


def measure(report: b.Report, rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        places = (Path(folder) / f"{n}.sqlite3" for n in range(10_000))
        report.value("syncs of a rejected generation", [commits(next(places), reject)], 1.02, "")
        report.value("syncs of an applied generation", [commits(next(places), accept)], 2.02, "")
        ours, theirs, floor, many = [], [], [], []
        for _ in range(rounds):
            floor.append(bare(next(places)))
            ours.append(synchronous(next(places)))
            theirs.append(asynchronous(next(places), 1))
            many.append(asynchronous(next(places), MANY))
        report.ratio("a generation", ours, floor, 1.5)
        report.ratio("a generation, asyncio", theirs, floor, 2.5)
        rates = [MANY / seconds for seconds in many]
        report.ratio("100 runs' rate to one's", rates, [1 / s for s in theirs], 10, least=True)


if __name__ == "__main__":
    b.main("P10", measure, rounds=9, short=3)
