"""
The crash table of durable loops, with real SIGKILL and SIGSTOP, on both stores of our own.

What only a server can suffer is in test_loop_postgres.py, Temporal's part of the table in
test_loop_temporal.py, and what needs no dead process in test_loop_troubles.py.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rlm_host.loops.worker import CLAIMS_MAX
from rlm_protocol.errors import LeaseHeld, RlmError, StoreFull, StoreUnavailable
from rlm_protocol.loop_records import encode
from support.crash_table import crash
from support.loop_child import (
    ACTIONS,
    PATIENCE_S,
    Child,
    Effects,
    FailPoint,
    Nursery,
    clock_env,
    functions,
    kernel_on,
    nursery,
    plain,
)
from support.services import Postgres

SHORT = {"max_generations": 4}
"""Two accepts, a reject and a rollback."""


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory):
    with nursery(tmp_path_factory.mktemp("children")) as opened:
        yield opened


class Place:
    """Where the runs of a test are kept. A child's lease is short where only time frees it."""

    def __init__(self, children: Nursery, folder: Path, postgres: Postgres | None) -> None:
        self.name = "postgres" if postgres else "sqlite"
        self.children, self.folder, self.postgres = children, folder, postgres

    def new(self, name: str = "runs", **config) -> Path:
        db = self.folder / f"{name}.sqlite3"
        if self.postgres is not None:
            db.with_suffix(".url").write_text(self.postgres.new_url())
        return submit(db, **config)

    def start(self, db: Path, **request) -> Child:
        return self.children.start(db, lease_ms=400 if self.postgres else 30_000, **request)

    def expire(self, db: Path) -> None:
        """Let a dead child's lease run out without waiting for it; SQLite needs no such help."""
        if self.postgres:
            free = "UPDATE loop_runs SET expires_at = clock_timestamp() WHERE owner IS NOT NULL"
            self.postgres.sql(free, db.with_suffix(".url").read_text())

    def wait_until_free(self, db: Path) -> None:
        """Wait until a dead child's lease is none; SQLite sees it at once."""
        deadline = time.monotonic() + PATIENCE_S
        held = "SELECT count(*) FROM loop_runs WHERE expires_at > clock_timestamp()"
        while self.postgres and self.postgres.sql(held, db.with_suffix(".url").read_text()) != [
            (0,)
        ]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, children: Nursery, tmp_path) -> Place:
    on_server = request.param == "postgres"
    return Place(children, tmp_path, request.getfixturevalue("postgres") if on_server else None)


def submit(db: Path, **config) -> Path:
    loops = kernel_on(db, **config)
    loops.submit("run")
    loops.store.close()
    return db


def finish(db: Path, **how):
    """Go on with the run in this process until it is over, however long its lease is held."""
    loops = kernel_on(db)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while True:
            with contextlib.suppress(LeaseHeld):
                report = loops.run("run", "second", **functions(db, **how))
                assert report.terminal
                return report
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        loops.store.close()


def history(db: Path) -> list[bytes]:
    """Every recorded event and the head, without what tells workers apart."""
    loops = kernel_on(db)
    try:
        loops.report("run")  # the head is the fold of the events
        events = plain(loops.store.events("run"))
        row = loops.store.head("run")
        return [*events, (row.status, row.reason, encode(row.head))]
    finally:
        loops.store.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    db = submit(tmp_path_factory.mktemp("calm") / "runs.sqlite3")
    report = finish(db)
    assert [g.action for g in report.generations] == ACTIONS
    return history(db)


def points_of_a_run(db: Path) -> list[str]:
    """Give the points that an undisturbed run passes."""
    fault = FailPoint()
    loops = kernel_on(db, fault)
    loops.run("run", "w", **functions(db, fault))
    loops.store.close()
    return fault.where


@crash("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9")
def test_c1_to_c9_a_kill_at_every_point_changes_nothing_but_the_number_of_tries(
    place: Place, capsys
) -> None:
    calm = place.new("calm", **SHORT)
    points = points_of_a_run(calm)
    undisturbed = history(calm)
    for nth in range(1, len(points) + 1):
        db = place.new(str(nth), **SHORT)
        fault = {"action": "SIGKILL", "nth": nth}
        assert place.start(db, fault=fault).ended() == signal.SIGKILL
        where = f"kill {nth} at {points[nth - 1]}"
        place.expire(db)
        finish(db)
        assert history(db) == undisturbed, where
        effects = Effects(db)
        steps, applies = effects.by_generation("step"), effects.by_generation("apply")
        for done in (steps, applies, effects.by_generation("rollback")):
            assert all(len(lines) <= 2 for lines in done.values()), where
            assert sum(len(lines) == 2 for lines in done.values()) <= 1, where
        assert all(len({line.split()[2] for line in lines}) == 1 for lines in steps.values()), where
        assert sorted(applies) == [0, 1], where
    assert {"loop.before_step", "in_step", "loop.after_intent", "in_apply", "loop.after_apply",
            "store.committed", "loop.after_generation"} <= set(points)  # fmt: skip
    with capsys.disabled():
        print(f"\n{place.name}: {len(points)} points of a run, killed at each, survived")


