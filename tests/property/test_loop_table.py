"""The decision table on a grid and on random runs: total, unambiguous, bounded, replayable."""

import itertools
import math
import random

from rlm_host.loops.controller import SCALE_MAX, SCALE_MIN, TABLE, decide
from rlm_host.loops.head import fold, fold_all
from rlm_host.loops.inputs import SEVERITY, LoopObservation
from rlm_protocol.loop_records import (
    Accepted,
    GateVerdict,
    GenerationDone,
    Head,
    LoopConfig,
    decode_event,
    encode,
)


def accepted(n: int, reward: float) -> Accepted:
    return Accepted(generation=n, reward=reward, artifact_id=f"a{n}")


HEADS = (
    Head(),
    Head(generation=1, live=(accepted(0, 0.5),), cost=1.0),
    Head(generation=2, live=(accepted(0, 0.5),), cost=2.0, stalled=0, defers=2, budget_scale=0.5),
    Head(generation=3, live=(accepted(0, 0.5), accepted(1, 0.6)), cost=2.5, stalled=1),
)
GATES = [()] + [
    tuple(GateVerdict(gate=g, verdict=v) for g, v in zip("ab", kinds, strict=False))
    for n in (1, 2)
    for kinds in itertools.combinations_with_replacement(SEVERITY, n)
]
CONFIGS = [
    LoopConfig(
        "t", "w", max_generations=4, target=target, cost_budget=budget, patience=patience,
        risk_limit=risk, on_risk=on_risk, rollback_drop=drop, max_defers=2,
    )
    for target, budget, patience, risk, on_risk, drop in itertools.product(
        (None, 0.9), (None, 3.0), (None, 2), (None, 0.5), ("reject", "stop"), (None, 0.2)
    )
]  # fmt: skip
SEEN = [
    LoopObservation(reward=reward, cost=1.0, elapsed_ms=1.0, risk=risk, live_reward=live)
    for reward, risk, live in itertools.product((math.nan, 0.1, 0.5, 0.95), (0.0, 0.9), (None, 0.1))
]


def event_of(head: Head, seen: LoopObservation, decision) -> GenerationDone:
    return GenerationDone(
        generation=head.generation,
        decision=decision,
        applied=False,
        span_id=None,
        verdicts=(),
        observation=seen.to_record(),
    )


def check(config: LoopConfig, head: Head, seen: LoopObservation, gates) -> str:
    decision = decide(config, head, seen, gates)
    assert decision == decide(config, head, seen, gates[::-1]), "the order of gates matters"
    if decision.action == "accept":
        assert all(g.verdict == "allow" for g in gates)
        assert config.risk_limit is None or seen.risk <= config.risk_limit
        assert head.best is None or seen.reward > head.best
    if decision.row != "D1" and any(g.verdict == "stop" for g in gates):
        assert (decision.action, decision.stop) == ("stop", "gate_stop")
    assert SCALE_MIN <= decision.budget_scale <= SCALE_MAX
    after = fold(head, event_of(head, seen, decision))
    assert after.generation == head.generation + 1
    assert after.cost >= head.cost
    if decision.action != "rollback" and head.best is not None:
        assert after.best >= head.best
    return decision.row


def test_every_case_of_the_grid_has_one_decision_and_every_row_is_reached() -> None:
    rows = {
        check(config, head, seen, gates)
        for config, head, seen, gates in itertools.product(CONFIGS, HEADS, SEEN, GATES)
    }
    assert rows == {row.name for row in TABLE}


def test_random_runs_end_in_time_and_their_record_folds_to_the_same_head() -> None:
    rng = random.Random(1)
    for _ in range(1_500):
        config = LoopConfig(
            "t", "w", max_generations=rng.randint(1, 30), target=rng.choice((None, 0.95)),
            cost_budget=rng.choice((None, rng.uniform(1, 30))), patience=rng.choice((None, 3)),
            risk_limit=rng.choice((None, 0.8)), on_risk=rng.choice(("reject", "stop")),
            min_gain=rng.choice((0.0, 0.05)), rollback_drop=rng.choice((None, 0.3)),
        )  # fmt: skip
        head, log = Head(), []
        while True:
            seen = LoopObservation(
                reward=math.nan if rng.random() < 0.05 else rng.random(), cost=rng.random(),
                risk=rng.random(), live_reward=rng.choice((None, rng.random())),
            )  # fmt: skip
            gates = tuple(
                GateVerdict(gate=g, verdict=rng.choices(list(SEVERITY), (30, 3, 2, 1, 2, 1))[0])
                for g in "pq"[: rng.randint(0, 2)]
            )
            decision = decide(config, head, seen, gates)
            event = event_of(head, seen, decision)
            log.append(encode(event))
            head = fold(head, event)
            assert len(log) <= config.max_generations
            if decision.stop:
                break
        assert fold_all(map(decode_event, log)) == head
