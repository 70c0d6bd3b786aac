"""What only the SQLite store promises: its file, its sharing, its liveness."""

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_protocol.errors import (
    LeaseHeld,
    LeaseLost,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)
from support.crash_table import crash
from support.loop_stores import generation, head_after, submitted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite3"


@pytest.fixture
def store(path: Path):
    opened = SqliteRunStore(path)
    yield opened
    opened.close()


# --- the file -------------------------------------------------------------------------------------


def test_a_new_file_is_its_owners_alone_and_never_in_danger_of_a_lost_sync(store, path) -> None:
    store.submit("run", submitted())
    for name in ("runs.sqlite3", "runs.sqlite3-wal"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600
    writer = store._here().writer._db
    assert writer.pragma("journal_mode") == "wal"
    assert writer.pragma("synchronous") == 2


@crash("C19", on=("sqlite",))
@pytest.mark.parametrize("content", [b"not a database at all" * 500, b"SQLite format 3\0garbage"])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path, content) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        SqliteRunStore(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_as_it_is(path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE bookmarks(url TEXT); PRAGMA user_version=7")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        SqliteRunStore(path)
    assert path.read_bytes() == before


@crash("C20", on=("sqlite",))
def test_a_newer_schema_is_refused_by_both_numbers(path) -> None:
    SqliteRunStore(path).close()
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(SchemaTooNew) as refused:
        SqliteRunStore(path)
    assert (refused.value.data["found"], refused.value.data["known"]) == (99, 1)


@crash("C19", on=("sqlite",))
def test_overwritten_pages_are_found_and_the_file_is_left_as_it_is(path) -> None:
    store = SqliteRunStore(path)
    store.submit("run", submitted())
    store.close()
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    path.write_bytes(raw)
    with pytest.raises(StoreCorrupt):
        SqliteRunStore(path).head("run")
    assert path.read_bytes() == raw


@crash("C27", on=("sqlite",))
@pytest.mark.parametrize("place", ["missing-folder/runs.sqlite3", "folder", "\ufffd"])
def test_a_file_that_cannot_be_opened_says_where(tmp_path, place) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreUnavailable) as refused:
        SqliteRunStore(tmp_path / place.replace("\ufffd", "\udcff"))  # a name that is not UTF-8
    assert refused.value.data["path"].endswith(place)


def test_a_locked_file_is_busy_and_usable_afterwards(store, path) -> None:
    impatient = SqliteRunStore(path, busy_ms=50)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        impatient.submit("run", submitted())
    other.execute("ROLLBACK")
    other.close()
    assert impatient.submit("run", submitted())
    impatient.close()


def test_a_full_disk_loses_nothing_and_half_writes_nothing(store) -> None:
    store.submit("run", submitted())
    lease = store.claim("run", "w")
    db = store._here().writer._db
    db.pragma("max_page_count", db.pragma("page_count") + 2)
    recorded, head, events = 0, None, []
    with pytest.raises(StoreFull):  # noqa: PT012 -- where it is full is not known before
        while True:
            events.append(generation(recorded, reward=0.123456789))
            head = head_after(*events)
            store.append(lease, events[-1:], head)
            recorded += 1
    assert recorded > 0
    assert store.head("run").head == head_after(*events[:-1])
    assert len(store.events("run")) == recorded + 1
    db.pragma("max_page_count", 1_000_000)
    store.append(lease, events[-1:], head)
    assert store.head("run").head == head


# --- sharing --------------------------------------------------------------------------------------


def test_an_error_inside_a_write_leaves_no_lock_behind(store) -> None:
    store.submit("run", submitted())
    lease = store.claim("run", "w")
    with pytest.raises(TypeError):
        store.append(lease, [generation(0)], head=object())
    store.append(lease, [generation(0)], head_after(generation(0)))
    assert [row.key for row in store.events("run")] == ["submitted", "generation:0"]


def test_waiting_callers_are_committed_together(path) -> None:
    """While one commit is held up, seven more callers come; one more commit does for them all."""
    commits: list[str] = []
    first_is_in, all_wait = threading.Event(), threading.Event()

    def hold_the_first(point: str) -> None:
        commits.append(point)
        if not first_is_in.is_set():
            first_is_in.set()
            assert all_wait.wait(30)

    store = SqliteRunStore(path, fault=hold_the_first)
    waiting = store._here().writer._waiting
    names = [f"run-{n}" for n in range(8)]
    threads = [threading.Thread(target=store.submit, args=(n, submitted(n))) for n in names]
    threads[0].start()
    assert first_is_in.wait(30)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + 30
    while len(waiting) < 7:
        assert time.monotonic() < deadline
    all_wait.set()
    for thread in threads:
        thread.join()
    assert commits.count("store.committed") == 2
    assert {row.run_id for row in store.list().runs} == set(names)
    store.close()


def test_one_bad_write_of_a_group_fails_alone(store) -> None:
    store.submit("run", submitted())

    def full() -> None:
        raise apsw.FullError("no room for this one")

    def half() -> None:
        store.submit("half", submitted("half"))
        raise ZeroDivisionError

    def submit(name: str) -> Callable[[], bool]:
        return lambda: store.submit(name, submitted(name))

    results = store.together([submit("a"), half, submit("b")])
    assert (results[0], type(results[1]), results[2]) == (True, ZeroDivisionError, True)
    results = store.together([submit("c"), full, half, submit("d")])
    assert [type(result) for result in results] == [bool, StoreFull, ZeroDivisionError, bool]
    assert {row.run_id for row in store.list().runs} == {"run", "a", "b", "c", "d"}


def test_processes_that_create_the_file_at_once_agree(path) -> None:
    code = (
        "import sys; from rlm_host.loops.stores.sqlite import SqliteRunStore;"
        "sys.stdin.readline(); SqliteRunStore(sys.argv[1]).health(); print('ok')"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    for racer in racers:
        racer.stdin.write(b"\n")
        racer.stdin.flush()
    assert [racer.communicate(timeout=60)[0] for racer in racers] == [b"ok\n"] * 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own_files(store) -> None:
    store.submit("run", submitted())
    lease = store.claim("run", "parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.submit("child", submitted("child"))
            store.claim("child", "child")
            try:
                store.claim("run", "child")
            except LeaseHeld:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.append(lease, [generation(0)], head_after(generation(0)))
    assert {row.run_id for row in store.list().runs} == {"run", "child"}


# --- liveness -------------------------------------------------------------------------------------


@crash("C16", on=("sqlite",))
def test_a_lease_of_an_earlier_boot_is_free_at_once(store, path) -> None:
    store.submit("run", submitted())
    store.claim("run", "before")
    db = apsw.Connection(str(path))
    db.execute("UPDATE runs SET boot='an earlier one'")
    db.close()
    other = SqliteRunStore(path)
    assert other.claim("run", "after").token == 2
    other.close()


@crash("C15", on=("sqlite",))
@pytest.mark.parametrize("wall_ms", [-(10**12), 10**15])
def test_the_wall_clock_decides_nothing_about_leases(store, path, wall_ms) -> None:
    store.submit("run", submitted())
    store.claim("run", "first")
    astray = SqliteRunStore(path, now_ms=lambda: wall_ms)
    with pytest.raises(LeaseHeld):
        astray.claim("run", "second")
    astray.close()


def test_a_closed_store_owns_nothing(store, path) -> None:
    store.submit("run", submitted())
    lease = store.claim("run", "first")
    other = SqliteRunStore(path)
    store.close()
    assert list((path.parent / "runs.sqlite3-owners").iterdir()) == []
    assert other.claim("run", "second").token == 2
    with pytest.raises(LeaseLost):
        store.renew(lease)
    other.close()


def test_a_lease_that_could_not_be_released_does_not_lock_its_own_process_out(path) -> None:
    broken = threading.Event()

    def fault(point: str) -> None:
        if broken.is_set():
            raise apsw.FullError("no room")

    store = SqliteRunStore(path, fault=fault)
    store.submit("run", submitted())
    lease = store.claim("run", "w")
    broken.set()
    with pytest.raises(StoreFull):
        store.release(lease)
    broken.clear()
    assert store.claim("run", "w").token == lease.token + 1
    store.close()


def test_no_thread_is_started(store) -> None:
    before = threading.active_count()
    store.submit("run", submitted())
    store.release(store.claim("run", "w"))
    assert threading.active_count() == before


def test_an_interrupted_commit_is_taken_over_by_those_who_wait(path) -> None:
    """The caller that commits for all is interrupted; the others' writes are not lost with it."""
    first_is_in, all_wait, interrupted = threading.Event(), threading.Event(), threading.Event()

    def fault(point: str) -> None:
        if not first_is_in.is_set():
            first_is_in.set()
            assert all_wait.wait(30)
        elif all_wait.is_set() and point == "store.in_transaction" and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    store = SqliteRunStore(path, fault=fault)
    waiting = store._here().writer._waiting
    outcomes: list[object] = []

    def submit(name: str) -> None:
        try:
            outcomes.append(store.submit(name, submitted(name)))
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    threads = [threading.Thread(target=submit, args=(f"run-{n}",)) for n in range(5)]
    threads[0].start()
    assert first_is_in.wait(30)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + 30
    while len(waiting) < 4:
        assert time.monotonic() < deadline
    all_wait.set()
    for thread in threads:
        thread.join()
    assert outcomes.count("interrupted") == 1
    assert outcomes.count(True) == 4
    assert len(store.list().runs) == 4
    store.close()