@crash("C4")
@pytest.mark.parametrize("record", ["intent", "single"])
def test_c4_after_the_intent_neither_step_nor_gates_are_repeated(place: Place, record) -> None:
    db = place.new(record=record)
    fault = {"action": "SIGKILL", "point": "loop.after_apply", "nth": 2}
    assert place.start(db, fault=fault).ended() == signal.SIGKILL
    finish(db)
    steps = Effects(db).by_generation("step")
    assert len(steps[1]) == (1 if record == "intent" else 2), "the strict order repeats the step"
    assert len(Effects(db).by_generation("apply")[1]) == 2


@crash("C10")
@pytest.mark.parametrize("record", ["intent", "single"])
def test_c10_what_was_applied_is_what_was_accepted_though_the_judge_flips(
    place: Place, record
) -> None:
    db = place.new(record=record)
    fault = {"action": "SIGKILL", "point": "loop.after_apply", "nth": 2}
    assert place.start(db, fault=fault, judge="flipping").ended() == signal.SIGKILL
    report = finish(db, judge="flipping")
    applied = set(Effects(db).by_generation("apply"))
    accepted = {g.generation for g in report.generations if g.action == "accept"}
    if record == "intent":
        assert applied == accepted
    else:
        assert applied - accepted == {1}, "the hole of the strict order, which the intent closes"


@crash("C11", "C12")
@pytest.mark.parametrize("point", ["in_step", "in_apply", "loop.after_intent", "loop.after_gates"])
def test_c11_c12_a_worker_that_slept_past_its_lease_writes_nothing_when_it_wakes(
    children: Nursery, undisturbed, place: Place, point
) -> None:
    db = place.new()
    fault = {"action": "SIGSTOP", "point": point, "nth": 2}
    sleeper = children.start(db, fault=fault, lease_ms=200)
    sleeper.wait_stopped()
    finish(db)
    before = history(db)
    os.kill(sleeper.pid, signal.SIGCONT)
    assert sleeper.ended() == "leaseLost"
    assert history(db) == before == undisturbed
    tokens = [line.split()[-1] for line in Effects(db).by_generation("apply")[1]]
    assert tokens == (["token1", "token2"] if point == "in_apply" else ["token2"])


@crash("C14")
def test_c14_of_eight_workers_one_runs_each_generation_once(
    children: Nursery, undisturbed, place: Place
) -> None:
    db = place.new()
    workers = [children.start(db, worker=f"w{n}", crowd=7) for n in range(8)]
    assert sorted(w.ended() for w in workers) == ["completed", *["leaseHeld"] * 7]
    assert history(db) == undisturbed
    assert all(len(lines) == 1 for lines in Effects(db).by_generation("step").values())


def test_a_killed_workers_run_is_free_at_once(children: Nursery, tmp_path) -> None:
    """Its lease of 30 s has not run out: its lock says that it is dead."""
    db = submit(tmp_path / "runs.sqlite3")
    fault = {"action": "SIGKILL", "point": "in_step", "nth": 1}
    assert children.start(db, fault=fault).ended() == signal.SIGKILL
    loops = kernel_on(db)
    lease = loops.store.claim("run", "next")
    assert lease.token == 2
    loops.store.release(lease)
    loops.store.close()


def test_a_cancel_ends_a_run_whose_worker_was_killed(place: Place) -> None:
    db = place.new()
    fault = {"action": "SIGKILL", "point": "in_step", "nth": 2}
    assert place.start(db, fault=fault).ended() == signal.SIGKILL
    place.wait_until_free(db)
    loops = kernel_on(db)
    row = loops.cancel("run", "nobody is there")
    assert (row.status, row.reason) == ("cancelled", "nobody is there")
    loops.store.close()


def test_a_cancel_after_a_kill_inside_apply_first_ends_what_was_decided(
    place: Place,
) -> None:
    db = place.new()
    fault = {"action": "SIGKILL", "point": "in_apply", "nth": 2}
    assert place.start(db, fault=fault).ended() == signal.SIGKILL
    loops = kernel_on(db)
    assert loops.cancel("run", "enough").status == "running"
    loops.store.close()
    report = finish(db)
    assert (report.status, report.stopped_reason) == ("cancelled", "enough")
    accepted = {g.generation for g in report.generations if g.action == "accept"}
    assert accepted == set(Effects(db).by_generation("apply")) == {0, 1}


