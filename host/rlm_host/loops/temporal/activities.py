"""What a Temporal worker does for runs: their steps, gates, applies and rollbacks."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from temporalio import activity

from rlm_protocol import loop_temporal as wire
from rlm_protocol.errors import LeaseLost
from rlm_protocol.loop_records import GenerationDone

from ..audit import DecisionLog
from ..compute import ComputeController
from ..context import History, LoopContext
from ..inputs import LoopObservation
from ..seed import step_seed
from ..stores.base import RunReader
from ..worker import Work, judge, observed, words_of

Gates = Sequence[tuple[str, Callable[..., Any]]]
TOKENS = 1_000
"""Fencing tokens of one activity: the attempts that Temporal may make at it."""


class ActivityHold:
    """An attempt as the caller's function sees it: `cancelled` once its worker is to end it."""

    def __init__(self, run_id: str, token: int) -> None:
        self._run_id, self._token = run_id, token
        self.cancelled = False

    def check(self) -> None:
        """Raise LeaseLost once the attempt is to end. The heartbeat is sent by itself."""
        if self.cancelled:
            raise LeaseLost(run_id=self._run_id, token=self._token)


class LoopActivities:
    """
    The activities of one worker.

    Args:
        work_for: gives the functions of a run from its submission.
        gates: named gates, asked for every candidate.
        history: where `context.history` reads from.
        decision_log: gets a row for each generation.
    """

    def __init__(
        self,
        work_for: Callable[[wire.Told], Work],
        gates: Gates,
        history: RunReader,
        *,
        decision_log: DecisionLog | None = None,
        compute: ComputeController | None = None,
    ) -> None:
        self._work_for = work_for
        self._gates = gates
        self._history = history
        self._log = decision_log
        self._compute = compute

    def all(self) -> list[Callable[..., Any]]:
        """Give what a worker is to offer."""
        return [self.step, self.gates, self.apply, self.rollback, self.record]

    @activity.defn(name=wire.STEP)
    async def step(self, given: dict[str, Any]) -> Any:
        """Make and measure one candidate."""
        told = msgspec.convert(given, wire.Told)
        async with self._context(told, told.head.step_failures) as (context, hold):
            started_s = time.monotonic()
            try:
                step = self._work_for(told).step
                _, record = observed(await _call(hold, step, context), started_s)
            except Exception as why:
                return _result(_failure(why, context, started_s))
            return _result(wire.Seen(observation=record, charged=context.charged))

    @activity.defn(name=wire.GATES)
    async def gates(self, given: dict[str, Any]) -> Any:
        """Ask every gate."""
        told = msgspec.convert(given, wire.Told)
        assert told.observation is not None, "the gates judge an observation"
        seen = LoopObservation.from_record(told.observation)
        async with self._context(told, told.head.step_failures) as (context, hold):
            verdicts = []
            for name, gate in self._gates:
                try:
                    verdicts.append(judge(name, said=await _call(hold, gate, context, seen)))
                except Exception as why:
                    verdicts.append(judge(name, error=why))
            return _result(wire.Said(verdicts=tuple(verdicts)))

    @activity.defn(name=wire.APPLY)
    async def apply(self, given: dict[str, Any]) -> Any:
        """Make an accepted artifact live."""
        return await self._carry_out(given)

    @activity.defn(name=wire.ROLLBACK)
    async def rollback(self, given: dict[str, Any]) -> Any:
        """Make the artifact before the live one live again."""
        return await self._carry_out(given)

    @activity.defn(name=wire.RECORD)
    async def record(self, given: dict[str, Any]) -> None:
        """Log what was decided; the events themselves are durable as this activity's input."""
        told = msgspec.convert(given, wire.Recorded)
        log = self._log
        if log is None:
            return
        async with _beating():
            for event in told.events:
                if isinstance(event, GenerationDone):
                    await anyio.to_thread.run_sync(log.record, told.run_id, event)

    async def _carry_out(self, given: dict[str, Any]) -> Any:
        told = msgspec.convert(given, wire.Told)
        assert told.intent is not None, "what is carried out was decided"
        action, live = told.intent.decision.action, told.head.live
        _, function = self._work_for(told).carrying_out(action)
        if function is None:
            return _result(wire.Seen())
        what: Any = live[-2] if len(live) > 1 else None
        if action == "accept":
            what = LoopObservation.from_record(told.intent.observation)
        async with self._context(told, told.head.apply_failures) as (context, hold):
            started_s = time.monotonic()
            try:
                await _call(hold, function, context, what)
            except Exception as why:
                return _result(_failure(why, context, started_s))
            return _result(wire.Seen(applied=True, charged=context.charged))

    @contextlib.asynccontextmanager
    async def _context(
        self, told: wire.Told, failures: int
    ) -> AsyncIterator[tuple[LoopContext, ActivityHold]]:
        """Give what a function is told, and say that it is alive as long as it works."""
        attempt = activity.info().attempt
        hold = ActivityHold(told.run_id, token := told.token * TOKENS + attempt)
        config, head = told.submitted.config, told.head
        context = LoopContext(
            run_id=told.run_id,
            tenant=config.tenant,
            workspace=config.workspace,
            generation=head.generation,
            token=token,
            attempt=failures + attempt,
            seed=step_seed(config.seed, told.submitted.seed_root, head.generation),
            budget_scale=head.budget_scale,
            best=head.best,
            accepted=head.accepted,
            deferred=head.deferred,
            history=History(self._history, told.run_id, head.generation),
            compute=self._compute,
            _hold=hold,
        )
        async with _beating():
            yield context, hold


@contextlib.asynccontextmanager
async def _beating() -> AsyncIterator[None]:
    """Say that the activity is alive as long as the block lasts."""
    patience = activity.info().heartbeat_timeout
    assert patience is not None, "the workflow sets one for each of its activities"
    beating = asyncio.create_task(_beat(patience.total_seconds() / 3))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


async def _beat(every_s: float) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(every_s)


async def _call(hold: ActivityHold, function: Callable[..., Any], *given: Any) -> Any:
    """Await a coroutine function; run any other in a thread, and do not end before it has."""
    if inspect.iscoroutinefunction(function):
        return await function(*given)
    thread = asyncio.ensure_future(asyncio.to_thread(function, *given))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        hold.cancelled = True
        await asyncio.shield(asyncio.wait([thread]))
        thread.cancelled() or thread.exception()  # seen: nobody else will look at it
        raise


def _failure(why: Exception, context: LoopContext, started_s: float) -> wire.Seen:
    return wire.Seen(
        charged=context.charged,
        elapsed_ms=(time.monotonic() - started_s) * 1000,
        error=type(why).__name__,
        message=words_of(why),
    )


def _result(part: msgspec.Struct) -> Any:
    return msgspec.to_builtins(part)
