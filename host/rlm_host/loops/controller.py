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
    gravest: GateVerdict | None

    def gate_says(self, *kinds: VerdictKind) -> bool:
        return self.gravest is not None and self.gravest.verdict in kinds

    def invalid(self) -> bool:
        seen, config = self.observation, self.config
        given = [n for n in (seen.cost, seen.risk, seen.elapsed_ms) if n is not None]
        if not all(map(math.isfinite, (seen.reward, *given))):
            return True
        if (seen.cost or 0) < 0 or (seen.elapsed_ms or 0) < 0:
            return True
        cost_unknown = config.cost_budget is not None and seen.cost is None and not self.charged
        return cost_unknown or (config.risk_limit is not None and seen.risk is None)

    def too_risky(self) -> bool:
        limit, risk = self.config.risk_limit, self.observation.risk
        return limit is not None and risk is not None and risk > limit

    def regressed(self) -> bool:
        drop, live, best = self.config.rollback_drop, self.observation.live_reward, self.head.best
        return drop is not None and live is not None and best is not None and live < best - drop

    def improved(self) -> bool:
        best = self.head.best
        return best is None or self.observation.reward - best > self.config.min_gain


class _Row(NamedTuple):
    name: str
    fits: Callable[[_Case], bool]
    action: Action
    reason: str


# The first row that fits decides. `{gate}` is the gate whose verdict was gravest.
TABLE = (
    _Row("D1", _Case.invalid, "reject", "invalid_observation"),
    _Row("D2", lambda c: c.gate_says("stop"), "stop", "gate_stop:{gate}"),
    _Row("D3", lambda c: c.too_risky() and c.config.on_risk == "stop", "stop", "risk_limit"),
    _Row("D4", _Case.too_risky, "reject", "risk_limit"),
    _Row("D5", lambda c: c.gate_says("deny"), "reject", "gate_denied:{gate}"),
    _Row(
        "D6", lambda c: c.gate_says("rollback") and bool(c.head.live), "rollback", "gate_rollback"
    ),
    _Row("D7", lambda c: c.gate_says("rollback"), "reject", "rollback_empty"),
    _Row("D8", _Case.regressed, "rollback", "live_regressed"),
    _Row(
        "D9",
        lambda c: c.gate_says("defer", "error") and c.head.defers >= c.config.max_defers,
        "reject",
        "defer_exhausted",
    ),
    _Row("D10", lambda c: c.gate_says("defer", "error"), "defer", "gate_unresolved:{gate}"),
    _Row("D11", _Case.improved, "accept", "improved"),
    _Row("D12", lambda c: True, "reject", "no_gain"),
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
    case = _Case(config, head, observation, charged, gravest(verdicts))
    row = next(row for row in TABLE if row.fits(case))
    cost = max(_countable(observation.cost), charged)
    elapsed_ms = _countable(observation.elapsed_ms)
    stops = _stops(case, row, head.cost + cost, head.elapsed_ms + elapsed_ms)
    known = row.name != "D1" and head.best is not None
    return Decision(
        row=row.name,
        action=row.action,
        reason=row.reason.format(gate=case.gravest.gate if case.gravest else ""),
        stop=stops[0] if stops else None,
        also=tuple(stops[1:]),
        gain=to_number(observation.reward - (head.best or 0.0)) if known else None,
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
    limits = {
        "cost_budget": config.cost_budget is not None and head.cost >= config.cost_budget,
        "time_budget": _time_is_up(config, head.elapsed_ms),
        "max_generations": head.generation >= config.max_generations,
        "patience": config.patience is not None and head.stalled >= config.patience,
    }
    return next((reason for reason, reached in limits.items() if reached), None)


def _countable(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0


def _time_is_up(config: LoopConfig, elapsed_ms: float) -> bool:
    return config.time_budget_s is not None and elapsed_ms >= config.time_budget_s * 1000


def _stops(case: _Case, row: _Row, cost: float, elapsed_ms: float) -> list[str]:
    """List the reasons to end the run here, the one that counts first."""
    config, head = case.config, case.head
    target = config.target
    stalled = stalled_after(head.stalled, row.action)
    reasons = {
        row.reason.partition(":")[0]: row.action == "stop",
        "target": row.action == "accept" and target is not None
        and case.observation.reward >= target,
        "cost_budget": config.cost_budget is not None and cost >= config.cost_budget,
        "time_budget": _time_is_up(config, elapsed_ms),
        "max_generations": head.generation + 1 >= config.max_generations,
        "patience": config.patience is not None and stalled >= config.patience,
    }  # fmt: skip
    return [reason for reason, holds in reasons.items() if holds]


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
