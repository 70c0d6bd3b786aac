"""
What a run store keeps of a durable loop: its configuration, its events and their fold, the head.

A store keeps JSON, which has no NaN and no infinity, so a measured number that is not finite is one
of the strings `nan`, `inf`, `-inf` (`Number`). Unknown fields are ignored; a store of a newer
schema is refused before a record is read.
"""

import math
from typing import Any, Literal

import msgspec

from .loop import Number, Provenance, RunStatus, Step

Action = Literal["accept", "reject", "defer", "rollback", "stop"]
VerdictKind = Literal["allow", "defer", "error", "rollback", "deny", "stop"]
TERMINAL: frozenset[RunStatus] = frozenset({"completed", "cancelled", "failed"})
Phase = Literal["step", "apply", "rollback"]


def to_number(value: float) -> Number:
    """Give a float as it is stored."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def to_float(stored: Number) -> float:
    """Give a stored number as the float it was."""
    return float(stored)


# --- configuration --------------------------------------------------------------------------------


class _Scope(msgspec.Struct, frozen=True):
    """Whose run it is. The only fields of a configuration that may be given by position."""

    tenant: str
    workspace: str


class LoopConfig(_Scope, frozen=True, kw_only=True):
    """
    When a loop stops, what it accepts and how it is recorded (seed: loop kernel).

    The configuration of a run is stored with it and never changes. Constructing one checks nothing;
    `LoopKernel.submit` refuses a value out of range with its name and range.

    Args:
        tenant, workspace: whose run it is; a listing can be narrowed to them.
        max_generations: generations after which the loop ends, at most.
        target: a reward; accepting one at least as high ends the loop.
        cost_budget: what all generations together may cost, in the unit of the observations.
        time_budget_s: seconds that all steps together may run; downtime is not charged.
        patience: generations in a row without an accept (deferred ones not counted) that end it.
        risk_limit: candidates with a higher risk are rejected, or end the loop (`on_risk`).
        min_gain: an improvement of no more than this is no improvement.
        rollback_drop: the live artifact is rolled back when its re-measured reward has fallen
            by more than this below the best.
        max_defers: deferred generations in a row before the candidate is rejected.
        step_attempts: failed attempts of one generation before `run` gives up for now.
        seed: root of the generations' seeds.
        record: `intent` records an accept or rollback before it is carried out as well as after;
            `single` keeps the one event after it (and may repeat a step whose apply has happened).
    """

    max_generations: int
    target: float | None = None
    cost_budget: float | None = None
    time_budget_s: float | None = None
    patience: int | None = None
    risk_limit: float | None = None
    on_risk: Literal["reject", "stop"] = "reject"
    min_gain: float = 0.0
    rollback_drop: float | None = None
    max_defers: int = 3
    step_attempts: int = 3
    seed: int = 0
    record: Literal["intent", "single"] = "intent"


# --- parts of events ------------------------------------------------------------------------------


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is stored."""


class GateVerdict(_Record, frozen=True):
    """What one gate said about one candidate. `error`: the gate itself failed."""

    gate: str
    verdict: VerdictKind
    note: str | None = None


class ObservationRecord(_Record, frozen=True):
    """What a step measured. `evidence` is any JSON value; it comes last, for a fold skips it."""

    reward: Number
    cost: Number | None = None
    risk: Number | None = None
    live_reward: Number | None = None
    elapsed_ms: Number | None = None
    artifact_id: str | None = None
    evidence: Any = None


class Decision(_Record, frozen=True):
    """
    What was decided about one candidate, and what it is charged.

    `row` is the row of the decision table that fitted; `stop` is why the run ends here, if it does,
    and `also` lists the other reasons that held. `gain` is the reward less the best before it.
    `cost` (unit of the observations) and `elapsed_ms` are added to the run's budgets.
    `budget_scale` is advice to the next step: how much of its usual effort to spend.
    """

    row: str
    action: Action
    reason: str
    stop: str | None
    also: tuple[str, ...]
    gain: Number | None
    cost: float
    elapsed_ms: float
    budget_scale: float
    policy_version: int


class Accepted(_Record, frozen=True):
    """An accepted artifact: which generation brought it and with what reward."""

    generation: int
    reward: float
    artifact_id: str | None


class Deferred(_Record, frozen=True):
    """A candidate that could not be judged yet. The next step may measure it again."""

    generation: int
    reward: Number
    artifact_id: str | None


class Head(_Record, frozen=True):
    """
    Everything a restart needs: the fold of all events of a run, of bounded size.

    `generation` is the next one to run. `live` is the stack of accepted artifacts, the live one
    last. `step_failures` and `apply_failures` count failed attempts of this generation. `cost` and
    `elapsed_ms` are all that was charged. `stalled` counts generations without an accept, `defers`
    those deferred in a row, `accepts` all accepted ones.
    """

    generation: int = 0
    live: tuple[Accepted, ...] = ()
    cost: float = 0.0
    elapsed_ms: float = 0.0
    stalled: int = 0
    defers: int = 0
    deferred: tuple[Deferred, ...] = ()
    budget_scale: float = 1.0
    step_failures: int = 0
    apply_failures: int = 0
    accepts: int = 0

    @property
    def accepted(self) -> Accepted | None:
        """The live artifact, or None before the first accept."""
        return self.live[-1] if self.live else None

    @property
    def best(self) -> float | None:
        """The reward of the live artifact, or None before the first accept."""
        return self.live[-1].reward if self.live else None


