"""Durable loops on a real Temporal server, whose workers and which itself are killed."""

import contextlib
import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.report import read_report
from rlm_host.loops.stores.open import open_runs, open_store
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_host.loops.temporal.runs import TemporalRuns
from rlm_protocol import loop_records as records
from rlm_protocol.errors import StoreUnavailable, Unsupported
from rlm_protocol.loop_records import LoopConfig, StepFailed, Submitted
from rlm_protocol.loop_temporal import Settings
from support.crash_table import crash
from support.loop_child import (
    ACTIONS,
    CONFIG,
    Child,
    Effects,
    Nursery,
    clock_env,
    functions,
    nursery,
    plain,
)
from support.services import Temporal

TEMPORAL = ("temporal",)

PATIENCE_S = 180.0
SETTINGS = Settings(heartbeat_ms=1_000, task_ms=3_000, generations=2)
"""Every run continues as a new execution twice, and a dead worker is noticed soon."""
WORKER = "rlm_host.loops.temporal.worker"
POINTS = (
    # point, and which time that it is passed by its worker
    ("before_step", 1),
    ("in_step", 1),
    ("after_step", 1),
    ("before_apply", 1),
    ("in_apply", 1),
    ("after_apply", 2),
    ("in_record", 1),
    ("in_rollback", 1),
)
"""At each of them one worker of a run is killed. A point is named by `functions`."""
_numbers = itertools.count()


def until(met, what: str):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < deadline, f"{what}: not in {PATIENCE_S} s"
        time.sleep(0.25)  # each look reads a history, which the server has to serve
    return found


class Cluster:
    """One queue of the server, the workers on it and what they do outside."""

    def __init__(
        self, server: Temporal, children: Nursery, folder: Path, settings: Settings = SETTINGS
    ) -> None:
        self.server, self.children, self.db = server, children, folder / "runs"
        self.queue = f"queue-{os.getpid()}-{next(_numbers)}"
        self.run = f"run-{self.queue}"
        self.runs = TemporalRuns(server.url, queue=self.queue, settings=settings)
        self.effects = Effects(self.db)
        self.workers: list[Child] = []

    def submit(self, **config) -> str:
        values = {**CONFIG, **config}
        self.runs.submit(
            self.run, Submitted(config=LoopConfig("t", "w", **values), seed_root="run")
        )
        return self.run

    def work(self, children: Nursery | None = None, **request) -> Child:
        """Start a worker, and wait until it works."""
        ready = self.db.with_name(f"ready-{len(self.workers)}")
        cluster = [self.server.url, self.queue]
        children = children or self.children
        worker = children.start(self.db, cluster=cluster, ready=str(ready), **request)
        self.workers.append(worker)
        until(ready.exists, "a worker")
        return worker

    def ended(self):
        until(lambda: self.runs.head(self.run).status in records.TERMINAL, "its end")
        return read_report(self.runs, self.run)

    def history(self) -> list[tuple[str, bytes]]:
        return plain(self.runs.events(self.run))

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self.runs.close()


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory):
    with nursery(tmp_path_factory.mktemp("children"), WORKER) as opened:
        yield opened