@crash("C21")
def test_c21_a_step_that_always_kills_its_process_fails_the_run(
    place: Place,
) -> None:
    db = place.new()
    fault = {"action": "SIGKILL", "point": "in_step", "nth": 1}
    for _ in range(CLAIMS_MAX):
        assert place.start(db, fault=fault).ended() == signal.SIGKILL
        place.wait_until_free(db)
    assert place.start(db, fault=fault).ended() == "failed"
    loops = kernel_on(db)
    assert loops.report("run").stopped_reason == "crash_loop"
    loops.store.close()
    attempts = [line.split()[-1] for line in Effects(db).lines("step")]
    assert attempts == [f"attempt{n + 1}" for n in range(CLAIMS_MAX)]


@crash("C15")
@pytest.mark.parametrize("shift", ["+1d", "-30y"])
def test_c15_a_wall_clock_that_is_off_changes_nothing(
    place: Place, undisturbed, tmp_path: Path, shift
) -> None:
    """The worker's clock, that is; it is killed, and one with a right clock goes on."""
    db = place.new()
    with nursery(tmp_path, env=clock_env(shift)) as astray:
        fault = {"action": "SIGKILL", "point": "in_apply", "nth": 2}
        child = astray.start(db, lease_ms=30_000, fault=fault)
        assert child.ended() == signal.SIGKILL
        if place.postgres:
            assert astray.start(db).ended() == "leaseHeld", "it would have been free by its clock"
            place.expire(db)
    finish(db)
    assert history(db) == undisturbed


# --- no room --------------------------------------------------------------------------------------


@crash("C17", on=("sqlite",))
def test_c17_a_full_file_stops_the_run_and_it_goes_on_when_there_is_room(
    children: Nursery, undisturbed, tmp_path
) -> None:
    """At every size from which the run cannot go on: nothing is lost and nothing is half written."""
    stopped = set()
    for kib in itertools.count(36, 8):
        db = submit(tmp_path / f"{kib}.sqlite3")
        ended = children.start(db, file_bytes=kib * 1024).ended()
        if ended == "completed":
            break
        assert ended == "storeFull"
        stopped.add(len(Effects(db).by_generation("step")))
        finish(db)
        assert history(db) == undisturbed
    assert len(stopped) >= 3, "it stopped in different generations"


@pytest.fixture
def small_disk(tmp_path: Path):
    """A disk of 300 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    argv = [mount or "mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)]
    if not mount or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield place
    subprocess.run([umount, "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@crash("C17", on=("sqlite",))
def test_c17_on_a_full_disk_nothing_is_lost(undisturbed, small_disk) -> None:
    db = submit(small_disk / "runs.sqlite3")
    effects = small_disk.parent / "effects"
    loops = kernel_on(db)
    fill(small_disk)
    with pytest.raises(StoreFull):
        loops.run("run", "w", **functions(effects))
    loops.store.close()
    fill(small_disk)
    with pytest.raises(StoreFull):
        kernel_on(db)
    (small_disk / "filler").unlink()
    finish(db)
    assert history(db) == undisturbed


@crash("C27", on=("sqlite",))
def test_c27_a_store_on_a_read_only_disk_says_so(small_disk) -> None:
    db = submit(small_disk / "runs.sqlite3")
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    assert subprocess.run(remount, check=False).returncode == 0
    with pytest.raises(StoreUnavailable) as refused:
        kernel_on(db).run("run", "w", **functions(small_disk.parent / "effects"))
    assert str(db) in str(refused.value)


# --- many acknowledged events ---------------------------------------------------------------------


@crash("C25", on=("sqlite",))
def test_c25_no_acknowledged_event_is_lost_by_kills(children: Nursery, tmp_path) -> None:
    """Kill in the middle of whatever it does, after each time it has told of another commit."""
    db = submit(tmp_path / "runs.sqlite3")
    loops = kernel_on(db)
    acknowledged = 0
    for nth in range(1, 7):
        fault = {"action": "SIGKILL", "point": "loop.after_generation", "nth": 1}
        if children.start(db, fault=fault).ended() != signal.SIGKILL:
            break
        acknowledged = nth
        assert loops.store.head("run").head.generation == acknowledged
    assert acknowledged == len(ACTIONS)
    with contextlib.suppress(RlmError):
        assert loops.report("run").terminal
    loops.store.close()