# --- events ---------------------------------------------------------------------------------------


class _Event(_Record, frozen=True, tag_field="kind"):
    """Base of events. The tag is the event's kind."""


class Steps(_Record, frozen=True):
    """How a host runs the functions of a run, after a restart too."""

    step: Step
    apply: Step | None = None
    rollback: Step | None = None


class Submitted(_Event, frozen=True, tag="submitted"):
    """
    The first event. `seed_root` is the run id that seeds are made from: a fork keeps its parent's.

    `steps` is None when only the submitter's process can run them. `provenance` is the submitter's
    and makes the run no other one.
    """

    config: LoopConfig
    seed_root: str
    parent: str | None = None
    forked_at: int | None = None
    steps: Steps | None = None
    provenance: Provenance | None = None


class Claimed(_Event, frozen=True, tag="claimed"):
    """A worker has taken the run, with this code. Written in the claim's own transaction."""

    worker: str
    provenance: Provenance


class StepFailed(_Event, frozen=True, tag="step_failed"):
    """One attempt that gave no observation, or one apply or rollback that raised."""

    generation: int
    phase: Phase
    attempt: int
    error: str
    message: str
    cost: float
    elapsed_ms: float


class Intent(_Event, frozen=True, tag="intent"):
    """What is about to be applied or rolled back. After a crash it is carried out, not decided."""

    generation: int
    decision: Decision
    verdicts: tuple[GateVerdict, ...]
    observation: ObservationRecord


class GenerationDone(_Event, frozen=True, tag="step"):
    """
    A complete generation: written after apply or rollback has returned.

    `applied` says whether an apply or rollback callable was called for it, `apply_cost` what it
    has charged beyond the decision's cost.
    """

    generation: int
    decision: Decision
    applied: bool
    span_id: str | None
    verdicts: tuple[GateVerdict, ...]
    observation: ObservationRecord
    apply_cost: float = 0.0


class Controlled(_Event, frozen=True, tag="control"):
    """An operator's request that was acted on."""

    action: Literal["cancel", "pause", "resume"]
    reason: str | None


class Completed(_Event, frozen=True, tag="completed"):
    """The last event of a run: status and reason only (seed: Completion)."""

    status: Literal["completed", "cancelled", "failed"]
    reason: str


Event = Submitted | Claimed | StepFailed | Intent | GenerationDone | Controlled | Completed


def key_of(event: Event, token: int) -> str:
    """
    Give the key under which an event is stored once in its run.

    `token` tells attempts and requests of different leases apart.
    """
    match event:
        case GenerationDone(generation=n):
            return f"generation:{n}"
        case Intent(generation=n):
            return f"intent:{n}"
        case StepFailed(generation=n, phase=phase, attempt=k):
            suffix = "" if phase == "step" else f":{phase}"
            return f"step_failed:{n}:{token}:{k}{suffix}"
        case Claimed():
            return f"claim:{token}"
        case Controlled(action=action):
            return f"control:{token}:{action}"
        case _:
            return type(event).__struct_config__.tag  # type: ignore[return-value]


_encoder = msgspec.json.Encoder(order="deterministic")
_events = msgspec.json.Decoder(Event)
_heads = msgspec.json.Decoder(Head)
_configs = msgspec.json.Decoder(LoopConfig)


def encode(record: Event | Head | LoopConfig) -> bytes:
    """Give the stored form; equal records give equal bytes."""
    return _encoder.encode(record)


def decode_event(body: bytes) -> Event:
    """Read an event. Raises msgspec.DecodeError: the bytes are no event."""
    return _events.decode(body)


def decode_head(body: bytes) -> Head:
    """Read a head. Raises msgspec.DecodeError: the bytes are no head."""
    return _heads.decode(body)


def decode_config(body: bytes) -> LoopConfig:
    """Read a configuration. Raises msgspec.DecodeError: a value is missing or of another type."""
    return _configs.decode(body)


# --- a run outside a store ------------------------------------------------------------------------


class ExportedRun(_Record, frozen=True, tag_field="line", tag="run"):
    """The first line of an exported run. `config` is the stored form as it is."""

    version: int
    run_id: str
    parent: str | None
    status: RunStatus
    reason: str | None
    cancel: str | None
    pause: str | None
    token: int
    created_at_ms: int
    updated_at_ms: int
    config: msgspec.Raw


class ExportedEvent(_Record, frozen=True, tag_field="line", tag="event"):
    """One event of an exported run, in order."""

    seq: int
    key: str
    token: int
    at_ms: int
    event: Event


class ExportEnd(_Record, frozen=True, tag_field="line", tag="end"):
    """The last line: `digest` is BLAKE2b (32 bytes, hexadecimal) of all lines before it."""

    digest: str


ExportLine = ExportedRun | ExportedEvent | ExportEnd
EXPORT_VERSION = 1
_export_lines = msgspec.json.Decoder(ExportLine)


def encode_line(line: ExportLine) -> bytes:
    """Give a line of an export, with its newline."""
    return _encoder.encode(line) + b"\n"


def decode_line(line: bytes) -> ExportLine:
    """Read a line of an export. Raises msgspec.DecodeError: the bytes are none."""
    return _export_lines.decode(line)
