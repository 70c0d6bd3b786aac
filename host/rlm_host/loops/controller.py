"""
What a loop decides about one candidate: a first-match table. Pure.

No clock, no IO, no gate is called here: gates run before, in the kernel, and their verdicts are
data. Recorded decisions are read back (`RSIController.restore`), never decided again.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rlm_protocol.loop_records import (
    Action,
    Decision,
    Event,
    GateVerdict,
    Head,
    LoopConfig,
    VerdictKind,
    to_number,
)

from .head import fold, fold_all, stalled_after
from .inputs import SEVERITY, LoopObservation, check_config

POLICY_VERSION = 1
"""Stored in each decision: which version of the table below took it."""
SCALE_MIN = 0.25
SCALE_MAX = 1.0
"""A step is never advised to spend more than it usually does."""


class _Case(NamedTuple):
    config: LoopConfig
    head: Head
    observation: LoopObservation
    charged: float

    def always(self) -> bool:
        return True

    def invalid(self) -> bool:
        seen, config = self.observation, self.config
        cost, elapsed_ms = seen.cost or 0.0, seen.elapsed_ms or 0.0
        if not all(map(math.isfinite, (seen.reward, cost, seen.risk or 0.0, elapsed_ms))):
            return True
        if cost < 0 or elapsed_ms < 0:
            return True
        cost_unknown = config.cost_budget is not None and seen.cost is None and not self.charged
        return cost_unknown or (config.risk_limit is not None and seen.risk is None)

    def too_risky(self) -> bool:
        limit, risk = self.config.risk_limit, self.observation.risk
        return limit is not None and risk is not None and risk > limit

    def regressed(self) -> bool:
        drop, live, best = self.config.rollback_drop, self.observation.live_reward, self.head.best
        return drop is not None and live is not None and best is not None and live < best - drop

    def undecided_too_often(self) -> bool:
        return self.head.defers >= self.config.max_defers

    def improved(self) -> bool:
        best = self.head.best
        return best is None or self.observation.reward - best > self.config.min_gain


class _Row(NamedTuple):
    name: str
    fits: Callable[[_Case], bool]
    action: Action
    reason: str
    says: tuple[VerdictKind, ...] = ()
    """One of these must be the gravest verdict; none: any may be."""


_UNRESOLVED: tuple[VerdictKind, ...] = ("defer", "error")
# The first row that fits decides. `{gate}` is the gate whose verdict was gravest.
TABLE = (
    _Row("D1", _Case.invalid, "reject", "invalid_observation"),
    _Row("D2", _Case.always, "stop", "gate_stop:{gate}", says=("stop",)),
    _Row("D3", lambda c: c.too_risky() and c.config.on_risk == "stop", "stop", "risk_limit"),
    _Row("D4", _Case.too_risky, "reject", "risk_limit"),
    _Row("D5", _Case.always, "reject", "gate_denied:{gate}", says=("deny",)),
    _Row("D6", lambda c: bool(c.head.live), "rollback", "gate_rollback", says=("rollback",)),
    _Row("D7", _Case.always, "reject", "rollback_empty", says=("rollback",)),
    _Row("D8", _Case.regressed, "rollback", "live_regressed"),
    _Row("D9", _Case.undecided_too_often, "reject", "defer_exhausted", says=_UNRESOLVED),
    _Row("D10", _Case.always, "defer", "gate_unresolved:{gate}", says=_UNRESOLVED),
    _Row("D11", _Case.improved, "accept", "improved"),
    _Row("D12", _Case.always, "reject", "no_gain"),
)


def decide(
    config: LoopConfig,
    head: Head,
    observation: LoopObservation,
    verdicts: Sequence[GateVerdict] = (),
    *,
    charged: float = 0.0,
) -> Decision:
    """
    Decide about one candidate. The order of `verdicts` does not matter.

    `charged` is what the step has already charged; the generation costs at least that.
    """
    said = gravest(verdicts)
    case = _Case(config, head, observation, charged)
    verdict = "allow" if said is None else said.verdict
    row = next(row for row in TABLE if (not row.says or verdict in row.says) and row.fits(case))
    cost = max(_countable(observation.cost), charged)
    elapsed_ms = _countable(observation.elapsed_ms)
    stops = _stops(case, row, head.cost + cost, head.elapsed_ms + elapsed_ms)
    best = None if row.name == "D1" else head.best
    return Decision(
        row=row.name,
        action=row.action,
        reason=row.reason if said is None else row.reason.format(gate=said.gate),
        stop=stops[0] if stops else None,
        also=tuple(stops[1:]),
        gain=None if best is None else to_number(observation.reward - best),
        cost=cost,
        elapsed_ms=elapsed_ms,
        budget_scale=_budget_scale(case, row, head.cost + cost),
        policy_version=POLICY_VERSION,
    )


def gravest(verdicts: Sequence[GateVerdict]) -> GateVerdict | None:
    """Give the verdict that counts: the gravest, of equals the first by gate name."""
    return min(verdicts, key=lambda v: (-SEVERITY[v.verdict], v.gate), default=None)


def exhausted(config: LoopConfig, head: Head) -> str | None:
    """
    Give the reason why no further generation may start, or None.

    Failed attempts are charged without a decision, and a fork may bring a smaller configuration, so
    this is asked before every step.
    """
    reached = _limits_reached(config, head.cost, head.elapsed_ms, head.generation, head.stalled)
    return reached[0] if reached else None


def _countable(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0


def _limits_reached(
    config: LoopConfig, cost: float, elapsed_ms: float, generations: int, stalled: int
) -> list[str]:
    """List the limits that a run has reached with these sums, the one that counts first."""
    budget_s, patience = config.time_budget_s, config.patience
    reached = []
    if config.cost_budget is not None and cost >= config.cost_budget:
        reached.append("cost_budget")
    if budget_s is not None and elapsed_ms >= budget_s * 1000:
        reached.append("time_budget")
    if generations >= config.max_generations:
        reached.append("max_generations")
    if patience is not None and stalled >= patience:
        reached.append("patience")
    return reached


def _stops(case: _Case, row: _Row, cost: float, elapsed_ms: float) -> list[str]:
    """List the reasons to end the run here, the one that counts first."""
    head, target = case.head, case.config.target
    reasons = []
    if row.action == "stop":
        reasons.append(row.reason.partition(":")[0])
    elif row.action == "accept" and target is not None and case.observation.reward >= target:
        reasons.append("target")
    stalled = stalled_after(head.stalled, row.action)
    return reasons + _limits_reached(case.config, cost, elapsed_ms, head.generation + 1, stalled)


def _budget_scale(case: _Case, row: _Row, cost: float) -> float:
    scale = case.head.budget_scale
    match row.action:
        case "accept" | "rollback":
            scale = 1.0
        case "defer":
            scale *= 2
        case "reject":
            scale *= 0.5 if row.reason == "risk_limit" else 1.25
    scale = min(SCALE_MAX, max(SCALE_MIN, scale))
    budget, mean = case.config.cost_budget, cost / (case.head.generation + 1)
    if budget is not None and mean > 0:
        # Never plan a step that the rest of the budget cannot pay for.
        scale = min(scale, max(SCALE_MIN, (budget - cost) / mean))
    return scale


class RSIController:
    """
    One run's decisions: a configuration and the head they have led to.

    `decide` looks, `advance` and `restore` move the head by what was recorded.

    Raises:
        ConfigInvalid: the configuration has a value out of range.
    """

    def __init__(self, config: LoopConfig, head: Head | None = None) -> None:
        self.config = check_config(config)
        self.head = head or Head()

    def decide(
        self,
        observation: LoopObservation,
        verdicts: Sequence[GateVerdict] = (),
        *,
        charged: float = 0.0,
    ) -> Decision:
        """Decide about one candidate; the head stays as it is. See `decide` of this module."""
        return decide(self.config, self.head, observation, verdicts, charged=charged)

    def advance(self, event: Event) -> Head:
        """Take over one recorded event and give the new head."""
        self.head = fold(self.head, event)
        return self.head

    def restore(self, events: Iterable[Event]) -> Head:
        """
        Rebuild the head from the recorded events, from the first one on.

        Calls neither gates nor `decide`: a later change of the rules cannot change history.
        """
        self.head = fold_all(events)
        return self.head
