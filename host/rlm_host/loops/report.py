"""What a run has done so far, for people and programs."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from rlm_protocol.errors import StoreCorrupt
from rlm_protocol.loop import Provenance, RunStatus
from rlm_protocol.loop_records import (
    TERMINAL,
    Action,
    Claimed,
    GenerationDone,
    Head,
    Submitted,
    to_float,
    to_number,
)

from .head import fold
from .stores.base import EventRow, RunReader, RunRow
from .stores.rows import submitted_in


def _plain(value: Any) -> Any:
    return to_number(value) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopGeneration:
    """
    One complete generation as it was recorded (seed: loop kernel, Reporting and recovery).

    `reward` may be NaN. `gain` is the reward less the best before it, None before the first accept.
    `cost` is what was charged. `stop` is why the run ended here, or None. `applied` says whether an
    apply or rollback callable was called for it.
    """

    generation: int
    action: Action
    reason: str
    reward: float
    gain: float | None
    cost: float
    artifact_id: str | None
    stop: str | None
    applied: bool
    span_id: str | None

    @classmethod
    def from_event(cls, event: GenerationDone) -> "LoopGeneration":
        """Give the generation that was recorded."""
        decision = event.decision
        return cls(
            generation=event.generation,
            action=decision.action,
            reason=decision.reason,
            reward=to_float(event.observation.reward),
            gain=None if decision.gain is None else to_float(decision.gain),
            cost=decision.cost + event.apply_cost,
            artifact_id=event.observation.artifact_id,
            stop=decision.stop,
            applied=event.applied,
            span_id=event.span_id,
        )

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON object; numbers that are not finite are 'nan', 'inf' or '-inf'."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopClaim:
    """A worker that took the run, and with what code. `at_ms` is wall clock."""

    token: int
    worker: str
    at_ms: int
    provenance: Provenance

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON object."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {"provenance": msgspec.structs.asdict(self.provenance)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """
    One run as it stands, with all its complete generations in order.

    `provenance` is of its submission, `claims` are the workers that took it, in order.

    `best_reward` and `best_artifact_id` are of the live artifact: None before the first accept.
    `stopped_reason` is None while the run goes on; of a paused run it is the reason of the pause.
    `cost` (unit of the observations) and `elapsed_ms` include failed attempts.
    """

    run_id: str
    status: RunStatus
    stopped_reason: str | None
    best_reward: float | None
    best_artifact_id: str | None
    cost: float
    elapsed_ms: float
    provenance: Provenance | None
    claims: list[LoopClaim]
    generations: list[LoopGeneration]

    @property
    def terminal(self) -> bool:
        """Whether the run is over for good: completed, cancelled or failed."""
        return self.status in TERMINAL

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON object with the same names."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        plain["terminal"] = self.terminal
        if self.provenance is not None:
            plain["provenance"] = msgspec.structs.asdict(self.provenance)
        plain["claims"] = [claim.to_dict() for claim in self.claims]
        plain["generations"] = [generation.to_dict() for generation in self.generations]
        return plain


def read_report(store: RunReader, run_id: str) -> LoopReport:
    """
    Rebuild a run from its events. Calls neither gates nor `decide`.

    Raises:
        RunNotFound: there is no such run.
        StoreCorrupt: an event is damaged or missing, or the head does not follow from the events.
    """
    row = store.head(run_id)
    head, told = Head(), _Told()
    for recorded in read_events(store, run_id, until=row.seq):
        head = fold(head, recorded.event)
        told.add(recorded)
    if head != row.head:
        raise StoreCorrupt(
            f"The head of run {run_id} does not follow from its events.", run_id=run_id
        )
    accepted = head.accepted
    return LoopReport(
        run_id=run_id,
        status=row.status,
        stopped_reason=row.reason,
        best_reward=head.best,
        best_artifact_id=accepted.artifact_id if accepted else None,
        cost=head.cost,
        elapsed_ms=head.elapsed_ms,
        provenance=told.provenance,
        claims=told.claims,
        generations=told.generations,
    )


class _Told:
    """What events tell people of, in order."""

    def __init__(self) -> None:
        self.provenance: Provenance | None = None
        self.claims: list[LoopClaim] = []
        self.generations: list[LoopGeneration] = []

    def add(self, row: EventRow) -> None:
        match row.event:
            case Submitted():
                self.provenance = row.event.provenance
            case Claimed(worker=worker, provenance=provenance):
                claim = LoopClaim(
                    token=row.token, worker=worker, at_ms=row.at_ms, provenance=provenance
                )
                self.claims.append(claim)
            case GenerationDone():
                self.generations.append(LoopGeneration.from_event(row.event))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """A part of a report; `next_after` is None when it is the last."""

    run: RunRow
    provenance: Provenance | None
    claims: list[LoopClaim]
    generations: list[LoopGeneration]
    next_after: int | None


def read_page(store: RunReader, run_id: str, *, after: int = -1, limit: int) -> ReportPage:
    """
    Read at most `limit` generations that come after one, and nothing before them.

    Its claims are those after that one and before the page's last generation; on the last page, all
    that are left.

    Raises:
        RunNotFound, StoreCorrupt: as the store says.
    """
    run = store.head(run_id)
    told, next_after, seq = _Told(), None, 0
    if after >= 0:
        last = store.get(run_id, f"generation:{after}")
        seq = run.seq if last is None else last.seq
    for recorded in read_events(store, run_id, after=seq, until=run.seq):
        told.add(recorded)
        if len(told.generations) == limit < run.head.generation - after - 1:
            next_after = told.generations[-1].generation
            break
    return ReportPage(
        run=run,
        provenance=submission(store, run_id).provenance,
        claims=told.claims,
        generations=told.generations,
        next_after=next_after,
    )


def submission(store: RunReader, run_id: str) -> Submitted:
    """Give what a run began with. Raises RunNotFound, or StoreCorrupt: it is damaged."""
    return submitted_in(store.get(run_id, "submitted"))


def read_events(store: RunReader, run_id: str, *, after: int = 0, until: int) -> Iterator[EventRow]:
    """Read the events with `after < seq <= until`, a page at a time."""
    while after < until:
        page = store.events(run_id, after=after)
        if not page:
            raise StoreCorrupt(
                f"Run {run_id} has lost its events after {after}.", run_id=run_id, expected=until
            )
        yield from (row for row in page if row.seq <= until)
        after = page[-1].seq
