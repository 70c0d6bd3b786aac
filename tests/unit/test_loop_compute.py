"""The seam by which a step chooses how to compute, and one span per generation."""

import math
from pathlib import Path

import pytest

from rlm_host.loops.compute import BestOfN, ComputeController
from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_protocol.errors import ConfigInvalid


@pytest.fixture
def store(tmp_path: Path):
    opened = SqliteRunStore(tmp_path / "runs.sqlite3")
    yield opened
    opened.close()


def run(store, step, **kernel):
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=2), **kernel)
    return loops.run(loops.submit(), "w", step)


def in_a_step(store, ask, **kernel) -> list:
    """Give what `ask(context)` gives in each of two generations."""
    given = []

    def step(context) -> LoopObservation:
        given.append(ask(context))
        return LoopObservation(reward=-context.generation)

    run(store, step, **kernel)
    return given


def test_best_of_n_keeps_the_best_and_repeats_itself(store) -> None:
    def ask(context):
        search = context.compute.choose(context)
        tried: list[int] = []
        best = search.run(context, lambda seed: tried.append(seed) or seed, lambda s: s % 1000)
        assert best.seed == best.value
        assert best.score == max(seed % 1000 for seed in tried)
        assert search.run(context, lambda seed: seed, lambda s: s % 1000) == best
        return tried

    first, second = in_a_step(store, ask, compute=ComputeController({"best": BestOfN(8)}))
    assert len(first) == len(second) == 8
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [([0.1, math.nan, 0.3, 0.3], 2), ([math.nan, 0.1], 1), ([math.nan, math.nan], 0), ([1], 0)],
)
def test_nan_never_wins_and_of_equals_the_first_stays(store, scores, chosen) -> None:
    def ask(context):
        numbers = iter(range(9))
        best = BestOfN(len(scores)).run(context, lambda seed: next(numbers), lambda n: scores[n])
        return best.value

    assert in_a_step(store, ask) == [chosen, chosen]


def test_the_advice_of_the_loop_scales_the_tries() -> None:
    class Context:
        seed, budget_scale = 7, 0.25

    assert len(BestOfN(8).seeds(Context())) == 2
    assert len(BestOfN(1).seeds(Context())) == 1


@pytest.mark.anyio
async def test_tries_may_be_coroutines(store) -> None:
    async def generate(seed: int) -> int:
        return seed

    async def score(value: int) -> float:
        return value % 10

    async def step(context) -> LoopObservation:
        best = await BestOfN(3).arun(context, generate, score)
        assert best.score == max(seed % 10 for seed in BestOfN(3).seeds(context))
        return LoopObservation(reward=best.score)

    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=1))
    assert (await loops.arun(loops.submit(), "w", step)).terminal


def test_a_picked_strategy_must_exist(store) -> None:
    compute = ComputeController(
        {"a": BestOfN(1), "b": BestOfN(2)}, pick=lambda c: "ba"[c.generation]
    )
    assert in_a_step(store, lambda c: c.compute.choose(c).n, compute=compute) == [2, 1]
    with pytest.raises(ConfigInvalid):
        ComputeController({})
    with pytest.raises(ConfigInvalid):
        ComputeController(pick=lambda context: "tree").choose(object())
    with pytest.raises(ConfigInvalid):
        BestOfN(0)
