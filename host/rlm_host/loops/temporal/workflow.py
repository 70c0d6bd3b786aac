"""
One run as a Temporal workflow. Runs in the SDK's sandbox: no clock, no IO, no randomness here.

What the workflow decides is durable as the input of the activity that it schedules next: a decision
to accept as the input of `apply`, a complete generation as the input of `record`.
"""

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    import msgspec

    from rlm_protocol import loop_temporal as wire
    from rlm_protocol.loop import RunStatus
    from rlm_protocol.loop_records import (
        Completed,
        Controlled,
        Event,
        GenerationDone,
        Head,
        Intent,
        Phase,
        StepFailed,
    )

    from ..controller import decide, exhausted
    from ..head import fold
    from ..inputs import LoopObservation

T = TypeVar("T")
STATUS = SearchAttributeKey.for_keyword("RlmLoopStatus")


@workflow.defn(name=wire.WORKFLOW)
class LoopWorkflow:
    """A run from wherever it stands to its end, with one execution for a bounded part of it."""

    @workflow.init
    def __init__(self, begin: dict[str, Any]) -> None:
        self._begin = msgspec.convert(begin, wire.Begin)
        self._head = self._begin.head
        self._seq, self._token = self._begin.seq, self._begin.token
        self._status: RunStatus = self._begin.status
        self._cancel, self._pause = self._begin.cancel, self._begin.pause
        self._ended = False
        self._poked = False

    @workflow.signal
    def cancel(self, reason: str) -> None:
        """Ask for the end of the run; the first reason is kept."""
        self._cancel = self._cancel or reason

    @workflow.signal
    def pause(self, reason: str) -> None:
        """Ask that the run rests after the generation it is in."""
        self._pause = self._pause or reason

    @workflow.signal
    def resume(self, reason: str) -> None:
        """Let a paused run go on, and one that waits after failures try again at once."""
        self._pause = None
        self._poked = True

    @workflow.query
    def head(self) -> dict[str, Any]:
        """Give the fold of all events, as JSON."""
        told: dict[str, Any] = msgspec.to_builtins(self._head)
        return told

    @workflow.run
    async def run(self, begin: dict[str, Any]) -> str:
        """Work until the run ends; give its status."""
        first = self._head.generation
        while await self._may_go_on():
            grown = self._head.generation - first >= self._begin.settings.generations
            if grown or workflow.info().is_continue_as_new_suggested():
                self._continue()
            decided = await self._decide()
            if decided is not None:
                await self._carry_out(decided)
        return self._status

    def _continue(self) -> None:
        begin = msgspec.structs.replace(
            self._begin,
            head=self._head,
            seq=self._seq,
            token=self._token,
            status=self._status,
            cancel=self._cancel,
            pause=self._pause,
            created_at_ms=self._begin.created_at_ms
            or int(workflow.info().start_time.timestamp() * 1000),
        )
        workflow.continue_as_new(msgspec.to_builtins(begin))

    async def _may_go_on(self) -> bool:
        """Act, between generations, on what operators want and on limits that are reached."""
        if not self._ended and self._cancel is None and self._pause is not None:
            asked = Controlled(action="pause", reason=self._pause)
            await self._record("paused", asked)
            await workflow.wait_condition(lambda: self._pause is None or self._cancel is not None)
            if self._cancel is None:
                await self._record("running", Controlled(action="resume", reason="resumed"))
        if not self._ended and self._cancel is not None:
            asked = Controlled(action="cancel", reason=self._cancel)
            await self._finish("cancelled", self._cancel, asked)
        elif not self._ended and (reason := exhausted(self._begin.submitted.config, self._head)):
            await self._finish("completed", reason)
        return not self._ended

    async def _decide(self) -> Intent | None:
        """Measure and judge one candidate; None when there is nothing to carry out."""
        config = self._begin.submitted.config
        for _ in range(config.step_attempts):
            seen = await self._call(wire.STEP, wire.Seen, self._told())
            if seen is None:
                return None
            if seen.observation is None:
                await self._failed("step", seen)
            elif self._cancel is None:
                break
            else:
                error, message = "InterruptedError", "cancelled before the candidate was judged"
                await self._failed(
                    "step", msgspec.structs.replace(seen, error=error, message=message)
                )
            if self._cancel is not None or self._pause is not None:
                return None
        else:
            await self._rest()
            return None
        told = msgspec.structs.replace(self._told(), observation=seen.observation)
        said = await self._call(wire.GATES, wire.Said, told)
        if said is None:
            return None
        return Intent(
            generation=self._head.generation,
            decision=decide(
                config,
                self._head,
                LoopObservation.from_record(seen.observation),
                said.verdicts,
                charged=seen.charged,
            ),
            verdicts=said.verdicts,
            observation=seen.observation,
        )

    async def _carry_out(self, decided: Intent) -> None:
        """Do what was decided, a cancel notwithstanding, then record the generation."""
        applied, cost = False, 0.0
        if decided.decision.action in ("accept", "rollback"):
            self._seq += 1
            accepting = decided.decision.action == "accept"
            name, phase = (wire.APPLY if accepting else wire.ROLLBACK), decided.decision.action
            while True:
                told = msgspec.structs.replace(self._told(), intent=decided)
                done = await self._call(name, wire.Seen, told, to_the_end=True)
                if done is None:
                    return
                if done.error is None:
                    applied, cost = done.applied, done.charged
                    break
                await self._failed("apply" if accepting else "rollback", done)
                if self._head.apply_failures >= self._begin.submitted.config.step_attempts:
                    await self._finish("failed", f"{'apply' if accepting else phase}_failed")
                    return
        event = GenerationDone(
            generation=decided.generation,
            decision=decided.decision,
            applied=applied,
            apply_cost=cost,
            span_id=None,
            verdicts=decided.verdicts,
            observation=decided.observation,
        )
        if event.decision.stop is None:
            await self._record("running", event)
        else:
            await self._finish("completed", event.decision.stop, event)

    async def _rest(self) -> None:
        """Wait, after too many failures of a step, for time to pass or somebody to ask."""
        self._poked = False
        pause = timedelta(milliseconds=self._begin.settings.pause_ms)
        try:
            await workflow.wait_condition(
                lambda: self._poked or self._cancel is not None or self._pause is not None,
                timeout=pause,
            )
        except TimeoutError:
            return

    async def _failed(self, phase: Phase, seen: wire.Seen) -> None:
        failures = self._head.step_failures if phase == "step" else self._head.apply_failures
        failed = StepFailed(
            generation=self._head.generation,
            phase=phase,
            attempt=failures + 1,
            error=seen.error or "",
            message=seen.message,
            cost=seen.charged,
            elapsed_ms=seen.elapsed_ms if phase == "step" else 0.0,
        )
        await self._record("running", failed)

    async def _finish(self, status: RunStatus, reason: str, *events: Event) -> None:
        assert status in ("completed", "cancelled", "failed")
        self._ended = True
        await self._record(status, *events, Completed(status=status, reason=reason))

    async def _record(self, status: RunStatus, *events: Event) -> None:
        head: Head = self._head
        for event in events:
            head = fold(head, event)
        told = wire.Recorded(run_id=self._begin.run_id, token=self._token, events=events)
        self._token += 1
        self._head, self._seq = head, self._seq + len(events)
        if status != self._status:
            self._status = status
            workflow.upsert_search_attributes([STATUS.value_set(status)])
        await workflow.execute_activity(
            wire.RECORD,
            msgspec.to_builtins(told),
            start_to_close_timeout=timedelta(minutes=1),
            heartbeat_timeout=timedelta(milliseconds=self._begin.settings.heartbeat_ms),
        )

    def _told(self) -> wire.Told:
        self._token += 1
        return wire.Told(
            run_id=self._begin.run_id,
            submitted=self._begin.submitted,
            head=self._head,
            token=self._token,
        )

    async def _call(
        self, name: str, kind: type[T], told: wire.Told, *, to_the_end: bool = False
    ) -> T | None:
        """
        Have something done by a worker, again when that one has died.

        Gives None when it was cancelled, or when so many have died that the run has failed.
        """
        settings = self._begin.settings
        doing = workflow.start_activity(
            name,
            msgspec.to_builtins(told),
            result_type=dict,
            start_to_close_timeout=timedelta(milliseconds=settings.step_timeout_ms),
            heartbeat_timeout=timedelta(milliseconds=settings.heartbeat_ms),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=100), maximum_attempts=settings.deaths
            ),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        if not to_the_end:
            await workflow.wait_condition(lambda: doing.done() or self._cancel is not None)
            if not doing.done():
                doing.cancel()
        try:
            return msgspec.convert(await doing, kind)
        except ActivityError:
            if self._cancel is None or to_the_end:
                await self._finish("failed", "crash_loop")
            return None
        except asyncio.CancelledError:
            if self._cancel is None:
                raise
            return None
