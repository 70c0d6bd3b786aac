import math

import msgspec
import pytest

from rlm_host.loops.controller import RSIController, decide, exhausted
from rlm_host.loops.inputs import LoopObservation, Verdict, check_config
from rlm_host.loops.seed import step_seed
from rlm_protocol.errors import ConfigInvalid, StoreCorrupt
from rlm_protocol.loop_records import (
    Accepted,
    GateVerdict,
    GenerationDone,
    Head,
    LoopConfig,
    StepFailed,
)

NAN = math.nan


def config(**values) -> LoopConfig:
    return LoopConfig("t", "w", **{"max_generations": 9, **values})


def head(*rewards: float, **values) -> Head:
    live = tuple(
        Accepted(generation=i, reward=r, artifact_id=f"a{i}") for i, r in enumerate(rewards)
    )
    return Head(**{"generation": len(rewards), "live": live, **values})


def gates(**said: str) -> tuple[GateVerdict, ...]:
    return tuple(GateVerdict(gate=name, verdict=verdict) for name, verdict in said.items())


@pytest.mark.parametrize(
    ("row", "before", "seen", "said", "limits", "action", "reason", "stop"),
    [
        ("D1", head(), dict(reward=NAN), {}, {}, "reject", "invalid_observation", None),
        ("D1", head(), dict(reward=1, cost=NAN), {}, {}, "reject", "invalid_observation", None),
        (
            "D1",
            head(),
            dict(reward=1, risk=-math.inf),
            {},
            {},
            "reject",
            "invalid_observation",
            None,
        ),
        (
            "D1",
            head(),
            dict(reward=1, elapsed_ms=NAN),
            {},
            {},
            "reject",
            "invalid_observation",
            None,
        ),
        ("D1", head(), dict(reward=1, cost=-1), {}, {}, "reject", "invalid_observation", None),
        (
            "D1",
            head(),
            dict(reward=1),
            {},
            dict(cost_budget=5),
            "reject",
            "invalid_observation",
            None,
        ),
        (
            "D1",
            head(),
            dict(reward=1),
            {},
            dict(risk_limit=1),
            "reject",
            "invalid_observation",
            None,
        ),
        ("D2", head(), dict(reward=1), dict(g="stop"), {}, "stop", "gate_stop:g", "gate_stop"),
        (
            "D3",
            head(),
            dict(reward=1, risk=2),
            {},
            dict(risk_limit=1, on_risk="stop"),
            "stop",
            "risk_limit",
            "risk_limit",
        ),
        (
            "D4",
            head(),
            dict(reward=1, risk=2),
            {},
            dict(risk_limit=1),
            "reject",
            "risk_limit",
            None,
        ),
        ("D5", head(), dict(reward=1), dict(g="deny"), {}, "reject", "gate_denied:g", None),
        (
            "D6",
            head(0.5),
            dict(reward=1),
            dict(g="rollback"),
            {},
            "rollback",
            "gate_rollback",
            None,
        ),
        ("D7", head(), dict(reward=1), dict(g="rollback"), {}, "reject", "rollback_empty", None),
        (
            "D8",
            head(0.5),
            dict(reward=1, live_reward=0.2),
            {},
            dict(rollback_drop=0.2),
            "rollback",
            "live_regressed",
            None,
        ),
        (
            "D9",
            head(defers=3),
            dict(reward=1),
            dict(g="defer"),
            {},
            "reject",
            "defer_exhausted",
            None,
        ),
        ("D10", head(), dict(reward=1), dict(g="defer"), {}, "defer", "gate_unresolved:g", None),
        ("D10", head(), dict(reward=1), dict(g="error"), {}, "defer", "gate_unresolved:g", None),
        ("D11", head(), dict(reward=-5), {}, {}, "accept", "improved", None),
        ("D11", head(0.5), dict(reward=0.6), dict(g="allow"), {}, "accept", "improved", None),
        ("D12", head(0.5), dict(reward=0.5), {}, {}, "reject", "no_gain", None),
        ("D12", head(0.5), dict(reward=0.6), {}, dict(min_gain=0.2), "reject", "no_gain", None),
    ],
)
def test_each_row_of_the_table(row, before, seen, said, limits, action, reason, stop) -> None:
    got = decide(config(**limits), before, LoopObservation(**seen), gates(**said))
    assert (got.row, got.action, got.reason, got.stop) == (row, action, reason, stop)


def test_a_finite_cost_is_charged_even_when_the_reward_is_unusable() -> None:
    got = decide(config(cost_budget=2), head(), LoopObservation(reward=NAN, cost=2.5))
    assert (got.row, got.cost, got.stop) == ("D1", 2.5, "cost_budget")


def test_a_charged_step_has_a_known_cost_and_never_costs_less_than_its_charge() -> None:
    limits = config(cost_budget=9)
    assert decide(limits, head(), LoopObservation(reward=1), charged=2.0).cost == 2.0
    assert decide(limits, head(), LoopObservation(reward=1, cost=0.5), charged=2.0).cost == 2.0
    assert decide(limits, head(), LoopObservation(reward=1, cost=3), charged=2.0).cost == 3.0


def test_the_gravest_gate_decides_and_ties_go_by_name() -> None:
    said = gates(z="deny", b="deny", a="rollback", c="allow")
    for order in (said, said[::-1]):
        assert (
            decide(config(), head(0.5), LoopObservation(reward=1), order).reason == "gate_denied:b"
        )


