"""The promises of the seed document (loop kernel), sentence by sentence, in one process."""

import contextlib
import json
import math
import threading
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import apsw
import msgspec
import pytest

from rlm_host.loops import controller, worker
from rlm_host.loops.audit import DecisionLog, audit
from rlm_host.loops.head import fold_all
from rlm_host.loops.inputs import LoopConfig, LoopObservation, Verdict
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.stores.rows import checksum
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_protocol.errors import (
    ConfigInvalid,
    Conflict,
    LeaseHeld,
    LeaseLost,
    RunNotFound,
    StoreCorrupt,
)
from rlm_protocol.loop_records import Accepted, Claimed, StepFailed, encode

NAN = math.nan


@pytest.fixture
def store(tmp_path: Path):
    opened = SqliteRunStore(tmp_path / "runs.sqlite3")
    yield opened
    opened.close()


def kernel_of(store, *, gates=(), log=None, telemetry=None, compute=None, fault=None, **config):
    values = {"max_generations": 4, **config}
    more = {} if fault is None else {"fault": fault}
    return LoopKernel(
        store,
        LoopConfig("tenant-a", "ws-1", **values),
        gates=gates,
        decision_log=log,
        telemetry=telemetry,
        compute=compute,
        **more,
    )


def rewards(*values: float, **more):
    """A step that measures these rewards, one per generation."""

    def step(context) -> LoopObservation:
        n = context.generation
        return LoopObservation(reward=values[n], artifact_id=f"a{n}", **more)

    return step


def run(loops: LoopKernel, step, **functions):
    return loops.run(loops.submit(), "worker-1", step, **functions)


def actions(report) -> list[str]:
    return [generation.action for generation in report.generations]


def keys(store, run_id: str) -> list[str]:
    """Give the keys of all events but those of the workers that came."""
    rows = store.events(run_id)
    return [row.key for row in rows if not isinstance(row.event, Claimed)]


def events(store, run_id: str, kind: type) -> list:
    return [row.event for row in store.events(run_id) if isinstance(row.event, kind)]


# --- the example, order, completion ---------------------------------------------------------------


def test_the_example_of_the_seed(store) -> None:
    made: list[str] = []
    loops = kernel_of(store, target=0.9)
    run_id = loops.submit()

    def step(ctx) -> LoopObservation:
        return LoopObservation(reward=0.7, cost=1.0, artifact_id="skill-1")

    def apply_artifact(context, observation) -> None:
        made.append(observation.artifact_id)

    report = loops.run(run_id, "worker-1", step, apply=apply_artifact)
    assert (report.best_reward, report.stopped_reason) == (0.7, "max_generations")
    assert actions(report) == ["accept", "reject", "reject", "reject"]
    assert made == ["skill-1"]
    assert report.terminal
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_order_is_step_gate_apply_record(store) -> None:
    order: list[str] = []

    def step(context) -> LoopObservation:
        order.append("step")
        return LoopObservation(reward=0.5)

    def gate(context, observation) -> Verdict:
        order.append("gate")
        return Verdict("allow")

    def apply(context, observation) -> None:
        order.append("apply")
        assert store.get(context.run_id, "intent:0") is not None
        assert store.get(context.run_id, "generation:0") is None

    loops = kernel_of(store, gates=[gate], max_generations=1)
    report = run(loops, step, apply=apply)
    assert order == ["step", "gate", "apply"]
    assert report.generations[0].applied


def test_the_last_generation_is_an_event_too(store) -> None:
    loops = kernel_of(store, target=0.9)
    report = run(loops, rewards(0.5, 0.95))
    assert keys(store, report.run_id) == [
        "submitted",
        "intent:0",
        "generation:0",
        "intent:1",
        "generation:1",
        "completed",
    ]
    assert report.generations[-1].stop == report.stopped_reason == "target"
    assert report.status == "completed"


def test_the_strict_order_keeps_one_event_per_generation(store) -> None:
    loops = kernel_of(store, record="single", max_generations=2)
    report = run(loops, rewards(0.5, 0.6))
    assert keys(store, report.run_id) == [
        "submitted", "generation:0", "generation:1", "completed",
    ]  # fmt: skip


