"""
The contract of a run store, sentence by sentence, over every store there is.

Temporal claims and leases its runs itself, so it is held to what `RunReader` promises.
"""

import threading
from pathlib import Path

import msgspec
import pytest

from rlm_host.loops.head import fold_all
from rlm_protocol.errors import (
    ConfigInvalid,
    Conflict,
    LeaseHeld,
    LeaseLost,
    RunNotFound,
    StoreCorrupt,
)
from rlm_protocol.loop_records import Claimed, Completed, Controlled, Head
from support.crash_table import crash
from support.loop_stores import (
    PROVENANCE,
    RUNS,
    generation,
    head_after,
    intent,
    its_store,
    own_store,
    submitted,
)

__all__ = ["its_store", "own_store"]


@pytest.fixture(params=RUNS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path):
    """Whatever keeps runs, for what is promised of all engines."""
    opened = RUNS[request.param](request, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def runs(anywhere):
    return anywhere.store


def keys(store, run_id="run") -> list[str]:
    rows = store.events(run_id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [row.key for row in rows]


def claim(store, run_id="run", owner="worker"):
    lease = store.claim(run_id, owner)
    assert lease is not None
    return lease


def record(store, lease, n: int, head: Head = Head(), **finish) -> Head:  # noqa: B008
    event = generation(n)
    after = fold_all([event], head)
    store.append(lease, [event], after, **finish)
    return after


# --- every engine ---------------------------------------------------------------------------------


def test_a_submitted_run_is_there_for_every_process(anywhere, runs) -> None:
    assert runs.submit("run", submitted())
    row = anywhere.another().head("run")
    assert (row.run_id, row.tenant, row.workspace, row.status) == (
        "run", "tenant", "workspace", "running",
    )  # fmt: skip
    assert (row.head, row.seq, row.token, row.owner) == (Head(), 1, 0, None)
    assert runs.get("run", "submitted").event == submitted()
    assert runs.get("run", "generation:0") is None


def test_submitting_again_is_a_no_op_and_another_configuration_a_conflict(runs) -> None:
    assert runs.submit("run", submitted())
    assert not runs.submit("run", submitted())
    with pytest.raises(Conflict):
        runs.submit("run", submitted(max_generations=10))
    elsewhere = msgspec.structs.replace(submitted(), provenance=PROVENANCE)
    assert not runs.submit("run", elsewhere)
    assert keys(runs) == ["submitted"]


@pytest.mark.parametrize("call", ["head", "events", "get", "request", "fork"])
def test_an_unknown_run_is_named(runs, call) -> None:
    more = {
        "get": ("submitted",),
        "request": ("cancel", "why"),
        "fork": (0, "child", submitted("child")),
    }.get(call, ())
    with pytest.raises(RunNotFound) as missing:
        getattr(runs, call)("nowhere", *more)
    assert missing.value.data["run_id"] == "nowhere"


def test_events_come_in_pages(anywhere, runs) -> None:
    runs.submit("run", submitted())
    anywhere.complete("run", 3)
    told = runs.events("run")
    first = runs.events("run", limit=3)
    rest = runs.events("run", after=first[-1].seq)
    assert (*first, *rest) == told
    assert len(first) == 3
    assert [k for k in keys(runs) if k.startswith("generation")] == [
        f"generation:{n}" for n in range(3)
    ]
    assert runs.get("run", "generation:1").event == told[keys(runs).index("generation:1")].event


def test_the_head_is_the_fold_of_the_events(anywhere, runs) -> None:
    runs.submit("run", submitted())
    anywhere.complete("run", 3)
    row = anywhere.another().head("run")
    assert row.head == fold_all(told.event for told in runs.events("run", limit=row.seq))
    assert row.head.generation == 3


@crash("C24")
def test_a_cancel_before_the_start_ends_a_run_and_the_first_reason_is_kept(anywhere, runs) -> None:
    runs.submit("run", submitted())
    runs.request("run", "cancel", "first")
    runs.request("run", "cancel", "second")
    row = anywhere.acted("run", "cancelled")
    assert (row.reason, row.control.cancel, row.head) == ("first", "first", Head())
    assert [told.event for told in runs.events("run")] == [
        submitted(),
        Controlled(action="cancel", reason="first"),
        Completed(status="cancelled", reason="first"),
    ]


def test_a_run_that_is_over_is_asked_in_vain(anywhere, runs) -> None:
    runs.submit("run", submitted())
    runs.request("run", "cancel", "over")
    before = anywhere.acted("run", "cancelled")
    for action in ("cancel", "pause", "resume"):
        assert runs.request("run", action, "late") == before


def test_a_run_is_paused_and_resumed(anywhere, runs) -> None:
    runs.submit("run", submitted())
    runs.request("run", "pause", "lunch")
    runs.request("run", "pause", "again")
    assert anywhere.acted("run", "paused").reason == "lunch"
    runs.request("run", "resume", "back")
    row = anywhere.acted("run", "running")
    assert (row.reason, row.control.pause) == (None, None)
    asked = [told.event for told in runs.events("run")][1:]
    assert [event.action for event in asked] == ["pause", "resume"]
    assert asked[0].reason == "lunch"


def test_a_paused_run_can_be_cancelled(anywhere, runs) -> None:
    runs.submit("run", submitted())
    runs.request("run", "pause", "lunch")
    anywhere.acted("run", "paused")
    runs.request("run", "cancel", "over")
    assert anywhere.acted("run", "cancelled").reason == "over"


@crash("C28")
def test_a_fork_begins_with_its_parents_generations_and_leaves_the_parent_alone(
    anywhere, runs
) -> None:
    runs.submit("run", submitted())
    anywhere.complete("run", 4)
    before = runs.events("run")
    child = msgspec.structs.replace(
        submitted("child", max_generations=20), parent="run", forked_at=1
    )
    assert runs.fork("run", 1, "child", child)
    assert not runs.fork("run", 1, "child", child)
    told = runs.events("child")
    assert told[0].event == child
    assert [row.key for row in told if row.key.startswith("generation")][:2] == [
        "generation:0", "generation:1",
    ]  # fmt: skip
    head = fold_all(row.event for row in before[: 1 + keys(runs).index("generation:1")])
    assert fold_all(row.event for row in told[: 1 + keys(runs, "child").index("generation:1")]) == (
        head
    )
    assert runs.events("run")[: len(before)] == before
    assert runs.head("child").parent == "run"


@pytest.mark.parametrize("at", [-1, 1, 99])
def test_a_fork_needs_a_completed_generation(anywhere, runs, at) -> None:
    runs.submit("run", submitted())
    anywhere.complete("run", 1)
    with pytest.raises(ConfigInvalid):
        runs.fork("run", at, "child", submitted("child"))
    with pytest.raises(RunNotFound):
        runs.head("child")


def test_runs_are_listed_newest_first_in_pages_and_narrowed(anywhere, runs) -> None:
    for n in range(5):
        runs.submit(f"run-{n}", submitted(f"run-{n}"))

    def listed() -> list[str]:
        seen, cursor = [], None
        while True:
            page = runs.list(cursor=cursor, limit=2)
            seen += [row.run_id for row in page.runs]
            cursor = page.cursor
            if cursor is None:
                return seen

    anywhere.soon(lambda: listed() == ["run-4", "run-3", "run-2", "run-1", "run-0"])
    runs.request("run-2", "cancel", "x")
    anywhere.acted("run-2", "cancelled")
    anywhere.soon(lambda: [r.run_id for r in runs.list(status="cancelled").runs] == ["run-2"])
    anywhere.soon(lambda: sorted(listed()) == [f"run-{n}" for n in range(5)])
    assert len(runs.list(tenant="tenant", workspace="workspace").runs) == 5
    assert runs.list(tenant="somebody else").runs == ()


def test_health_counts_what_is_there(anywhere, runs) -> None:
    runs.submit("run", submitted())
    anywhere.soon(lambda: runs.health(deep=True).runs == 1)
    assert runs.health(deep=True).problems == ()


# --- our own stores: leases ------------------------------------------------------------------------


def test_a_run_has_one_owner_and_the_refusal_names_it(under_test, store) -> None:
    store.submit("run", submitted())
    claim(store, owner="first")
    for other in (store, under_test.another()):
        with pytest.raises(LeaseHeld) as held:
            other.claim("run", "first")
        assert held.value.data["owner"] == "first"


def test_each_claim_has_a_larger_token_even_for_the_same_name(store) -> None:
    store.submit("run", submitted())
    tokens = []
    for _ in range(3):
        lease = claim(store)
        tokens.append(lease.token)
        store.release(lease)
    assert tokens == [1, 2, 3]


@crash("C12")
def test_an_expired_lease_is_taken_over_and_its_owner_writes_nothing_more(
    under_test, store
) -> None:
    store.submit("run", submitted())
    late = claim(store, owner="worker-1")
    under_test.expire_leases()
    other = under_test.another()
    lease = claim(other, owner="worker-1")
    for write in (
        lambda: store.append(late, [generation(0)], head_after(generation(0))),
        lambda: store.append(late, [Completed(status="failed", reason="x")], Head()),
        lambda: store.renew(late),
    ):
        with pytest.raises(LeaseLost):
            write()
    store.release(late)
    assert keys(store) == ["submitted"]
    record(other, lease, 0)
    assert keys(store) == ["submitted", "generation:0"]
    assert store.head("run").token == lease.token


@crash("C13")
def test_the_token_decides_and_not_the_clock(under_test, store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    under_test.expire_leases()
    record(store, lease, 0)
    with pytest.raises(LeaseHeld):
        under_test.another().claim("run", "other")  # the append has extended it


def test_a_renewal_extends_the_lease_and_tells_what_operators_want(under_test, store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    under_test.expire_leases()
    assert store.renew(lease).cancel is None
    other = under_test.another()
    with pytest.raises(LeaseHeld):
        other.claim("run", "other")
    other.request("run", "cancel", "enough")
    other.request("run", "pause", "lunch")
    control = store.renew(lease)
    assert (control.cancel, control.pause) == ("enough", "lunch")


def test_a_released_run_is_free_and_its_old_lease_is_none(under_test, store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    store.release(lease)
    with pytest.raises(LeaseLost):
        record(store, lease, 0)
    assert claim(under_test.another()).token == 2


def test_claims_without_a_record_are_counted(under_test, store) -> None:
    store.submit("run", submitted())
    for expected in (1, 2, 3):
        lease = claim(store)
        assert lease.row.claims == expected
        under_test.expire_leases()
    lease = claim(store)
    record(store, lease, 0)
    under_test.expire_leases()
    lease = claim(store)
    assert lease.row.claims == 2, "the claim that recorded, and this one"
    store.release(lease)
    assert claim(store).row.claims == 1, "a clean release is no crash"


def test_a_claim_with_a_provenance_is_an_event_of_the_run(under_test, store) -> None:
    store.submit("run", submitted())
    lease = store.claim("run", "first", provenance=PROVENANCE)
    assert (lease.row.seq, lease.row.claims) == (2, 1)
    head = record(store, lease, 0)
    under_test.expire_leases()
    again = under_test.another().claim("run", "second", provenance=PROVENANCE)
    record(store, again, 1, head)
    assert keys(store) == ["submitted", "claim:1", "generation:0", "claim:2", "generation:1"]
    told = store.get("run", "claim:2")
    assert (told.token, told.event) == (2, Claimed(worker="second", provenance=PROVENANCE))
    store.fork("run", 1, "child", submitted("child"))
    assert keys(store, "child") == ["submitted", "generation:0", "generation:1"]


@crash("C14")
def test_of_many_claimants_one_wins(under_test, store) -> None:
    store.submit("run", submitted())
    stores = [under_test.another() for _ in range(4)]
    outcomes: list[object] = []

    def compete(mine) -> None:
        try:
            outcomes.append(mine.claim("run", "w").token)
        except LeaseHeld:
            outcomes.append(None)

    threads = [threading.Thread(target=compete, args=(s,)) for s in (*stores, *stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [1, *[None] * 7]


# --- append ---------------------------------------------------------------------------------------


def test_an_appended_event_is_read_back_with_the_head_after_it(under_test, store) -> None:
    store.submit("run", submitted())
    head = record(store, claim(store), 0)
    other = under_test.another()
    row = other.get("run", "generation:0")
    assert (row.seq, row.token, row.event) == (2, 1, generation(0))
    assert other.head("run").head == head
    assert other.get("run", "generation:1") is None


@crash("C26")
def test_the_same_event_again_is_already_there(store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    head = head_after(generation(0))
    assert store.append(lease, [generation(0)], head).fresh
    assert not store.append(lease, [generation(0)], head).fresh
    assert keys(store) == ["submitted", "generation:0"]


def test_the_last_event_again_is_already_there_too(store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    last = [generation(0), Completed(status="completed", reason="target")]
    head = head_after(*last)
    assert store.append(lease, last, head, status="completed", reason="target").fresh
    assert not store.append(lease, last, head, status="completed", reason="target").fresh


def test_the_same_key_with_another_body_is_a_conflict_and_writes_nothing(store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    record(store, lease, 0)
    with pytest.raises(Conflict) as refused:
        store.append(lease, [generation(0, reward=0.6), generation(1)], Head(generation=2))
    assert refused.value.data["key"] == "generation:0"
    assert keys(store) == ["submitted", "generation:0"]
    assert store.head("run").head.generation == 1
    record(store, lease, 1, store.head("run").head)  # the store still works


def test_a_terminal_run_is_final(store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    record(store, lease, 0, status="completed", reason="target")
    row = store.head("run")
    assert (row.status, row.reason, row.owner) == ("completed", "target", None)
    assert store.claim("run", "w") is None
    with pytest.raises(LeaseLost):
        store.append(lease, [generation(1)], Head())
    for action in ("cancel", "pause", "resume"):
        assert store.request("run", action, "late").status == "completed"
    assert keys(store) == ["submitted", "generation:0"]


def test_calls_made_together_do_not_touch_each_other(store) -> None:
    for name in ("a", "b"):
        store.submit(name, submitted(name))
    a, b = claim(store, "a"), claim(store, "b")
    head = head_after(generation(0))
    stale = type(a)(run_id="a", token=7, ttl_ms=a.ttl_ms, row=a.row)
    results = store.together(
        [
            lambda: store.append(a, [generation(0)], head),
            lambda: store.append(stale, [generation(0)], head),
            lambda: store.append(b, [generation(0)], head),
            lambda: store.head("nowhere"),
        ]
    )
    assert results[0].fresh
    assert results[2].fresh
    assert isinstance(results[1], LeaseLost)
    assert isinstance(results[3], RunNotFound)
    assert [keys(store, name) for name in "ab"] == [["submitted", "generation:0"]] * 2


def test_many_threads_write_their_runs_at_once(store) -> None:
    runs = [f"run-{n}" for n in range(8)]
    for run in runs:
        store.submit(run, submitted(run))

    def work(run: str) -> None:
        lease, head = claim(store, run), Head()
        for n in range(20):
            head = record(store, lease, n, head)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        assert keys(store, run) == ["submitted", *(f"generation:{n}" for n in range(20))]
        assert store.head(run).head.generation == 20


# --- requests -------------------------------------------------------------------------------------


def test_a_cancel_of_a_run_that_nobody_owns_ends_it(store) -> None:
    store.submit("run", submitted())
    row = store.request("run", "cancel", "first")
    assert (row.status, row.reason) == ("cancelled", "first")
    assert keys(store) == ["submitted", "control:1:cancel", "completed"]
    assert store.get("run", "completed").event == Completed(status="cancelled", reason="first")
    assert store.claim("run", "w") is None


def test_a_cancel_waits_for_a_living_owner_and_keeps_the_first_reason(under_test, store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    other = under_test.another()
    assert other.request("run", "cancel", "first").status == "running"
    other.request("run", "cancel", "second")
    appended = store.append(lease, [generation(0)], head_after(generation(0)))
    assert appended.control.cancel == "first"


def test_a_cancel_fences_an_owner_that_was_thought_dead(under_test, store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    under_test.expire_leases()
    assert under_test.another().request("run", "cancel", "gone").status == "cancelled"
    with pytest.raises(LeaseLost):
        record(store, lease, 0)


def test_a_cancel_leaves_a_half_applied_generation_to_the_next_owner(under_test, store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    store.append(lease, [intent(0)], Head())
    under_test.expire_leases()
    row = store.request("run", "cancel", "stop it")
    assert (row.status, row.control.cancel) == ("running", "stop it")
    assert claim(store).row.control.cancel == "stop it"


def test_a_paused_run_is_not_claimed_and_a_living_owner_is_told(under_test, store) -> None:
    store.submit("run", submitted())
    assert store.request("run", "pause", "lunch").status == "paused"
    assert store.claim("run", "w") is None
    store.request("run", "resume", "back")
    assert keys(store) == ["submitted", "control:1:pause", "control:2:resume"]
    lease = claim(store)
    under_test.another().request("run", "pause", "dinner")
    assert store.renew(lease).pause == "dinner"
    store.request("run", "resume", "not hungry")
    assert store.renew(lease).pause is None


# --- fork, prune ----------------------------------------------------------------------------------


@crash("C28")
def test_a_fork_counts_its_events_anew_and_parent_and_child_go_on(store) -> None:
    store.submit("run", submitted())
    lease, head, heads = claim(store), Head(), []
    for n in range(4):
        head = record(store, lease, n, head)
        heads.append(head)
    store.fork("run", 1, "child", submitted("child", max_generations=20))
    assert keys(store, "child") == ["submitted", "generation:0", "generation:1"]
    assert store.head("child").head == heads[1]
    record(store, claim(store, "child"), 2, heads[1])
    record(store, lease, 4, head)


def test_only_old_terminal_runs_are_pruned(store) -> None:
    for name in ("a", "b", "c"):
        store.submit(name, submitted(name))
    for name in ("a", "b"):
        store.request(name, "cancel", "x")
    last = max(store.head(name).updated_at_ms for name in ("a", "b"))
    assert store.prune(before_ms=0) == 0
    assert store.prune(before_ms=last + 1, limit=1) == 1
    assert store.prune(before_ms=last + 1) == 1
    assert [row.run_id for row in store.list().runs] == ["c"]
    store.submit("a", submitted("a"))
    assert keys(store, "a") == ["submitted"]


# --- moving ---------------------------------------------------------------------------------------


def test_an_adopted_run_has_the_history_it_had_and_goes_on(under_test, store) -> None:
    store.submit("run", submitted())
    lease = claim(store)
    head = record(store, lease, 0)
    store.append(lease, [intent(1)], head)
    row, history = store.head("run"), store.events("run")
    moved = msgspec.structs.replace(row, run_id="moved", owner=None, claims=0)
    assert store.adopt(moved, history)
    assert store.events("moved") == history
    assert not store.adopt(moved, history)
    there = store.head("moved")
    assert (there.head, there.seq, there.token) == (row.head, row.seq, row.token)
    assert (there.created_at_ms, there.updated_at_ms) == (row.created_at_ms, row.updated_at_ms)
    assert claim(store, "moved").token == row.token + 1
    with pytest.raises(Conflict):
        store.adopt(moved, history[:-1])


# --- damage ---------------------------------------------------------------------------------------


@crash("C18")
def test_an_altered_event_is_named_and_other_runs_stay_usable(under_test, store) -> None:
    for name in ("good", "bad"):
        store.submit(name, submitted(name))
        record(store, claim(store, name), 0)
    under_test.alter("events", "bad", "body")
    with pytest.raises(StoreCorrupt) as damaged:
        store.events("bad")
    assert damaged.value.data["run_id"] == "bad"
    assert "generation:0" in damaged.value.data["record"]
    assert keys(store, "good") == ["submitted", "generation:0"]


@pytest.mark.parametrize("column", ["head", "config"])
def test_an_altered_row_is_named_and_the_list_goes_on(under_test, store, column) -> None:
    for name in ("good", "bad"):
        store.submit(name, submitted(name))
    under_test.alter("runs", "bad", column)
    with pytest.raises(StoreCorrupt) as damaged:
        store.head("bad")
    assert damaged.value.data == {
        "run_id": "bad", "record": column, "detail": "its checksum is wrong",
    }  # fmt: skip
    page = store.list()
    assert [row.run_id for row in page.runs] == ["good"]
    assert page.damaged == ("bad",)
