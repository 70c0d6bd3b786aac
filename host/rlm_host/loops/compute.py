"""How much to compute for one candidate, and how: the seam by which a step picks a strategy."""

import hashlib
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rlm_protocol.errors import ConfigInvalid

from .context import LoopContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """One candidate with its score; NaN is a failed measurement. `seed` made it."""

    value: T
    score: float
    seed: int


class Strategy(Protocol):
    """A way to make one candidate out of several tries. A tree search or an ensemble is one too."""

    def run(
        self,
        context: LoopContext,
        generate: Callable[[int], T],
        score: Callable[[T], float],
    ) -> Candidate[T]:
        """Make tries with `generate(seed)`, judge them with `score`, give the chosen one."""

    async def arun(
        self,
        context: LoopContext,
        generate: Callable[[int], Awaitable[T] | T],
        score: Callable[[T], Awaitable[float] | float],
    ) -> Candidate[T]:
        """As `run`, with functions that may be coroutines."""


class BestOfN:
    """
    Make up to `n` candidates and keep the one with the highest score, of equals the first.

    The context's `budget_scale` scales `n`, at least one is made, and a cancel ends the search with
    what there is. Seeds come from the context's, so a repeated step makes the same tries.

    Raises:
        ConfigInvalid: `n` is not a whole number from 1.
    """

    def __init__(self, n: int) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ConfigInvalid("n must be a whole number from 1.", field="n", got=repr(n))
        self.n = n

    def run(
        self,
        context: LoopContext,
        generate: Callable[[int], T],
        score: Callable[[T], float],
    ) -> Candidate[T]:
        """Make and score the candidates one after the other."""
        best: Candidate[T] | None = None
        for seed in self.seeds(context):
            if best is not None and context.cancelled:
                break
            value = generate(seed)
            best = better(best, Candidate(value, float(score(value)), seed))
        assert best is not None, "at least one try is made"
        return best

    async def arun(
        self,
        context: LoopContext,
        generate: Callable[[int], Awaitable[T] | T],
        score: Callable[[T], Awaitable[float] | float],
    ) -> Candidate[T]:
        """Make and score the candidates one after the other, awaiting what is awaitable."""
        best: Candidate[T] | None = None
        for seed in self.seeds(context):
            if best is not None and context.cancelled:
                break
            value: T = await _resolved(generate(seed))
            best = better(best, Candidate(value, float(await _resolved(score(value))), seed))
        assert best is not None, "at least one try is made"
        return best

    def seeds(self, context: LoopContext) -> list[int]:
        """Give the seeds of the tries, 53 bits each."""
        tries = max(1, round(self.n * context.budget_scale))
        return [_try_seed(context.seed, number) for number in range(tries)]


def better(best: Candidate[T] | None, other: Candidate[T]) -> Candidate[T]:
    """Give the one with the higher score. A number beats NaN; of equals the first stays."""
    if best is None or other.score > best.score:
        return other
    return other if math.isnan(best.score) and not math.isnan(other.score) else best


def _try_seed(seed: int, number: int) -> int:
    digest = hashlib.blake2b(f"loop.try.v1\0{seed}\0{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11


async def _resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class ComputeController:
    """
    What a step asks how to compute its candidate (seed: loop kernel, What one generation is).

    The kernel never runs a strategy; it hands this object on as `context.compute`. `choose` looks
    at the context, so it can spend more where the budget allows or where earlier generations
    stalled.

    Args:
        strategies: the ways there are, by name; `best_of_n` with four tries, if none are given.
        pick: gives the name of one for a context; the first is taken without it.

    Raises:
        ConfigInvalid: there is no strategy, or `pick` has named one that there is not.
    """

    def __init__(
        self,
        strategies: Mapping[str, Strategy] | None = None,
        *,
        pick: Callable[[LoopContext], str] | None = None,
    ) -> None:
        self.strategies = dict({"best_of_n": BestOfN(4)} if strategies is None else strategies)
        if not self.strategies:
            raise ConfigInvalid("There must be a strategy.", field="strategies", got="{}")
        self._pick = pick

    def choose(self, context: LoopContext) -> Strategy:
        """Give the strategy for this generation."""
        name = next(iter(self.strategies)) if self._pick is None else self._pick(context)
        if name not in self.strategies:
            raise ConfigInvalid(
                f"strategy must be one of {', '.join(self.strategies)}.",
                field="strategy",
                got=repr(name),
            )
        return self.strategies[name]