def test_of_several_reasons_to_stop_one_counts_and_the_others_are_kept() -> None:
    limits = config(max_generations=2, target=0.9, cost_budget=2, time_budget_s=1, patience=1)
    seen = LoopObservation(reward=0.95, cost=2, elapsed_ms=1000)
    got = decide(limits, head(0.5), seen)
    assert (got.stop, got.also) == ("target", ("cost_budget", "time_budget", "max_generations"))
    worse = decide(limits, head(0.5), LoopObservation(reward=0.1, cost=0))
    assert (worse.stop, worse.also) == ("max_generations", ("patience",))


@pytest.mark.parametrize(
    ("before", "seen", "said", "limits", "scale"),
    [
        (head(budget_scale=0.25), dict(reward=1), {}, {}, 1.0),
        (head(0.5, budget_scale=0.4), dict(reward=0), {}, {}, 0.5),
        (head(0.5, budget_scale=1.0), dict(reward=0), {}, {}, 1.0),
        (head(budget_scale=0.6), dict(reward=1, risk=2), {}, dict(risk_limit=1), 0.3),
        (head(budget_scale=0.3), dict(reward=1, risk=2), {}, dict(risk_limit=1), 0.25),
        (head(budget_scale=0.3), dict(reward=1), dict(g="defer"), {}, 0.6),
        (head(0.5, cost=1.0), dict(reward=1, cost=1.0), {}, dict(cost_budget=2.5), 0.5),
    ],
)
def test_the_next_step_is_advised_how_much_to_spend(before, seen, said, limits, scale) -> None:
    got = decide(config(**limits), before, LoopObservation(**seen), gates(**said))
    assert got.budget_scale == pytest.approx(scale)


def test_failed_attempts_alone_can_exhaust_a_budget() -> None:
    failure = StepFailed(
        generation=0, phase="step", attempt=1, error="E", message="", cost=3, elapsed_ms=0
    )
    controller = RSIController(config(cost_budget=3))
    assert exhausted(controller.config, controller.head) is None
    controller.advance(failure)
    assert exhausted(controller.config, controller.head) == "cost_budget"
    assert controller.head.generation == 0


def test_a_rollback_makes_the_artifact_before_it_live_again() -> None:
    controller = RSIController(config(rollback_drop=0.1))
    for n, seen in enumerate(
        [
            LoopObservation(reward=0.4, artifact_id="a"),
            LoopObservation(reward=0.6, artifact_id="b"),
            LoopObservation(reward=0.1, live_reward=0.2, artifact_id="c"),
        ]
    ):
        decision = controller.decide(seen)
        controller.advance(
            GenerationDone(
                generation=n,
                decision=decision,
                applied=False,
                span_id=None,
                verdicts=(),
                observation=seen.to_record(),
            )
        )
    assert decision.action == "rollback"
    assert controller.head.accepted == Accepted(generation=0, reward=0.4, artifact_id="a")


def test_a_history_with_a_hole_is_refused() -> None:
    seen = LoopObservation(reward=0.4)
    event = GenerationDone(
        generation=1,
        decision=decide(config(), head(), seen),
        applied=False,
        span_id=None,
        verdicts=(),
        observation=seen.to_record(),
    )
    with pytest.raises(StoreCorrupt):
        RSIController(config()).restore([event])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant", ""),
        ("tenant", "\ud800"),
        ("workspace", None),
        ("max_generations", 0),
        ("max_generations", None),
        ("max_generations", 2.5),
        ("max_generations", True),
        ("target", NAN),
        ("target", "0.9"),
        ("cost_budget", 0),
        ("cost_budget", math.inf),
        ("time_budget_s", -1),
        ("patience", 0),
        ("risk_limit", NAN),
        ("on_risk", "panic"),
        ("min_gain", -0.1),
        ("rollback_drop", NAN),
        ("max_defers", -1),
        ("step_attempts", 0),
        ("seed", 2**63),
        ("record", "double"),
    ],
)
def test_a_senseless_configuration_is_refused_by_name_and_range(field, value) -> None:
    broken = msgspec.structs.replace(config(), **{field: value})
    with pytest.raises(ConfigInvalid) as refused:
        check_config(broken)
    assert refused.value.data["field"] == field
    assert refused.value.data["allowed"] in str(refused.value)


def test_whole_numbers_become_the_floats_they_stand_for() -> None:
    assert isinstance(check_config(config(target=1)).target, float)


@pytest.mark.parametrize(
    "values",
    [
        dict(reward="0.5"),
        dict(reward=None),
        dict(reward=True),
        dict(reward=1, cost="2"),
        dict(reward=1, artifact_id=7),
    ],
)
def test_an_observation_of_the_wrong_types_cannot_be_made(values) -> None:
    with pytest.raises(TypeError):
        LoopObservation(**values)


def test_an_observation_survives_storage_with_its_nan() -> None:
    seen = LoopObservation(reward=NAN, cost=math.inf, evidence={"loss": [NAN, 1.0]})
    record = seen.to_record()
    assert (record.reward, record.cost, record.evidence) == ("nan", "inf", {"loss": ["nan", 1.0]})
    again = LoopObservation.from_record(record)
    assert math.isnan(again.reward)
    assert again.cost == math.inf


def test_evidence_must_be_a_json_value() -> None:
    with pytest.raises(TypeError):
        LoopObservation(reward=1, evidence=object()).to_record()


def test_a_verdict_outside_the_set_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="maybe"):
        Verdict("maybe")


def test_seeds_are_fixed_for_ever_and_fit_53_bits() -> None:
    assert step_seed(0, "r", 0) == 3397184627634058
    seeds = {step_seed(7, "run", n) for n in range(20_000)}
    assert len(seeds) == 20_000
    assert max(seeds) < 2**53