def test_rejected_and_deferred_candidates_are_not_applied(store) -> None:
    applied: list[int] = []
    verdicts = iter([Verdict("allow"), Verdict("deny"), Verdict("defer"), Verdict("allow")])
    loops = kernel_of(store, gates=[lambda c, o: next(verdicts)])
    report = run(
        loops, rewards(0.5, 0.6, 0.7, 0.4), apply=lambda c, o: applied.append(c.generation)
    )
    assert actions(report) == ["accept", "reject", "defer", "reject"]
    assert applied == [0]


def test_a_rollback_is_told_what_shall_live_again(store) -> None:
    told: list = []
    seen = [
        LoopObservation(reward=0.5, artifact_id="a"),
        LoopObservation(reward=0.6, artifact_id="b"),
        LoopObservation(reward=0.1, live_reward=0.2),
        LoopObservation(reward=0.1, live_reward=0.1),
    ]
    loops = kernel_of(store, rollback_drop=0.1)
    report = run(
        loops,
        lambda c: seen[c.generation],
        rollback=lambda context, accepted: told.append((context.accepted, accepted)),
    )
    first, second = (
        Accepted(generation=0, reward=0.5, artifact_id="a"),
        Accepted(generation=1, reward=0.6, artifact_id="b"),
    )
    assert actions(report) == ["accept", "accept", "rollback", "rollback"]
    assert told == [(second, first), (first, None)]
    assert report.best_reward is None


# --- what a step sees -----------------------------------------------------------------------------


def test_a_step_sees_where_the_loop_stands(store) -> None:
    contexts = []

    def step(context) -> LoopObservation:
        contexts.append(context)
        return LoopObservation(reward=(0.5, 0.4, 0.6)[context.generation], artifact_id="x")

    loops = kernel_of(store, max_generations=3, seed=7)
    report = run(loops, step)
    assert [c.generation for c in contexts] == [0, 1, 2]
    assert [c.best for c in contexts] == [None, 0.5, 0.5]
    assert [c.attempt for c in contexts] == [1, 1, 1]
    assert len({c.seed for c in contexts}) == 3
    assert {(c.run_id, c.tenant, c.token) for c in contexts} == {(report.run_id, "tenant-a", 1)}
    history = contexts[2].history
    assert len(history) == 2
    assert [g.action for g in history] == ["accept", "reject"]
    assert history[-1] == report.generations[1]
    assert history[:] == report.generations[:2]
    with pytest.raises(IndexError):
        history[2]


def test_the_history_reads_nothing_before_it_is_asked(store) -> None:
    loops = kernel_of(store, max_generations=2)
    reads: list[str] = []
    original = store.get

    def counting(run_id, key):
        reads.append(key)
        return original(run_id, key)

    store.get = counting
    run(loops, rewards(0.1, 0.2))
    assert [key for key in reads if key.startswith("generation")] == []


def test_deferred_candidates_are_shown_to_the_next_step(store) -> None:
    shown = []

    def step(context) -> LoopObservation:
        shown.append([d.artifact_id for d in context.deferred])
        return LoopObservation(reward=0.5, artifact_id=f"a{context.generation}")

    def gate(context, observation) -> Verdict:
        return Verdict("defer" if context.generation < 2 else "allow")

    report = run(kernel_of(store, gates=[gate]), step)
    assert actions(report) == ["defer", "defer", "accept", "reject"]
    assert shown == [[], ["a0"], ["a0", "a1"], []]


def test_only_deferrals_in_a_row_are_counted(store) -> None:
    verdicts = iter(["defer", "allow", "defer", "defer"])
    loops = kernel_of(store, gates=[lambda c, o: Verdict(next(verdicts))], max_defers=1)
    report = run(loops, rewards(0.5, 0.6, 0.7, 0.8))
    assert actions(report) == ["defer", "accept", "defer", "reject"]
    assert report.generations[-1].reason == "defer_exhausted"


def test_charges_count_even_when_the_attempt_fails(store) -> None:
    def step(context) -> LoopObservation:
        context.charge(2.0)
        if context.attempt == 1:
            raise OSError("the model has hung up")
        return LoopObservation(reward=0.5)

    report = run(kernel_of(store, cost_budget=5.0), step)
    assert (report.cost, report.stopped_reason) == (6.0, "cost_budget")
    assert [g.cost for g in report.generations] == [2.0]


