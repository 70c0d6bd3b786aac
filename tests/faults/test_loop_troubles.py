"""Rows of the crash table that need no dead process, on both stores of our own."""

import contextlib
import math
import threading
import time

import pytest

from rlm_host.loops.inputs import LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.report import read_report
from rlm_protocol.errors import RunNotFound, StoreUnavailable
from rlm_protocol.loop_records import LoopConfig, StepFailed
from support.crash_table import crash
from support.loop_stores import generation, head_after, its_store, own_store, submitted

__all__ = ["its_store", "own_store"]


def kernel_of(store, lease_ms: int = 30_000, **config) -> LoopKernel:
    values = {"max_generations": 4, **config}
    return LoopKernel(store, LoopConfig("t", "w", **values), lease_ms=lease_ms)


@crash("C11")
def test_c11_a_renewal_that_fails_loses_nothing_by_itself(store) -> None:
    """Only the time of the lease, without a renewal, asks the step to end; then the token decides."""
    loops = kernel_of(store, 100, max_generations=1)

    def renew(lease):
        raise StoreUnavailable("for now")

    store.renew = renew

    def step(context) -> LoopObservation:
        deadline = time.monotonic() + 30
        while not context.cancelled:
            assert time.monotonic() < deadline
        return LoopObservation(reward=0.5)

    report = loops.run(loops.submit(), "w", step)
    assert [g.action for g in report.generations] == ["accept"]


@crash("C22")
def test_c22_every_attempt_that_raises_is_an_event_and_run_can_be_called_again(store) -> None:
    loops = kernel_of(store, max_generations=1, step_attempts=2)
    run_id = loops.submit()

    def step(context) -> LoopObservation:
        if context.token == 1:
            raise OSError("not today")
        return LoopObservation(reward=0.5)

    report = loops.run(run_id, "w", step)
    assert (report.status, report.terminal) == ("running", False)
    assert store.head(run_id).owner is None
    failed = [e.event for e in store.events(run_id) if isinstance(e.event, StepFailed)]
    assert [(e.attempt, e.error) for e in failed] == [(1, "OSError"), (2, "OSError")]
    assert loops.run(run_id, "w", step).terminal


@crash("C23")
@pytest.mark.parametrize("wrong", [0.7, None, {"reward": 1.0}, True])
def test_c23_a_step_of_the_wrong_type_is_a_recorded_failure_never_a_zero(store, wrong) -> None:
    loops = kernel_of(store, step_attempts=1)
    report = loops.run(loops.submit(), "w", lambda context: wrong)
    last = store.events(report.run_id)[-1].event
    assert (report.status, report.generations, last.error) == ("running", [], "TypeError")


@crash("C23")
def test_c23_nan_is_a_rejected_measurement(store) -> None:
    loops = kernel_of(store, max_generations=1)
    report = loops.run(loops.submit(), "w", lambda context: LoopObservation(reward=math.nan))
    assert [(g.action, g.reason) for g in report.generations] == [("reject", "invalid_observation")]
    assert report.best_reward is None


@crash("C26")
def test_c26_a_commit_whose_outcome_is_unknown_is_looked_up_by_repeating_it(store) -> None:
    original, failed = store.append, []

    def append(*arguments, **named):
        appended = original(*arguments, **named)
        if not failed:
            failed.append(True)
            raise StoreUnavailable("the answer to the commit was lost")
        return appended

    store.append = append
    loops = kernel_of(store)
    report = loops.run(
        loops.submit(), "w", lambda context: LoopObservation(reward=float(context.generation))
    )
    assert failed == [True]
    assert [g.action for g in report.generations] == ["accept"] * 4


# --- prune ----------------------------------------------------------------------------------------

LONG = 450
"""Three pages of events."""


def long_run(store) -> None:
    """Make a run of several pages that is over."""
    store.submit("run", submitted(max_generations=1_000))
    lease, events = store.claim("run", "w"), [generation(n) for n in range(LONG)]
    store.append(lease, events, head_after(*events))
    store.release(lease)
    store.request("run", "cancel", "enough")


@crash("C29")
def test_c29_a_run_that_is_pruned_between_two_pages_is_gone_and_not_half_there(
    under_test, store
) -> None:
    long_run(store)
    pages, original, other = [], store.events, under_test.another()

    def events(run_id: str, **which):
        if pages:
            assert other.prune(before_ms=2**60) == 1
        pages.append(original(run_id, **which))
        return pages[-1]

    store.events = events
    with pytest.raises(RunNotFound):
        read_report(store, "run")
    assert len(pages) == 1


@crash("C29")
def test_c29_whoever_reads_while_a_run_is_pruned_sees_all_of_it_or_nothing(
    under_test, store
) -> None:
    long_run(store)
    seen: list[object] = []
    reading, gone = threading.Barrier(2), threading.Event()

    def read(mine) -> None:
        reading.wait(30)
        with contextlib.suppress(RunNotFound):
            while True:
                seen.append(len(read_report(mine, "run").generations))
        gone.set()

    reader = threading.Thread(target=read, args=(under_test.another(),))
    reader.start()
    reading.wait(30)
    assert store.prune(before_ms=2**60) == 1
    reader.join(30)
    assert gone.is_set()
    assert set(seen) <= {LONG}


# --- time -----------------------------------------------------------------------------------------


@crash("C30")
def test_c30_downtime_is_not_charged_to_the_time_budget(under_test, store) -> None:
    loops = kernel_of(store, max_generations=9, time_budget_s=1.0)
    run_id = loops.submit()

    def step(context) -> LoopObservation:
        if context.generation == 1 and context.token == 1:
            raise KeyboardInterrupt
        return LoopObservation(reward=context.generation, elapsed_ms=400)

    with pytest.raises(KeyboardInterrupt):
        loops.run(run_id, "w", step)
    under_test.expire_leases()  # hours pass
    report = loops.run(run_id, "w", step)
    assert (report.stopped_reason, report.elapsed_ms) == ("time_budget", 1200.0)
