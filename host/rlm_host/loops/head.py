"""The fold of a run's events. Pure: it calls neither gates nor `decide`."""

from collections.abc import Iterable

import msgspec

from rlm_protocol.errors import StoreCorrupt
from rlm_protocol.loop_records import (
    Accepted,
    Decision,
    Deferred,
    Event,
    GenerationDone,
    Head,
    ObservationRecord,
    StepFailed,
    to_float,
)

LIVE_KEPT = 16
"""Accepted artifacts a run can be rolled back through."""
DEFERRED_KEPT = 16
"""Deferred candidates that are shown to the next step."""


def fold(head: Head, event: Event) -> Head:
    """
    Give the head after one more event.

    Raises:
        StoreCorrupt: a generation follows that is not the next one.
    """
    match event:
        case GenerationDone(generation=n) if n != head.generation:
            raise StoreCorrupt(
                "A generation is missing from the run's history.", expected=head.generation, found=n
            )
        case GenerationDone():
            return _after_generation(head, event)
        case StepFailed(phase="step"):
            head = msgspec.structs.replace(head, step_failures=head.step_failures + 1)
        case StepFailed():
            head = msgspec.structs.replace(head, apply_failures=head.apply_failures + 1)
        case _:
            return head
    return msgspec.structs.replace(
        head, cost=head.cost + event.cost, elapsed_ms=head.elapsed_ms + event.elapsed_ms
    )


def fold_all(events: Iterable[Event], head: Head | None = None) -> Head:
    """Give the head after all these events, in order."""
    head = head or Head()
    for event in events:
        head = fold(head, event)
    return head


def _after_generation(head: Head, event: GenerationDone) -> Head:
    decision, observation = event.decision, event.observation
    accepted = decision.action == "accept"
    deferred = decision.action == "defer"
    return Head(
        generation=event.generation + 1,
        live=_live(head.live, event.generation, decision, observation),
        cost=head.cost + decision.cost + event.apply_cost,
        elapsed_ms=head.elapsed_ms + decision.elapsed_ms,
        stalled=stalled_after(head.stalled, decision.action),
        defers=head.defers + 1 if deferred else 0,
        deferred=_deferred(head, event) if deferred else (),
        budget_scale=decision.budget_scale,
        accepts=head.accepts + accepted,
    )


def stalled_after(stalled: int, action: str) -> int:
    """Give the count of generations without an accept; a deferred one does not count."""
    if action == "accept":
        return 0
    return stalled + (action in ("reject", "rollback"))


def _live(
    live: tuple[Accepted, ...], generation: int, decision: Decision, observation: ObservationRecord
) -> tuple[Accepted, ...]:
    if decision.action == "rollback":
        return live[:-1]
    if decision.action != "accept":
        return live
    newest = Accepted(
        generation=generation,
        reward=to_float(observation.reward),
        artifact_id=observation.artifact_id,
    )
    return (*live, newest)[-LIVE_KEPT:]


def _deferred(head: Head, event: GenerationDone) -> tuple[Deferred, ...]:
    newest = Deferred(
        generation=event.generation,
        reward=event.observation.reward,
        artifact_id=event.observation.artifact_id,
    )
    return (*head.deferred, newest)[-DEFERRED_KEPT:]