def test_what_an_apply_charges_counts_against_the_budget_too(store) -> None:
    def apply(context, observation) -> None:
        context.charge(2.5)
        if context.attempt == 1 and context.generation == 0:
            raise OSError("the disk has gone")

    report = run(kernel_of(store, cost_budget=9.0), rewards(0.1, 0.2, 0.3, cost=1.0), apply=apply)
    assert [g.cost for g in report.generations] == [3.5, 3.5]
    assert (report.cost, report.stopped_reason) == (2.5 + 3.5 + 3.5, "cost_budget")


@pytest.mark.parametrize("cost", [-1.0, NAN, math.inf])
def test_a_senseless_charge_is_refused(store, cost) -> None:
    refused = []

    def step(context) -> LoopObservation:
        with pytest.raises(ValueError, match="charge"):
            context.charge(cost)
        refused.append(True)
        return LoopObservation(reward=0.5)

    report = run(kernel_of(store, max_generations=1), step)
    assert refused == [True]
    assert report.cost == 0.0


# --- gates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [True, None, "allow"])
def test_a_gate_that_gives_no_verdict_lets_nothing_through(store, answer) -> None:
    report = run(
        kernel_of(store, gates=[lambda c, o: answer], max_defers=1, max_generations=2),
        rewards(0.5, 0.6),
    )
    assert actions(report) == ["defer", "reject"]
    assert report.best_reward is None


def test_a_gate_that_raises_lets_nothing_through_and_its_error_is_kept(store) -> None:
    def broken(context, observation) -> Verdict:
        raise ConnectionError("no judge")

    report = run(kernel_of(store, gates=[broken], max_generations=1), rewards(0.5))
    assert report.generations[0].reason == "gate_unresolved:broken"
    event = store.get(report.run_id, "generation:0").event
    assert event.verdicts[0].note == "ConnectionError: no judge"


def test_gates_of_one_name_are_told_apart(store) -> None:
    gates = [lambda c, o: Verdict("allow"), lambda c, o: Verdict("deny")]
    report = run(kernel_of(store, gates=gates, max_generations=1), rewards(0.5))
    assert report.generations[0].reason == "gate_denied:<lambda>#2"


# --- failures are recorded ------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 0.7, {"reward": 0.7}])
def test_a_step_of_the_wrong_type_is_a_recorded_failure_never_a_zero(store, wrong) -> None:
    loops = kernel_of(store, step_attempts=2)
    report = run(loops, lambda context: wrong)
    assert (report.status, report.generations, report.terminal) == ("running", [], False)
    failures = events(store, report.run_id, StepFailed)
    assert [(f.attempt, f.error) for f in failures] == [(1, "TypeError"), (2, "TypeError")]
    assert type(wrong).__name__ in failures[0].message


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [Wordless(), ValueError("\ud800"), ValueError("x" * 10_000_000)])
def test_an_error_that_cannot_be_written_down_is_a_recorded_failure(store, error) -> None:
    def fails(*_: object) -> LoopObservation:
        raise error

    loops = kernel_of(store, step_attempts=1, max_generations=1)
    assert run(loops, fails).status == "running"
    loops = kernel_of(store, gates=[fails], max_generations=1, seed=1)
    gated = run(loops, rewards(0.5))
    assert gated.generations[0].reason == "gate_unresolved:fails"
    loops = kernel_of(
        store, gates=[lambda c, o: Verdict("deny", "\ud800")], max_generations=1, seed=2
    )
    assert run(loops, rewards(0.5)).generations[0].action == "reject"


def test_evidence_that_is_no_json_is_a_recorded_failure(store) -> None:
    loops = kernel_of(store, step_attempts=1)
    report = run(loops, lambda c: LoopObservation(reward=1, evidence=object()))
    assert [f.error for f in events(store, report.run_id, StepFailed)] == ["TypeError"]


def test_too_large_evidence_is_a_recorded_failure(store) -> None:
    loops = kernel_of(store, step_attempts=1)
    report = run(loops, lambda c: LoopObservation(reward=1, evidence="x" * 9_000_000))
    assert [f.error for f in events(store, report.run_id, StepFailed)] == ["TooLarge"]