@pytest.fixture
def cluster(temporal: Temporal, children: Nursery, tmp_path: Path):
    opened = Cluster(temporal, children, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """What the kernel records of the same run in SQLite."""
    folder = tmp_path_factory.mktemp("calm")
    store = SqliteRunStore(folder / "runs.sqlite3")
    loops = LoopKernel(store, LoopConfig("t", "w", **CONFIG))
    loops.submit("run")
    loops.run("run", "w", **functions(folder / "runs"))
    events = plain(store.events("run"))
    store.close()
    return events


@crash("C14", "C15", on=TEMPORAL)
def test_c14_c15_workers_share_a_run_whatever_their_clocks_say(
    cluster: Cluster, undisturbed, tmp_path: Path
) -> None:
    cluster.submit()
    cluster.work()
    with nursery(tmp_path, WORKER, env=clock_env("+1d")) as astray:
        cluster.work(astray)
        cluster.work()
        report = cluster.ended()
        for worker in cluster.workers:
            worker.end()
    assert [g.action for g in report.generations] == ACTIONS
    assert cluster.history() == undisturbed
    assert [len(cluster.effects.by_generation("step")[n]) for n in range(6)] == [1] * 6
    assert sorted(cluster.effects.by_generation("apply")) == [0, 1, 4, 5]
    assert cluster.runs.get(cluster.run, "generation:3").event.decision.action == "rollback"
    assert cluster.runs.get(cluster.run, "generation:9") is None
    second = cluster.runs.events(cluster.run, after=3, limit=2)
    assert second == cluster.runs.events(cluster.run)[3:5]


@crash("C1", "C2", "C3", "C4", "C5", "C6", "C8", on=TEMPORAL)
def test_c1_to_c8_workers_killed_at_every_point_change_nothing_but_the_number_of_tries(
    temporal, children, undisturbed, tmp_path
) -> None:
    """Two runs at once, each with half of the points: both do little but wait for timeouts."""

    def run(half: int) -> None:
        folder = tmp_path / str(half)
        folder.mkdir()
        with contextlib.closing(Cluster(temporal, children, folder)) as cluster:
            _killed_at(cluster, POINTS[half::2], undisturbed)

    with ThreadPoolExecutor(2) as both:
        list(both.map(run, range(2)))


def _killed_at(cluster: Cluster, points, undisturbed) -> None:
    cluster.submit()
    for point, nth in points:
        killed = cluster.work(fault={"action": "SIGKILL", "point": point, "nth": nth})
        assert killed.ended() == signal.SIGKILL, point
    cluster.work()
    cluster.ended()
    assert cluster.history() == undisturbed
    for word in ("step", "apply", "rollback"):
        for lines in cluster.effects.by_generation(word).values():
            tokens = [int(line.rpartition("token")[2]) for line in lines if "token" in line]
            assert tokens == sorted(set(tokens)), "each attempt's token is larger"
    seeds = cluster.effects.by_generation("step").values()
    assert all(len({line.split()[2] for line in lines}) == 1 for lines in seeds)


@crash("C9", on=TEMPORAL)
def test_c9_a_run_that_is_over_needs_no_worker_after_its_last_one_was_killed(
    cluster: Cluster, undisturbed
) -> None:
    cluster.submit(max_generations=1)
    last = cluster.work()
    cluster.ended()
    last.end()
    assert cluster.runs.head(cluster.run).reason == "max_generations"
    assert read_report(cluster.runs, cluster.run).terminal


@crash("C12", on=TEMPORAL)
def test_c12_a_worker_that_slept_past_its_heartbeat_changes_nothing_when_it_wakes(
    temporal, children, undisturbed, tmp_path
) -> None:
    """Attempts that the server hands to it while it sleeps are lost, and made again."""
    patient = Settings(heartbeat_ms=1_000, task_ms=3_000, deaths=30)
    cluster = Cluster(temporal, children, tmp_path, patient)
    try:
        cluster.submit()
        sleeper = cluster.work(fault={"action": "SIGSTOP", "point": "in_apply", "nth": 2})
        until(lambda: 1 in cluster.effects.by_generation("apply"), "the second apply")
        cluster.work()
        cluster.ended()
        before = cluster.history()
        os.kill(sleeper.pid, signal.SIGCONT)
        first, second = (
            int(line.rpartition("token")[2]) for line in cluster.effects.by_generation("apply")[1]
        )
        assert first < second
        sleeper.end()
        assert cluster.history() == before == undisturbed
    finally:
        cluster.close()


@crash("C22", "C23", on=TEMPORAL)
def test_c22_c23_what_gives_no_observation_is_recorded_and_nan_is_rejected(
    cluster: Cluster,
) -> None:
    cluster.submit(max_generations=1)
    cluster.work(judge="broken")
    report = cluster.ended()
    assert [(g.action, g.reason) for g in report.generations] == [("reject", "invalid_observation")]
    failed = [e.event for e in cluster.runs.events(cluster.run) if isinstance(e.event, StepFailed)]
    assert [(e.attempt, e.error) for e in failed] == [(1, "OSError"), (2, "TypeError")]


@crash("C10", on=TEMPORAL)
def test_c10_what_was_applied_is_what_was_accepted_though_the_judge_flips(cluster: Cluster) -> None:
    cluster.submit()
    killed = cluster.work(
        fault={"action": "SIGKILL", "point": "in_apply", "nth": 2}, judge="flipping"
    )
    assert killed.ended() == signal.SIGKILL
    cluster.work(judge="flipping")
    report = cluster.ended()
    accepted = {g.generation for g in report.generations if g.action == "accept"}
    assert set(cluster.effects.by_generation("apply")) == accepted


@crash("C21", on=TEMPORAL)
def test_c21_a_step_that_always_kills_its_worker_fails_the_run(
    temporal, children, tmp_path
) -> None:
    cluster = Cluster(temporal, children, tmp_path, Settings(heartbeat_ms=1_000, deaths=2))
    try:
        cluster.submit()
        for _ in range(2):
            killed = cluster.work(fault={"action": "SIGKILL", "point": "in_step", "nth": 1})
            assert killed.ended() == signal.SIGKILL
        cluster.work()
        assert cluster.ended().stopped_reason == "crash_loop"
    finally:
        cluster.close()


@crash("C25", on=TEMPORAL)
def test_c25_a_killed_server_goes_on_where_it_was(cluster: Cluster, undisturbed) -> None:
    """The worker says that it is away in the log; `nursery` sees that stdout stays empty."""
    cluster.submit()
    stopped = cluster.work(fault={"action": "SIGSTOP", "point": "in_step", "nth": 3})
    until(lambda: len(cluster.effects.by_generation("step")) == 3, "the third step")
    cluster.server.end(signal.SIGKILL)
    os.kill(stopped.pid, signal.SIGCONT)
    until(lambda: "retried" in cluster.children.stderr, "a warning")
    cluster.server.start()
    cluster.ended()
    assert cluster.history() == undisturbed


def test_a_cancel_ends_a_step_that_is_at_work(cluster: Cluster) -> None:
    cluster.submit()
    cluster.work(fault={"action": "SIGSTOP", "point": "in_step", "nth": 2})
    until(lambda: 1 in cluster.effects.by_generation("step"), "the second step")
    assert cluster.runs.request(cluster.run, "cancel", "enough").control.cancel == "enough"
    cluster.runs.request(cluster.run, "cancel", "too late")
    cluster.work()
    report = cluster.ended()
    assert (report.status, report.stopped_reason) == ("cancelled", "enough")
    assert [g.generation for g in report.generations] == [0]
    assert cluster.runs.request(cluster.run, "pause", "late").status == "cancelled"
    listed = until(
        lambda: [r.run_id for r in cluster.runs.list(tenant="t", status="cancelled").runs],
        "the listing",
    )
    assert cluster.run in listed


def test_a_fork_goes_on_with_its_parents_history(cluster: Cluster) -> None:
    cluster.submit()
    cluster.work()
    cluster.ended()
    child = f"{cluster.run}-fork"
    config = LoopConfig("t", "w", **{**CONFIG, "max_generations": 4})
    begun = Submitted(config=config, seed_root="run", parent=cluster.run, forked_at=1)
    assert cluster.runs.fork(cluster.run, 1, child, begun)
    report = until(lambda: (r := read_report(cluster.runs, child)).terminal and r, "its end")
    assert [g.action for g in report.generations] == ACTIONS[:4]
    assert len(cluster.effects.by_generation("step")[0]) == 1


def test_an_absent_cluster_is_named() -> None:
    with pytest.raises(StoreUnavailable) as refused:
        open_runs("temporal://127.0.0.1:1")
    assert "127.0.0.1:1" in str(refused.value)


def test_an_engine_that_keeps_its_runs_itself_is_no_store(cluster: Cluster) -> None:
    with pytest.raises(Unsupported):
        open_store(f"temporal://{cluster.server.url}")
