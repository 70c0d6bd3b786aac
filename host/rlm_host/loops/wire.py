"""What is said on the wire about loops, made of what the kernel and its stores say. Pure."""

from collections.abc import Sequence

import msgspec

from rlm_protocol import loop as wire
from rlm_protocol.loop_records import ObservationRecord, decode_config, to_number

from .audit import LogRow
from .context import LoopContext
from .inputs import LoopObservation
from .report import LoopGeneration, ReportPage
from .stores.base import RunRow

RECENT = 16
"""Generations that a step outside the process is told of."""


def run_of(row: RunRow) -> wire.Run:
    """Give a run as its head says."""
    accepted = row.head.accepted
    return wire.Run(
        run_id=row.run_id,
        tenant=row.tenant,
        workspace=row.workspace,
        status=row.status,
        generation=row.head.generation,
        max_generations=_max_generations(row.config),
        best_reward=row.head.best,
        best_artifact_id=accepted.artifact_id if accepted else None,
        stopped_reason=row.reason,
        cost=row.head.cost,
    )


def _max_generations(config: bytes) -> int | None:
    try:
        return decode_config(config).max_generations
    except msgspec.DecodeError:
        return None


def report_of(page: ReportPage) -> wire.LoopReportResult:
    """Give a page of a report."""
    return wire.LoopReportResult(
        run=run_of(page.run),
        generations=tuple(map(generation_of, page.generations)),
        next_after=page.next_after,
        provenance=page.provenance,
        claims=tuple(
            wire.LoopClaim(
                token=claim.token,
                worker=claim.worker,
                at_ms=claim.at_ms,
                provenance=claim.provenance,
            )
            for claim in page.claims
        ),
    )


def decisions_of(rows: Sequence[LogRow], *, limit: int) -> wire.LoopDecisionsResult:
    """Give a page of the decision log; a full page may be followed by another."""
    return wire.LoopDecisionsResult(
        decisions=tuple(
            wire.LoopDecision(
                id=row.id,
                kind=row.kind,
                run_id=row.run_id,
                generation=row.generation,
                decision=row.decision,
            )
            for row in rows
        ),
        next_after=rows[-1].position if len(rows) == limit else None,
    )


def generation_of(generation: LoopGeneration) -> wire.LoopGeneration:
    """Give one generation."""
    return wire.LoopGeneration(
        generation=generation.generation,
        action=generation.action,
        reason=generation.reason,
        reward=to_number(generation.reward),
        gain=None if generation.gain is None else to_number(generation.gain),
        cost=to_number(generation.cost),
        artifact_id=generation.artifact_id,
        stop=generation.stop,
        applied=generation.applied,
        span_id=generation.span_id,
    )


def context_of(context: LoopContext) -> wire.StepContext:
    """Give what a step outside the process is told."""
    accepted = context.accepted
    return wire.StepContext(
        run_id=context.run_id,
        generation=context.generation,
        token=context.token,
        attempt=context.attempt,
        seed=context.seed,
        budget_scale=context.budget_scale,
        best_reward=context.best,
        best_artifact_id=accepted.artifact_id if accepted else None,
        recent=tuple(map(generation_of, context.history[-RECENT:])),
    )


def observation_of(seen: wire.StepObservation) -> LoopObservation:
    """Give the observation that a step outside the process has made."""
    return LoopObservation.from_record(ObservationRecord(**msgspec.structs.asdict(seen)))


def to_wire(observation: LoopObservation) -> wire.StepObservation:
    """Give an observation as an apply outside the process is told it."""
    return wire.StepObservation(**msgspec.structs.asdict(observation.to_record()))