def test_a_step_that_keeps_failing_leaves_the_run_running_and_callable_again(store) -> None:
    loops = kernel_of(store, step_attempts=3, max_generations=1)
    attempts = []

    def step(context) -> LoopObservation:
        attempts.append((context.attempt, context.seed))
        if len(attempts) < 5:
            raise OSError(f"attempt {len(attempts)}")
        return LoopObservation(reward=0.5)

    run_id = loops.submit()
    report = loops.run(run_id, "w", step)
    assert (report.status, report.terminal) == ("running", False)
    assert store.head(run_id).owner is None
    assert keys(store, run_id)[1:] == [f"step_failed:0:1:{k}" for k in (1, 2, 3)]
    report = loops.run(run_id, "w", step)
    assert report.terminal
    assert [attempt for attempt, _ in attempts] == [1, 2, 3, 4, 5]
    assert len({seed for _, seed in attempts}) == 1, "a repeated step sees the same seed"


def test_an_apply_that_raises_is_repeated_without_step_or_gates(store) -> None:
    calls: list[str] = []

    def apply(context, observation) -> None:
        calls.append(f"apply {context.attempt} {observation.artifact_id}")
        if context.attempt < 3:
            raise OSError("not now")

    def gate(context, observation) -> Verdict:
        calls.append("gate")
        return Verdict("allow")

    def step(context) -> LoopObservation:
        calls.append("step")
        return LoopObservation(reward=0.5, artifact_id="x")

    report = run(kernel_of(store, gates=[gate], max_generations=1), step, apply=apply)
    assert calls == ["step", "gate", "apply 1 x", "apply 2 x", "apply 3 x"]
    assert report.generations[0].applied
    assert [f.phase for f in events(store, report.run_id, StepFailed)] == ["apply", "apply"]


@pytest.mark.parametrize("record", ["intent", "single"])
def test_an_apply_that_keeps_raising_fails_the_run(store, record) -> None:
    def apply(context, observation) -> None:
        raise OSError("never")

    loops = kernel_of(store, record=record, step_attempts=2)
    report = run(loops, rewards(0.5), apply=apply)
    assert (report.status, report.stopped_reason) == ("failed", "apply_failed")
    assert report.generations == []
    assert len(events(store, report.run_id, StepFailed)) == 2


def test_a_stored_configuration_without_sense_ends_the_run_as_a_recorded_failure(store) -> None:
    loops = kernel_of(store)
    run_id = loops.submit()
    config = json.dumps({"tenant": "t", "workspace": "w"}).encode()  # max_generations is missing
    db = apsw.Connection(str(store.path))
    db.execute("UPDATE runs SET config=?, config_sum=?", (config, checksum("config", config)))
    db.close()
    report = loops.run(run_id, "w", rewards(0.5))
    assert (report.status, report.stopped_reason) == ("failed", "config_invalid")
    assert keys(store, run_id) == ["submitted", "completed"]


def test_nothing_is_kept_of_a_refused_submit(store) -> None:
    with pytest.raises(ConfigInvalid):
        kernel_of(store, max_generations=0).submit("run")
    with pytest.raises(ConfigInvalid):
        LoopKernel(store, None).submit("run")
    with pytest.raises(ConfigInvalid):
        kernel_of(store).submit("../up")
    with pytest.raises(RunNotFound):
        store.head("run")


def test_submit_is_idempotent(store) -> None:
    loops = kernel_of(store, target=1)
    assert loops.submit("run") == loops.submit("run") == "run"
    with pytest.raises(Conflict):
        kernel_of(store, target=2).submit("run")


# --- replay ---------------------------------------------------------------------------------------


def test_a_report_calls_neither_gates_nor_decide(store, monkeypatch) -> None:
    loops = kernel_of(store, gates=[lambda c, o: Verdict("allow")])
    report = run(loops, rewards(0.1, 0.3, 0.2, 0.4))
    monkeypatch.setattr(controller, "decide", lambda *_: pytest.fail("decided again"))
    again = LoopKernel(store, None, gates=[lambda c, o: pytest.fail("asked again")])
    assert again.report(report.run_id) == report
    assert again.snapshot(report.run_id).head.best == 0.4


def test_the_head_is_the_fold_of_the_events(store) -> None:
    def step(context) -> LoopObservation:
        if context.attempt == 1 and context.generation % 2:
            raise OSError("every second one")
        n = context.generation
        return LoopObservation(reward=(0.1, 0.5, NAN, 0.6, 0.2, 0.1)[n], live_reward=1 - n / 10)

    loops = kernel_of(store, rollback_drop=0.3, max_generations=6)
    report = run(loops, step)
    head = store.head(report.run_id).head
    assert fold_all(row.event for row in store.events(report.run_id)) == head
    restored = controller.RSIController(loops.config)
    assert restored.restore(row.event for row in store.events(report.run_id)) == head


