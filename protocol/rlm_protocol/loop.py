"""Durable loops on the wire. Non-finite numbers are the strings 'nan', 'inf' and '-inf'."""

from typing import Annotated, Any, Literal

import msgspec

from .base import AtMs, Count, Id, IdempotencyKey, Notification, PageSize, Params, Result, Text

RunStatus = Literal["running", "paused", "completed", "cancelled", "failed"]
Number = float | Literal["nan", "inf", "-inf"]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class CommandStep(Params, frozen=True, tag_field="kind", tag="command"):
    """
    An external command: the context as JSON on stdin, the observation as its last stdout line.

    It runs in a session of its own; on cancel or timeout its whole process tree is ended.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] | None = None
    timeout_ms: Count | None = None


class ClientStep(Params, frozen=True, tag_field="kind", tag="client"):
    """The attached client, by the host's requests `loop/step` and `loop/apply`."""

    timeout_ms: Count | None = None


class ReplStep(Params, frozen=True, tag_field="kind", tag="repl"):
    """A cell in a session's kernel; `context` is bound, `observation` is read back."""

    session_id: Id
    code: str
    timeout_ms: Count | None = None


class AgentStep(Params, frozen=True, tag_field="kind", tag="agent"):
    """A turn of an agent session, scored by a verifier cell."""

    session_id: Id
    prompt: str
    verify: str
    timeout_ms: Count | None = None


Step = CommandStep | ClientStep | ReplStep | AgentStep


class LoopConfigParams(Params, frozen=True):
    """The seed's LoopConfig; out of range is refused at submit with the field's name and range."""

    tenant: Text
    workspace: Text
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


class LoopSubmitParams(Params, frozen=True):
    """Make a run durable. It moves with `loop/run`."""

    config: LoopConfigParams
    step: Step
    apply: Step | None = None
    rollback: Step | None = None
    run_id: Id | None = None
    idempotency_key: IdempotencyKey | None = None


class LoopRunParams(Params, frozen=True):
    """Continue a run in the background; answers at once."""

    run_id: Id
    idempotency_key: IdempotencyKey | None = None


class RunParams(Params, frozen=True):
    """Name one run."""

    run_id: Id


class RunControlParams(Params, frozen=True):
    """Cancel, pause or resume a run; the first reason is kept."""

    run_id: Id
    reason: str | None = None
    idempotency_key: IdempotencyKey | None = None


class LoopGeneration(Result, frozen=True):
    """One generation as it was recorded (seed: loop-kernel, Reporting and recovery)."""

    generation: int
    action: Literal["accept", "reject", "defer", "rollback", "stop"]
    reason: str
    reward: Number | None
    gain: Number | None
    cost: Number | None
    artifact_id: str | None
    stop: str | None
    applied: bool
    span_id: str | None = None


class Run(Result, frozen=True):
    """One run as its head says."""

    run_id: str
    tenant: str
    workspace: str
    status: RunStatus
    generation: int
    max_generations: int | None = None
    """Null only when this version cannot read the run's configuration."""
    best_reward: Number | None = None
    best_artifact_id: str | None = None
    stopped_reason: str | None = None
    cost: float = 0.0


class Provenance(Result, frozen=True):
    """
    What code a run was submitted or claimed with.

    `commit` is that of the Git working tree the code lies in, `dirty_digest` is of all that differs
    from it there (null: nothing does). Where `unknown` is not null, it says why they could not be
    read. `packages_digest` is of the names and versions of all installed distributions.
    """

    commit: str | None
    dirty_digest: str | None
    unknown: str | None
    interpreter: str
    packages_digest: str


class LoopClaim(Result, frozen=True):
    """A worker that took the run. Workers of Temporal take no runs and are not told of."""

    token: int
    worker: str
    at_ms: AtMs
    provenance: Provenance


class RunResult(Result, frozen=True):
    """One run."""

    run: Run


class LoopReportParams(Params, frozen=True):
    """Read a run's generations, a page at a time. Calls no gate."""

    run_id: Id
    after: int = -1
    limit: PageSize = 200


class LoopReportResult(Result, frozen=True):
    """
    `next_after` is null on the last page.

    `provenance` is of the submission; `claims` are those that came before the page's last
    generation and after the page before, on the last page all that are left.
    """

    run: Run
    generations: tuple[LoopGeneration, ...]
    next_after: int | None = None
    provenance: Provenance | None = None
    claims: tuple[LoopClaim, ...] = ()


class LoopDecisionsParams(Params, frozen=True):
    """Read the decision log in the order of its writing, of one run or of all, a page at a time."""

    run_id: Id | None = None
    after: Count = 0
    limit: PageSize = 200


class LoopDecision(Result, frozen=True):
    """One row (seed: loop-kernel, Audit); `id` is the same however often it was written."""

    id: str
    kind: str
    run_id: str
    generation: int
    decision: dict[str, Any]


class LoopDecisionsResult(Result, frozen=True):
    """`next_after` is null on the last page."""

    decisions: tuple[LoopDecision, ...]
    next_after: int | None = None


class LoopListParams(Params, frozen=True):
    """A page of runs, newest first."""

    tenant: str | None = None
    workspace: str | None = None
    status: RunStatus | None = None
    cursor: str | None = None
    limit: PageSize = 50


class LoopListResult(Result, frozen=True):
    """`next_cursor` is null on the last page."""

    runs: tuple[Run, ...]
    next_cursor: str | None = None


class LoopForkParams(Params, frozen=True):
    """Start a new run with the history of another up to and including `generation`."""

    run_id: Id
    generation: int
    new_run_id: Id | None = None
    idempotency_key: IdempotencyKey | None = None


class LoopSnapshotResult(Result, frozen=True):
    """The run's head."""

    head: dict[str, Any]


class StepContext(Result, frozen=True):
    """What a step, apply or rollback outside the process is told."""

    run_id: str
    generation: int
    token: int
    attempt: int
    seed: int
    budget_scale: float
    best_reward: Number | None = None
    best_artifact_id: str | None = None
    recent: tuple[LoopGeneration, ...] = ()
    """The last generations, at most 16; `loop/report` has them all."""


class StepObservation(Params, frozen=True):
    """What a step outside the process says."""

    reward: Number
    cost: Number | None = None
    risk: Number | None = None
    artifact_id: str | None = None
    evidence: Any = None
    live_reward: Number | None = None
    elapsed_ms: Number | None = None


class LoopStepRequest(Params, frozen=True):
    """Host -> client: run one step. Idempotent for (run, generation)."""

    context: StepContext


class LoopApplyRequest(Params, frozen=True):
    """Host -> client: make an accepted artifact live, or take it back. Idempotent."""

    context: StepContext
    observation: StepObservation
    action: Literal["apply", "rollback"] = "apply"


class LoopGenerationNotice(Notification, frozen=True):
    """A generation was recorded."""

    run_id: str
    generation: LoopGeneration
    run: Run


class LoopCompletedNotice(Notification, frozen=True):
    """`loop/run` ended: the run is terminal, paused, or can be continued."""

    run_id: str
    run: Run
    error: str | None = None
