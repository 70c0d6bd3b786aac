"""The order of a run's generations under one lease: step, gates, decision, apply, record."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rlm_protocol import limits
from rlm_protocol.errors import LeaseLost, StoreUnavailable, TooLarge
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import (
    Completed,
    Controlled,
    Event,
    GateVerdict,
    GenerationDone,
    Head,
    Intent,
    LoopConfig,
    ObservationRecord,
    Phase,
    StepFailed,
)

from .audit import DecisionLog
from .calls import Logic, StoreCall, UserCall
from .compute import ComputeController
from .context import History, LoopContext
from .controller import RSIController, exhausted
from .inputs import LoopObservation, Verdict
from .leases import Hold
from .report import LoopGeneration
from .seed import step_seed
from .stores.base import Appended, RunRow, RunStore
from .stores.group_commit import Fault
from .telemetry import GenerationSpan, NoSpan, RSITelemetry

_UNTRACED = contextlib.nullcontext(NoSpan())
CLAIMS_MAX = 5
"""Workers that may die in a row without recording anything, before the run is failed."""
ERROR_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a kernel gives to all of its runs."""

    store: RunStore
    gates: Sequence[tuple[str, Callable[..., Any]]]
    decision_log: DecisionLog | None
    telemetry: RSITelemetry | None
    compute: ComputeController | None
    on_generation: Callable[[RunRow, LoopGeneration], None] | None
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a caller of `run` gives: the functions of one run."""

    step: Callable[..., Any]
    apply: Callable[..., Any] | None
    rollback: Callable[..., Any] | None

    def carrying_out(self, action: str) -> tuple[Phase, Callable[..., Any] | None]:
        """Give what an action calls for."""
        return ("apply", self.apply) if action == "accept" else ("rollback", self.rollback)


class Worker:
    """
    One run under one lease, from wherever it stands until it ends or must be left.

    `logic` is a generator of calls (see `calls`). Once it has returned or raised, `ended` says
    whether the lease has ended with a recorded status; else it is the caller's to release.
    """

    def __init__(
        self,
        around: Surroundings,
        hold: Hold,
        config: LoopConfig,
        seed_root: str,
        work: Work,
    ) -> None:
        self._around = around
        self._store = around.store
        self._hold = hold
        self._lease = hold.lease
        self._config = config
        self._seed_root = seed_root
        self._work = work
        self._controller = RSIController(config, hold.lease.row.head)
        self._status: RunStatus = hold.lease.row.status
        self._reason = hold.lease.row.reason
        self._deaths = hold.lease.row.claims - 1
        self.ended = False

    @property
    def _head(self) -> Head:
        return self._controller.head

    def logic(self) -> Logic[None]:
        """
        Work until the run is terminal or paused, or its step has failed too often for now.

        Raises:
            LeaseLost: another worker has the run.
            RlmError: the store or the decision log cannot be written.
        """
        yield from self._catch_up_log()
        if self._deaths >= CLAIMS_MAX:
            yield from self._finish("failed", "crash_loop")
            return
        key = f"intent:{self._head.generation}"
        pending = yield StoreCall(lambda: self._store.get(self._lease.run_id, key))
        if pending is not None:
            # It was decided before a crash: not measured again, not judged again.
            with self._span() as span:
                yield from self._carry_out(pending.event, span)
        while not self.ended and (yield from self._may_go_on()):
            with self._span() as span:
                decided = yield from self._decide(span)
                if decided is None:
                    return
                yield from self._carry_out(decided, span)

    # --- one generation -----------------------------------------------------------------------

    def _may_go_on(self) -> Logic[bool]:
        """Act, between generations, on what operators want and on limits that are reached."""
        if self._hold.lost:
            raise LeaseLost(run_id=self._lease.run_id, token=self._lease.token)
        cancel, pause = self._hold.cancel_reason, self._hold.control.pause
        if cancel is not None:
            asked = Controlled(action="cancel", reason=cancel)
            yield from self._finish("cancelled", cancel, asked)
        elif pause is not None:
            asked = Controlled(action="pause", reason=pause)
            yield from self._append([asked], status="paused", reason=pause)
        elif (reason := exhausted(self._config, self._head)) is not None:
            yield from self._finish("completed", reason)
        return not self.ended

    def _decide(self, span: GenerationSpan) -> Logic[Intent | None]:
        """Measure and judge one candidate; None when the run has ended or must be left for now."""
        for _ in range(self._config.step_attempts):
            context = self._context(self._head.step_failures)
            self._around.fault("loop.before_step")
            started_s = time.monotonic()
            try:
                seen = yield UserCall(self._work.step, (context,))
                seen, record = observed(seen, started_s)
            except Exception as why:
                yield from self._fail("step", why, context, started_s, span)
            else:
                self._around.fault("loop.after_step")
                if self._hold.cancel_reason is None:
                    break
                # Nothing more is applied after a cancel, but what the step cost is kept.
                unjudged = InterruptedError("cancelled before the candidate was judged")
                yield from self._fail("step", unjudged, context, started_s, span)
            if not (yield from self._may_go_on()):
                return None
        else:
            return None
        verdicts = yield from self._judge(context, seen)
        self._around.fault("loop.after_gates")
        decision = self._controller.decide(seen, verdicts, charged=context.charged)
        decided = Intent(
            generation=context.generation,
            decision=decision,
            verdicts=verdicts,
            observation=record,
        )
        if decision.action in ("accept", "rollback"):
            if self._config.record == "intent":
                yield from self._append([decided])
                self._around.fault("loop.after_intent")
            else:
                yield from self._make_sure_it_is_ours()
        return decided

    def _judge(self, context: LoopContext, seen: LoopObservation) -> Logic[tuple[GateVerdict, ...]]:
        verdicts = []
        for name, gate in self._around.gates:
            try:
                verdicts.append(judge(name, said=(yield UserCall(gate, (context, seen)))))
            except Exception as why:
                verdicts.append(judge(name, error=why))
        return tuple(verdicts)

    def _carry_out(self, decided: Intent, span: GenerationSpan) -> Logic[None]:
        """Do what was decided, then record the generation, whatever the decision was."""
        applied, cost = False, 0.0
        if decided.decision.action in ("accept", "rollback"):
            phase, function = self._work.carrying_out(decided.decision.action)
            if function is not None:
                done = yield from self._apply(phase, function, decided, span)
                if done is None:
                    yield from self._finish("failed", f"{phase}_failed")
                    return
                applied, cost = True, done.charged
        self._around.fault("loop.after_apply")
        event = GenerationDone(
            generation=decided.generation,
            decision=decided.decision,
            applied=applied,
            apply_cost=cost,
            span_id=span.id,
            verdicts=decided.verdicts,
            observation=decided.observation,
        )
        if event.decision.stop is None:
            yield from self._append([event])
        else:
            yield from self._finish("completed", event.decision.stop, event)
        self._around.fault("loop.after_generation")
        span.done(event)
        log = self._around.decision_log
        if log is not None:
            yield StoreCall(lambda: log.record(self._lease.run_id, event))
        if self._around.on_generation is not None:
            self._around.on_generation(self._row(), LoopGeneration.from_event(event))

    def _apply(
        self, phase: Phase, function: Callable[..., Any], decided: Intent, span: GenerationSpan
    ) -> Logic[LoopContext | None]:
        """Call apply or rollback until it returns; None when it has failed too often."""
        while self._head.apply_failures < self._config.step_attempts:
            context = self._context(self._head.apply_failures)
            if phase == "apply":
                what: Any = LoopObservation.from_record(decided.observation)
            else:
                what = self._head.live[-2] if len(self._head.live) > 1 else None
            started_s = time.monotonic()
            if self._hold.due:  # it may have slept since it was told that the run is its own
                yield StoreCall(self._hold.check)
            try:
                yield UserCall(function, (context, what))
                return context
            except Exception as why:
                yield from self._fail(phase, why, context, started_s, span)
        return None

    # --- recording ----------------------------------------------------------------------------

    def _fail(
        self,
        phase: Phase,
        why: Exception,
        context: LoopContext,
        started_s: float,
        span: GenerationSpan,
    ) -> Logic[None]:
        """Record a failed attempt and what it cost. The store refuses it if the lease is lost."""
        span.failed(phase, why)
        failed = StepFailed(
            generation=context.generation,
            phase=phase,
            attempt=context.attempt,
            error=type(why).__name__,
            message=words_of(why),
            cost=context.charged,
            elapsed_ms=_elapsed_ms(started_s) if phase == "step" else 0.0,
        )
        yield from self._append([failed])

    def _finish(self, status: RunStatus, reason: str, *events: Event) -> Logic[None]:
        assert status in ("completed", "cancelled", "failed")
        last = Completed(status=status, reason=reason)
        yield from self._append([*events, last], status=status, reason=reason)

    def _append(
        self, events: Sequence[Event], *, status: RunStatus = "running", reason: str | None = None
    ) -> Logic[None]:
        for event in events:
            head = self._controller.advance(event)
        append = StoreCall(
            lambda: self._store.append(self._lease, events, head, status=status, reason=reason)
        )
        try:
            appended: Appended = yield append
        except StoreUnavailable:
            appended = yield append  # whether the first one is there, this one finds out
        self._hold.confirm(appended.control)
        self._status, self._reason = status, reason
        self._deaths = 0
        self.ended = status != "running"

    def _catch_up_log(self) -> Logic[None]:
        """Log what was recorded, but not logged, before a crash."""
        log, run_id = self._around.decision_log, self._lease.run_id
        if log is None:
            return
        first = yield StoreCall(lambda: log.next_generation(run_id))
        for n in range(first, self._head.generation):
            row = yield StoreCall(lambda n=n: self._store.get(run_id, f"generation:{n}"))  # type: ignore[misc]
            yield StoreCall(lambda row=row: log.record(run_id, row.event))  # type: ignore[misc]

    def _row(self) -> RunRow:
        """Give the run as it was last written."""
        return msgspec.structs.replace(
            self._lease.row, head=self._head, status=self._status, reason=self._reason
        )

    # --- the lease ----------------------------------------------------------------------------

    def _make_sure_it_is_ours(self) -> Logic[None]:
        """Look, without a write, whether another worker has the run."""
        row = yield StoreCall(lambda: self._store.head(self._lease.run_id))
        if row.token != self._lease.token:
            raise LeaseLost(run_id=self._lease.run_id, token=self._lease.token)

    # --- what the caller's functions see ------------------------------------------------------

    def _context(self, failures: int) -> LoopContext:
        head, lease = self._head, self._lease
        return LoopContext(
            run_id=lease.run_id,
            tenant=self._config.tenant,
            workspace=self._config.workspace,
            generation=head.generation,
            token=lease.token,
            attempt=failures + self._deaths + 1,
            seed=step_seed(self._config.seed, self._seed_root, head.generation),
            budget_scale=head.budget_scale,
            best=head.best,
            accepted=head.accepted,
            deferred=head.deferred,
            history=History(self._store, lease.run_id, head.generation),
            compute=self._around.compute,
            _hold=self._hold,
        )

    def _span(self) -> contextlib.AbstractContextManager[GenerationSpan]:
        if self._around.telemetry is None:
            return _UNTRACED
        return self._around.telemetry.generation(
            self._lease.run_id, self._head.generation, self._lease.token
        )


def _elapsed_ms(started_s: float) -> float:
    return (time.monotonic() - started_s) * 1000


def observed(seen: object, started_s: float) -> tuple[LoopObservation, ObservationRecord]:
    """
    Give what a step returned, with the time it took, and the form of it that is recorded.

    Raises:
        TypeError: it is no observation, or its evidence no JSON value.
        TooLarge: it is too large to record.
    """
    if not isinstance(seen, LoopObservation):
        raise TypeError(f"the step gave {type(seen).__name__}, not a LoopObservation")
    if seen.elapsed_ms is None:
        seen = msgspec.structs.replace(seen, elapsed_ms=_elapsed_ms(started_s))
    record = seen.to_record()
    size = len(msgspec.json.encode(record))
    if size > limits.RESULT_BYTES:
        raise TooLarge(
            "The observation is too large to record.", size_bytes=size, limit=limits.RESULT_BYTES
        )
    return seen, record


def words_of(why: BaseException) -> str:
    """Give an error's words as they can be recorded: its class may fail, or give no text."""
    try:
        words = str(why)
    except Exception as failed:
        words = f"<its text could not be made: {type(failed).__name__}>"
    return _text(words[:ERROR_CHARS])


def _text(words: str) -> str:
    return words.encode("utf-8", "replace").decode()


def judge(gate: str, said: object = None, *, error: Exception | None = None) -> GateVerdict:
    """
    Give what a gate said as it is recorded; one that raised has said `error`.

    Raises:
        TypeError: the gate gave no Verdict.
    """
    if error is not None:
        note = f"{type(error).__name__}: {words_of(error)}"[:ERROR_CHARS]
        return GateVerdict(gate=gate, verdict="error", note=note)
    if not isinstance(said, Verdict):
        raise TypeError(f"the gate gave {type(said).__name__}, not a Verdict")
    return GateVerdict(gate=gate, verdict=said.kind, note=said.note and _text(said.note))