def test_a_head_that_does_not_follow_from_the_events_is_damage(store) -> None:
    loops = kernel_of(store)
    report = run(loops, rewards(0.1, 0.2, 0.3, 0.4))
    wrong = encode(msgspec.structs.replace(store.head(report.run_id).head, cost=99.0))
    db = apsw.Connection(str(store.path))
    db.execute("UPDATE runs SET head=?, head_sum=?", (wrong, checksum("head", wrong)))
    db.close()
    with pytest.raises(StoreCorrupt):
        loops.report(report.run_id)


def test_budgets_survive_a_new_worker(store) -> None:
    loops = kernel_of(store, max_generations=9, patience=3, cost_budget=100.0)
    run_id = loops.submit()

    def step(context) -> LoopObservation:
        if context.generation == 2 and context.token == 1:
            raise KeyboardInterrupt
        return LoopObservation(reward=-context.generation, cost=1.0)

    with pytest.raises(KeyboardInterrupt):
        loops.run(run_id, "w", step)
    report = loops.run(run_id, "w", step)
    assert (report.stopped_reason, len(report.generations)) == ("patience", 4)
    assert report.cost == 4.0


def test_nan_is_spelled_out_in_dictionaries(store) -> None:
    report = run(kernel_of(store, max_generations=1), rewards(NAN))
    assert math.isnan(report.generations[0].reward)
    assert report.to_dict()["generations"][0]["reward"] == "nan"
    assert (report.generations[0].action, report.best_reward) == ("reject", None)


def test_an_audit_lists_what_other_rules_would_decide_and_changes_nothing(
    store, monkeypatch
) -> None:
    report = run(kernel_of(store, min_gain=0.15), rewards(0.1, 0.2, 0.5, 0.6))
    assert list(audit(store, report.run_id)) == []
    anything = controller._Row("D11", lambda c: True, "accept", "improved")
    lenient = (*controller.TABLE[:10], anything)
    monkeypatch.setattr(controller, "TABLE", lenient)
    differences = list(audit(store, report.run_id))
    assert [(d.generation, d.recorded.action, d.now.action) for d in differences] == [
        (1, "reject", "accept"), (3, "reject", "accept"),
    ]  # fmt: skip
    assert LoopKernel(store, None).report(report.run_id) == report


# --- control --------------------------------------------------------------------------------------


def test_a_cancel_before_the_start_ends_the_run_without_a_step(store) -> None:
    loops = kernel_of(store)
    run_id = loops.submit()
    loops.cancel(run_id, reason="operator stop")
    loops.cancel(run_id, reason="another")
    report = loops.run(run_id, "w", lambda c: pytest.fail("stepped"))
    assert (report.status, report.stopped_reason) == ("cancelled", "operator stop")


def test_a_cancel_during_a_step_is_seen_by_it_and_applies_nothing(store) -> None:
    loops = kernel_of(store)
    run_id = loops.submit()

    def step(context) -> LoopObservation:
        context.charge(3.0)
        loops.cancel(run_id, reason="enough")
        deadline = threading.Event()
        for _ in range(3_000):
            if context.cancelled:
                break
            deadline.wait(0.01)
        assert context.cancelled
        return LoopObservation(reward=0.9)

    report = loops.run(run_id, "w", step, apply=lambda c, o: pytest.fail("applied"))
    assert (report.status, report.stopped_reason) == ("cancelled", "enough")
    assert report.generations == []
    assert report.cost == 3.0, "what the step has spent is kept"


def test_the_callers_cancel_is_asked_at_every_boundary(store) -> None:
    asked: list[int] = []
    report = run(
        kernel_of(store), rewards(0.1, 0.2, 0.3), cancel=lambda: asked.append(1) or len(asked) > 4
    )
    assert report.status == "cancelled"
    assert 0 < len(report.generations) < 4


def test_a_pause_rests_after_the_generation_and_a_resume_goes_on(store) -> None:
    loops = kernel_of(store)
    run_id = loops.submit()

    def step(context) -> LoopObservation:
        if context.generation == 1 and context.token == 1:
            loops.pause(run_id, "lunch")
        return LoopObservation(reward=context.generation)

    report = loops.run(run_id, "w", step)
    assert (report.status, report.stopped_reason, len(report.generations)) == ("paused", "lunch", 2)
    assert loops.run(run_id, "w", step) == report
    loops.resume(run_id)
    assert len(loops.run(run_id, "w", step).generations) == 4


