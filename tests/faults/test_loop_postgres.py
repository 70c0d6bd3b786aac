"""The faults of durable loops that only a PostgreSQL server can have."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from functools import partial

import msgspec
import psycopg
import pytest

from rlm_host.loops.head import fold_all
from rlm_host.loops.inputs import LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.leases import LeaseKeeper
from rlm_host.loops.stores.open import open_store
from rlm_host.loops.stores.postgres import PostgresRunStore
from rlm_host.loops.stores.postgres_hints import EVERY_S
from rlm_protocol.errors import ConfigInvalid, SchemaTooNew, StoreFull, StoreUnavailable
from rlm_protocol.loop_records import Head, LoopConfig, ObservationRecord
from support.crash_table import crash
from support.loop_child import ACTIONS, functions, kernel_on, plain
from support.loop_stores import generation, head_after, submitted
from support.services import Postgres


@pytest.fixture
def url(postgres: Postgres):
    made = postgres.new_url()
    yield made
    postgres.drop(made)


@pytest.fixture
def store(url):
    opened = open_store(url)
    yield opened
    opened.close()


def run_on(url: str, folder, fault=lambda point: None) -> list:
    """Run a loop with a fault at each point it passes and give its history."""
    db = folder / "runs.sqlite3"
    db.with_suffix(".url").write_text(url)
    loops = kernel_on(db, fault)
    try:
        loops.submit("run")
        report = loops.run("run", "w", **functions(db, fault))
        assert [g.action for g in report.generations] == ACTIONS
        return plain(loops.store.events("run"))
    finally:
        loops.store.close()


@pytest.fixture
def undisturbed(postgres, tmp_path):
    folder = tmp_path / "calm"
    folder.mkdir()
    return run_on(postgres.new_url(), folder)


class Breaks:
    """Breaks the server at every third point of one kind, as often as wanted."""

    def __init__(self, point: str, how, times: int) -> None:
        self.point, self.how, self.left, self.passed = point, how, times, 0

    def __call__(self, point: str) -> None:
        self.passed += point == self.point
        if point == self.point and self.passed % 3 == 0 and self.left:
            self.left -= 1
            self.how()


def test_a_killed_session_is_opened_again_and_nothing_is_lost(
    postgres: Postgres, url, undisturbed, tmp_path
) -> None:
    def end_sessions() -> None:
        for pid in postgres.backends(url):
            postgres.sql(f"SELECT pg_terminate_backend({pid}, 10000)")

    fault = Breaks("store.before_write", end_sessions, times=4)
    assert run_on(url, tmp_path, fault) == undisturbed
    assert fault.left == 0


@crash("C26", on=("postgres",))
def test_c26_a_commit_whose_answer_is_lost_is_found_and_not_repeated(
    url, undisturbed, tmp_path
) -> None:
    def lose_the_answer() -> None:
        raise psycopg.OperationalError("the connection was lost after the commit")

    fault = Breaks("store.committed", lose_the_answer, times=5)
    assert run_on(url, tmp_path, fault) == undisturbed
    assert fault.left == 0


@crash("C25", on=("postgres",))
def test_a_killed_server_process_and_an_immediate_restart_lose_nothing(
    postgres: Postgres, url, undisturbed, tmp_path
) -> None:
    faults = [
        lambda: os.kill(postgres.backends(url)[0], signal.SIGKILL),
        postgres.restart_immediately,
    ]
    fault = Breaks("in_step", lambda: faults.pop()(), times=2)
    assert run_on(url, tmp_path, fault) == undisturbed
    assert not faults


def test_a_repeated_claim_has_the_token_of_the_first(url) -> None:
    """Its answer was lost: that is no reason to be refused by oneself, or to count a death."""
    lost = []

    def lose_the_first_answer(point: str) -> None:
        if point == "store.committed" and not lost:
            lost.append(point)
            raise psycopg.OperationalError("gone")

    store = PostgresRunStore(url)
    store.submit("run", submitted())
    store.close()
    store = PostgresRunStore(url, fault=lose_the_first_answer)
    lease = store.claim("run", "w")
    assert (lost, lease.token, lease.row.claims) == (["store.committed"], 1, 1)
    store.close()


def test_a_server_that_is_gone_is_named_without_the_password(postgres: Postgres) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        open_store(f"postgresql://rlm:hush@/postgres?host={postgres.folder}/nowhere")
    assert "nowhere" in str(refused.value)
    assert "hush" not in str(refused.value)


@crash("C20", on=("postgres",))
def test_a_newer_schema_is_refused_by_name(postgres: Postgres, url, store) -> None:
    postgres.sql("UPDATE loop_schema SET version = 99", url)
    with pytest.raises(SchemaTooNew) as refused:
        open_store(url)
    assert (refused.value.data["found"], refused.value.data["known"]) == (99, 1)


def test_a_url_of_no_store_is_refused() -> None:
    for url in ("mysql://x", "sqlite:", "postgresql://a b"):
        with pytest.raises(ConfigInvalid):
            open_store(url)


def test_text_that_the_server_cannot_keep_is_refused(store) -> None:
    store.submit("run", submitted())
    with pytest.raises(ConfigInvalid):
        store.request("run", "cancel", "a\0b")
    assert store.head("run").status == "running"


def test_a_commit_is_synced_though_the_database_says_otherwise(postgres: Postgres, url) -> None:
    postgres.sql("ALTER ROLE rlm SET synchronous_commit = off")
    try:
        store = open_store(url)
        assert store.health().problems == ()
        store.close()
    finally:
        postgres.sql("ALTER ROLE rlm RESET synchronous_commit")


def test_one_append_is_one_statement_and_one_sync(postgres: Postgres, url, store) -> None:
    store.submit("run", submitted())
    lease = store.claim("run", "w")
    before = commits(postgres)
    for n in range(50):
        events = [generation(k) for k in range(n + 1)]
        store.append(lease, events[-1:], head_after(*events))
    made = commits(postgres) - before
    assert 50 <= made <= 75, "the server's own transactions are among them"


@crash("C27", on=("postgres",))
def test_c27_a_server_that_takes_no_writes_says_so(url, store) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        open_store(f"{url}%20-cdefault_transaction_read_only%3Don")
    assert "read-only transaction" in refused.value.data["detail"]


@pytest.fixture
def small_disk(postgres: Postgres, url):
    """A schema whose new tables lie on a disk of 2 MiB."""
    disk = postgres.folder / "disk"
    disk.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    argv = [mount or "mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(disk)]
    if not mount or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    shutil.chown(disk, postgres.user)
    postgres.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
    yield f"{url}%20-cdefault_tablespace%3Dsmall"
    for table in ("loop_runs", "loop_events", "loop_schema"):
        postgres.sql(f"DROP TABLE IF EXISTS {table}", url)
    postgres.sql("DROP TABLESPACE small")
    subprocess.run([umount, "-l", str(disk)], check=True)


@crash("C17", on=("postgres",))
def test_c17_a_full_disk_of_the_server_loses_nothing_that_was_acknowledged(
    postgres: Postgres, url, small_disk
) -> None:
    store = open_store(small_disk)
    store.submit("run", submitted(max_generations=100_000))
    lease, head, done = store.claim("run", "w"), Head(), 0

    def append_one(size: int) -> Head:
        told = ObservationRecord(reward=0.5, evidence=os.urandom(size).hex())
        bulky = msgspec.structs.replace(generation(done), observation=told)
        after = fold_all([bulky], head)
        store.append(lease, [bulky], after)
        return after

    with contextlib.suppress(StoreFull):
        while done < 10_000:
            head, done = append_one(9_000), done + 1
    with pytest.raises(StoreFull):
        append_one(9_000)
    assert 3 < done < 10_000
    assert store.head("run").head == head
    assert [row.key for row in store.events("run", limit=done + 9)][1:] == [
        f"generation:{n}" for n in range(done)
    ]
    store.renew(lease)
    postgres.sql("ALTER TABLE loop_events SET TABLESPACE pg_default", url)
    head, done = append_one(9_000), done + 1
    assert store.head("run").head.generation == done
    store.close()


def commits(postgres: Postgres) -> int:
    return postgres.sql("SELECT txid_snapshot_xmax(txid_current_snapshot())")[0][0]


def test_claimants_of_whatever_is_free_get_different_runs(url, store) -> None:
    for n in range(6):
        store.submit(f"run-{n}", submitted(f"run-{n}"))
    store.claim("run-0", "somebody")
    other = open_store(url)
    calls = [lambda s=s: s.claim_next("w") for s in (store, other) * 4]
    leases = [*store.together(calls)]
    other.close()
    taken = sorted(lease.run_id for lease in leases if lease is not None)
    assert taken == [f"run-{n}" for n in range(1, 6)]
    assert store.claim_next("w", tenant="nobody") is None


# --- hints ----------------------------------------------------------------------------------------


class Heard:
    """Counts hints."""

    def __init__(self) -> None:
        self.count, self._changed = 0, threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def more_than(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count > count, timeout=30)


def test_a_cancel_of_another_host_is_hinted_at_and_not_waited_for(url, store, monkeypatch) -> None:
    monkeypatch.setattr("rlm_host.loops.kernel.LeaseKeeper", partial(LeaseKeeper, watch_s=3_600.0))
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=2), lease_ms=3_600_000)
    other, run_id, told = open_store(url), loops.submit(), []

    def step(context) -> LoopObservation:
        other.request(run_id, "cancel", "enough")
        deadline = time.monotonic() + 30
        while not context.cancelled and time.monotonic() < deadline:
            continue
        told.append(context.cancelled)
        raise InterruptedError

    assert loops.run(run_id, "w", step).stopped_reason == "enough"
    assert told == [True], "the hint has come"
    other.close()


def test_appends_share_hints_and_one_who_waits_hears_of_them(url, store) -> None:
    store.submit("run", submitted(max_generations=1_000))
    lease, head, heard = store.claim("run", "w"), Head(), Heard()
    with store.hints(heard):
        heard.more_than(0)  # it listens
        began = time.monotonic()
        for n in range(200):
            head = fold_all([generation(n)], head)
            store.append(lease, [generation(n)], head)
        took_s = time.monotonic() - began
        heard.more_than(1)
        assert heard.count <= 3 + took_s / EVERY_S


def test_a_hint_that_cannot_be_given_fails_nothing(postgres: Postgres, url) -> None:
    def end_sessions(point: str) -> None:
        if point == "store.committed":
            for pid in postgres.backends(url):
                postgres.sql(f"SELECT pg_terminate_backend({pid}, 10000)")

    store = PostgresRunStore(url, fault=end_sessions)
    assert store.submit("run", submitted())
    assert store.request("run", "pause", "lunch").status == "paused"
    store.close()


def test_hints_come_again_after_a_restart_of_the_server(postgres: Postgres, url, store) -> None:
    store.submit("run", submitted())
    heard = Heard()
    with store.hints(heard, of="requests"):
        heard.more_than(0)
        postgres.restart_immediately()
        listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
        deadline = time.monotonic() + 30
        while postgres.sql(listens) != [(1,)]:
            assert time.monotonic() < deadline
        before = heard.count  # one more may come, for what has happened before it listened
        store.request("run", "pause", "lunch")
        heard.more_than(before)
        store.request("run", "resume", "back")
        heard.more_than(before + 1)
