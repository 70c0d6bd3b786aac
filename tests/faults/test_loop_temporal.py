"""Durable loops on a real Temporal server, whose workers and which itself are killed."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.report import read_report
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_host.loops.temporal.runs import TemporalRuns
from rlm_protocol import loop_records as records
from rlm_protocol.errors import ConfigInvalid, Conflict, RunNotFound, StoreUnavailable
from rlm_protocol.loop_records import LoopConfig, Submitted
from rlm_protocol.loop_temporal import Settings
from support.loop_child import ACTIONS, CONFIG, Effects, functions, plain
from support.loop_stores import submitted
from support.services import Temporal

PATIENCE_S = 180.0
SETTINGS = Settings(heartbeat_ms=1_000, generations=2)
"""Every run continues as a new execution twice, and a dead worker is noticed soon."""
_numbers = itertools.count()


def until(met, what: str):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < deadline, f"{what}: not in {PATIENCE_S} s"
        time.sleep(0.25)  # each look reads a history, which the server has to serve
    return found


class Cluster:
    """One queue of the server, the workers on it and what they do outside."""

    def __init__(self, server: Temporal, folder: Path, settings: Settings = SETTINGS) -> None:
        self.server, self.db = server, folder / "runs"
        self.queue = f"queue-{os.getpid()}-{next(_numbers)}"
        self.run = f"run-{self.queue}"
        self.runs = TemporalRuns(server.url, queue=self.queue, settings=settings)
        self.effects = Effects(self.db)
        self.workers: list[subprocess.Popen] = []

    def submit(self, **config) -> str:
        values = {**CONFIG, **config}
        self.runs.submit(
            self.run, Submitted(config=LoopConfig("t", "w", **values), seed_root="run")
        )
        return self.run

    def work(self, **request) -> subprocess.Popen:
        tests = Path(__file__).parents[1]
        argv = [sys.executable, "-m", "support.loop_child", self.server.url, self.queue]
        worker = subprocess.Popen(
            [*argv, str(self.db), json.dumps(request)],
            stdout=subprocess.PIPE,
            cwd=tests,
            env={**os.environ, "PYTHONPATH": str(tests)},
        )
        self.workers.append(worker)
        assert worker.stdout.readline() == b"working\n"
        return worker

    def ended(self):
        until(lambda: self.runs.head(self.run).status in records.TERMINAL, "its end")
        return read_report(self.runs, self.run)

    def history(self) -> list[tuple[str, bytes]]:
        return plain(self.runs.events(self.run))

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
        self.runs.close()


@pytest.fixture
def cluster(temporal: Temporal, tmp_path: Path):
    opened = Cluster(temporal, tmp_path)
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


def test_a_run_has_the_same_history_as_in_our_own_stores(cluster: Cluster, undisturbed) -> None:
    cluster.submit()
    cluster.work()
    report = cluster.ended()
    assert [g.action for g in report.generations] == ACTIONS
    assert cluster.history() == undisturbed
    assert sorted(cluster.effects.by_generation("apply")) == [0, 1, 4, 5]
    assert cluster.runs.get(cluster.run, "generation:3").event.decision.action == "rollback"
    assert cluster.runs.get(cluster.run, "generation:9") is None
    second = cluster.runs.events(cluster.run, after=3, limit=2)
    assert second == cluster.runs.events(cluster.run)[3:5]


@pytest.mark.parametrize("point", ["in_step", "in_apply", "in_rollback"])
def test_a_killed_workers_generation_is_done_by_another(
    cluster: Cluster, undisturbed, point
) -> None:
    cluster.submit()
    nth = 1 if point == "in_rollback" else 2
    killed = cluster.work(fault={"action": "SIGKILL", "point": point, "nth": nth})
    assert killed.wait(PATIENCE_S) == -signal.SIGKILL
    cluster.work()
    cluster.ended()
    assert cluster.history() == undisturbed
    steps = cluster.effects.by_generation("step")
    assert [len(steps[n]) for n in range(6)] == [1, 2 if point == "in_step" else 1, 1, 1, 1, 1]
    for lines in cluster.effects.by_generation("apply").values():
        tokens = [int(line.rpartition("token")[2]) for line in lines]
        assert tokens == sorted(set(tokens)), "the second attempt's token is larger"


def test_c10_what_was_applied_is_what_was_accepted_though_the_judge_flips(cluster: Cluster) -> None:
    cluster.submit()
    killed = cluster.work(
        fault={"action": "SIGKILL", "point": "in_apply", "nth": 2}, judge="flipping"
    )
    assert killed.wait(PATIENCE_S) == -signal.SIGKILL
    cluster.work(judge="flipping")
    report = cluster.ended()
    accepted = {g.generation for g in report.generations if g.action == "accept"}
    assert set(cluster.effects.by_generation("apply")) == accepted


def test_c21_a_step_that_always_kills_its_worker_fails_the_run(temporal, tmp_path) -> None:
    cluster = Cluster(temporal, tmp_path, Settings(heartbeat_ms=1_000, deaths=2))
    try:
        cluster.submit()
        for _ in range(2):
            killed = cluster.work(fault={"action": "SIGKILL", "point": "in_step", "nth": 1})
            assert killed.wait(PATIENCE_S) == -signal.SIGKILL
        cluster.work()
        assert cluster.ended().stopped_reason == "crash_loop"
    finally:
        cluster.close()


def test_a_killed_server_goes_on_where_it_was(cluster: Cluster, undisturbed) -> None:
    cluster.submit()
    stopped = cluster.work(fault={"action": "SIGSTOP", "point": "in_step", "nth": 3})
    until(lambda: len(cluster.effects.by_generation("step")) == 3, "the third step")
    cluster.server.restart_after_kill()
    os.kill(stopped.pid, signal.SIGCONT)
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


def test_a_paused_run_rests_and_is_forked_and_goes_on(cluster: Cluster, undisturbed) -> None:
    cluster.submit()
    cluster.runs.request(cluster.run, "pause", "lunch")
    cluster.work()
    row = until(lambda: (r := cluster.runs.head(cluster.run)).status == "paused" and r, "the pause")
    assert (row.reason, row.head.generation) == ("lunch", 0)
    cluster.runs.request(cluster.run, "resume", "back")
    cluster.ended()
    child = f"{cluster.run}-fork"
    config = LoopConfig("t", "w", **{**CONFIG, "max_generations": 4})
    begun = Submitted(config=config, seed_root="run", parent=cluster.run, forked_at=1)
    assert cluster.runs.fork(cluster.run, 1, child, begun)
    with pytest.raises(ConfigInvalid):
        cluster.runs.fork(cluster.run, 17, "another", begun)
    report = until(lambda: (r := read_report(cluster.runs, child)).terminal and r, "its end")
    assert [g.action for g in report.generations] == ACTIONS[:4]
    assert len(cluster.effects.by_generation("step")[0]) == 1


def test_runs_are_submitted_once_and_listed_without_any_worker(cluster: Cluster) -> None:
    runs, run = cluster.runs, cluster.run
    tenant = f"tenant-{cluster.queue}'s"
    first = submitted(run)
    first = msgspec.structs.replace(
        first, config=msgspec.structs.replace(first.config, tenant=tenant)
    )
    assert runs.submit(run, first)
    assert not runs.submit(run, first)
    with pytest.raises(Conflict):
        runs.submit(run, submitted(run))
    row = runs.head(run)
    assert (row.tenant, row.status, row.seq, row.owner) == (tenant, "running", 1, None)
    assert [e.event for e in runs.events(run)] == [first]
    for n in range(2):
        runs.submit(f"{run}-{n}", msgspec.structs.replace(first, seed_root=str(n)))
    until(lambda: len(runs.list(tenant=tenant).runs) == 3, "three runs in the listing")
    page = runs.list(tenant=tenant, limit=2)
    rest = runs.list(tenant=tenant, limit=2, cursor=page.cursor)
    assert [r.run_id for r in (*page.runs, *rest.runs)] == [f"{run}-1", f"{run}-0", run]
    assert runs.health().runs >= 3


def test_an_unknown_run_and_an_absent_cluster_are_named(cluster: Cluster) -> None:
    for ask in (
        lambda: cluster.runs.head("nowhere"),
        lambda: cluster.runs.events("nowhere"),
        lambda: cluster.runs.get("nowhere", "submitted"),
        lambda: cluster.runs.request("nowhere", "cancel", "x"),
    ):
        with pytest.raises(RunNotFound) as missing:
            ask()
        assert missing.value.data["run_id"] == "nowhere"
    with pytest.raises(StoreUnavailable), contextlib.closing(TemporalRuns("127.0.0.1:1")):
        pass