def test_a_held_run_is_refused(store) -> None:
    loops = kernel_of(store)
    run_id = loops.submit()

    def step(context) -> LoopObservation:
        with pytest.raises(LeaseHeld):
            loops.run(run_id, "another", step)
        return LoopObservation(reward=0.5)

    assert loops.run(run_id, "w", step).terminal


def take_over(store) -> None:
    db = apsw.Connection(str(store.path))
    db.execute("UPDATE runs SET token=token+1")
    db.close()


@pytest.mark.parametrize("beats", [False, True])
def test_a_worker_that_lost_its_run_writes_and_applies_nothing(store, beats) -> None:
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=4), lease_ms=30)
    run_id = loops.submit()

    def step(context) -> LoopObservation:
        take_over(store)
        deadline = time.monotonic() + 30
        while beats and time.monotonic() < deadline:
            context.heartbeat()
        return LoopObservation(reward=0.5)

    with pytest.raises(LeaseLost):
        loops.run(run_id, "w", step, apply=lambda c, o: pytest.fail("applied"))
    assert keys(store, run_id) == ["submitted"]


@pytest.mark.parametrize("record", ["intent", "single"])
def test_a_lost_lease_is_found_before_apply(store, record) -> None:
    run_id = kernel_of(store, record=record).submit()

    def gate(context, observation) -> Verdict:
        take_over(store)
        return Verdict("allow")

    loops = kernel_of(store, record=record, gates=[gate])
    with pytest.raises(LeaseLost):
        loops.run(run_id, "w", rewards(0.5), apply=lambda c, o: pytest.fail("applied"))


def test_a_worker_that_dies_every_time_is_stopped(store) -> None:
    loops = kernel_of(store)
    run_id = loops.submit()
    for _ in range(worker.CLAIMS_MAX):
        assert store.claim(run_id, "dies") is not None
        store._here().held.clear()
    report = loops.run(run_id, "w", lambda c: pytest.fail("stepped"))
    assert (report.status, report.stopped_reason) == ("failed", "crash_loop")


# --- fork -----------------------------------------------------------------------------------------


def test_a_fork_goes_on_from_a_generation_with_its_parents_seeds(store) -> None:
    seeds: dict[str, list[int]] = {}

    def step(context) -> LoopObservation:
        seeds.setdefault(context.run_id, []).append(context.seed)
        return LoopObservation(reward=context.generation / 10)

    loops = kernel_of(store)
    parent = run(loops, step)
    longer = msgspec.structs.replace(loops.config, max_generations=6)
    child = loops.fork(parent.run_id, 1, config=longer)
    other = loops.fork(parent.run_id, 1, reseed=True)
    report = loops.run(child, "w", step)
    loops.run(other, "w", step)
    assert [g.generation for g in report.generations] == [0, 1, 2, 3, 4, 5]
    assert report.generations[:2] == parent.generations[:2]
    assert seeds[child][:2] == seeds[parent.run_id][2:]
    assert seeds[other][0] != seeds[parent.run_id][2]
    assert loops.report(parent.run_id) == parent


def test_a_fork_that_has_nothing_left_to_do_ends_at_once(store) -> None:
    loops = kernel_of(store)
    parent = run(loops, rewards(0.1, 0.2, 0.3, 0.4))
    child = loops.fork(parent.run_id, 3)
    report = loops.run(child, "w", lambda c: pytest.fail("stepped"))
    assert (report.status, report.stopped_reason) == ("completed", "max_generations")


# --- the decision log -----------------------------------------------------------------------------


def test_the_log_has_one_row_per_generation_with_deterministic_ids(store, tmp_path) -> None:
    log = DecisionLog(tmp_path / "decisions.sqlite3")
    loops = kernel_of(store, log=log)
    report = run(loops, rewards(0.1, 0.3, 0.2, NAN))
    rows = log.rows(report.run_id)
    assert [row.id for row in rows] == [f"{report.run_id}:generation:{n}" for n in range(4)]
    assert {row.kind for row in rows} == {"loop"}
    assert [row.decision for row in rows] == [g.to_dict() for g in report.generations]
    again = store.get(report.run_id, "generation:0").event
    assert not log.record(report.run_id, again), "a replay is a no-op"
    with pytest.raises(Conflict):
        log.record(report.run_id, msgspec.structs.replace(again, applied=True))
    log.close()


def test_rows_that_a_crash_has_left_out_are_logged_when_the_run_goes_on(store, tmp_path) -> None:
    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        if point == "loop.after_generation":
            raise Crash

    log = DecisionLog(tmp_path / "decisions.sqlite3")
    run_id = kernel_of(store).submit()
    with contextlib.suppress(Crash):
        kernel_of(store, log=log, fault=crash).run(run_id, "w", rewards(0.1, 0.3, 0.2, 0.4))
    assert log.rows(run_id) == []
    kernel_of(store, log=log).run(run_id, "w", rewards(0.1, 0.3, 0.2, 0.4))
    assert [row.generation for row in log.rows(run_id)] == [0, 1, 2, 3]
    log.close()


# --- tasks ----------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_tasks_run_many_loops_side_by_side(store, kind) -> None:
    async def astep(context) -> LoopObservation:
        await anyio.lowlevel.checkpoint()
        return LoopObservation(reward=context.generation, artifact_id="x")

    def step(context) -> LoopObservation:
        return LoopObservation(reward=context.generation, artifact_id="x")

    applied: list[str] = []

    async def apply(context, observation) -> None:
        applied.append(context.run_id)

    loops = kernel_of(store)
    reports = {}

    async def one(run_id: str) -> None:
        chosen = astep if kind == "coroutine" else step
        reports[run_id] = await loops.arun(run_id, "w", chosen, apply=apply)

    runs = [loops.submit() for _ in range(20)]
    async with anyio.create_task_group() as tasks:
        for run_id in runs:
            tasks.start_soon(one, run_id)
    assert {run_id: actions(reports[run_id]) for run_id in runs} == {
        r: ["accept"] * 4 for r in runs
    }
    assert sorted(applied) == sorted(runs * 4)


@pytest.mark.anyio
async def test_errors_of_a_task_are_those_of_a_call(store) -> None:
    loops = kernel_of(store, step_attempts=1)
    with pytest.raises(RunNotFound):
        await loops.arun("nowhere", "w", rewards(0.1))

    async def broken(context) -> LoopObservation:
        raise OSError("no")

    report = await loops.arun(loops.submit(), "w", broken)
    assert report.status == "running"
    assert [f.error for f in events(store, report.run_id, StepFailed)] == ["OSError"]
    assert store.head(report.run_id).owner is None, "it can be called again"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_a_cancelled_task_ends_its_step_and_leaves_the_run_free(store, kind) -> None:
    loops = kernel_of(store)
    run_id = loops.submit()
    stepping, ended = anyio.Event(), []

    async def astep(context) -> LoopObservation:
        stepping.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("coroutine")
        raise AssertionError

    def step(context) -> LoopObservation:
        anyio.from_thread.run_sync(stepping.set)
        pause = threading.Event()
        while not context.cancelled:
            pause.wait(0.005)
        ended.append("function")
        raise InterruptedError

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loops.arun, run_id, "w", astep if kind == "coroutine" else step)
        with anyio.fail_after(30):
            await stepping.wait()
        tasks.cancel_scope.cancel()
    assert ended == [kind]
    assert store.head(run_id).owner is None
    assert keys(store, run_id) == ["submitted"]
    report = loops.run(run_id, "w", rewards(0.1, 0.2, 0.3, 0.4))
    assert report.terminal


def test_a_worker_of_many_generations_keeps_no_thread_afterwards(store) -> None:
    before = threading.active_count()
    run(kernel_of(store), rewards(0.1, 0.2, 0.3, 0.4))
    waiting = threading.Event()
    for _ in range(2_000):
        if threading.active_count() <= before:
            break
        waiting.wait(0.01)
    assert threading.active_count() <= before


def test_a_long_step_keeps_its_lease(store) -> None:
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=1), lease_ms=300)
    original, renewed = store.renew, []

    def renew(lease):
        renewed.append(lease.token)
        return original(lease)

    store.renew = renew

    def step(context) -> LoopObservation:
        deadline = time.monotonic() + 30
        while len(renewed) < 3:
            assert time.monotonic() < deadline
        return LoopObservation(reward=0.5)

    assert loops.run(loops.submit(), "w", step).terminal
    assert set(renewed) == {1}
