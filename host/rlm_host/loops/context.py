"""What a step, a gate, an apply and a rollback are told about their generation."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, overload

import msgspec

from rlm_protocol.loop_records import Accepted, Deferred, GenerationDone

from .report import LoopGeneration, read_events
from .stores.base import RunReader

if TYPE_CHECKING:
    from .compute import ComputeController


class Holding(Protocol):
    """The right to work on a generation, as an attempt sees it."""

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should end."""

    def check(self) -> None:
        """Make sure that the right still is ours. Raises LeaseLost."""


class History(Sequence[LoopGeneration]):
    """The complete generations before this one. Reads them from the store as they are asked for."""

    def __init__(self, store: RunReader, run_id: str, length: int) -> None:
        self._store = store
        self._run_id = run_id
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[LoopGeneration]:
        until = self._store.head(self._run_id).seq
        for row in read_events(self._store, self._run_id, until=until):
            if isinstance(row.event, GenerationDone) and row.event.generation < self._length:
                yield LoopGeneration.from_event(row.event)

    @overload
    def __getitem__(self, index: int) -> LoopGeneration: ...
    @overload
    def __getitem__(self, index: slice) -> list[LoopGeneration]: ...
    def __getitem__(self, index: int | slice) -> LoopGeneration | list[LoopGeneration]:
        chosen = range(self._length)[index]
        if isinstance(chosen, range):
            return [self._read(n) for n in chosen]
        return self._read(chosen)

    def _read(self, generation: int) -> LoopGeneration:
        row = self._store.get(self._run_id, f"generation:{generation}")
        if row is None or not isinstance(row.event, GenerationDone):
            raise IndexError(f"generation {generation} of run {self._run_id} is not there any more")
        return LoopGeneration.from_event(row.event)


class LoopContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """
    One attempt at one generation (seed: loop kernel, What one generation is).

    The store is at-least-once: what a step, apply or rollback does outside must be idempotent for
    `(run_id, generation)`. `token` grows with each worker that takes the run, so that an outside
    system can refuse one that has been replaced.

    Attributes:
        run_id, tenant, workspace: whose generation it is.
        generation: counted from 0.
        token: the fencing token of the worker's lease.
        attempt: counted from 1; grows with each failed attempt and each worker that died in one.
        seed: 53 bits, the same in every attempt at this generation.
        budget_scale: how much of its usual effort the step should spend, 0.25 to 1.
        best: the reward of the live artifact, None before the first accept.
        accepted: the live artifact.
        deferred: candidates that no gate could judge yet; the step may measure one again.
        history: the complete generations before this one, read as they are asked for.
        compute: what the kernel was given to choose a strategy with, if anything.
    """

    run_id: str
    tenant: str
    workspace: str
    generation: int
    token: int
    attempt: int
    seed: int
    budget_scale: float
    best: float | None
    accepted: Accepted | None
    deferred: tuple[Deferred, ...]
    history: History
    compute: "ComputeController | None"
    _hold: Holding
    _charges: list[float] = []

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should end: the run is to be cancelled, or its lease is lost."""
        return self._hold.cancelled

    @property
    def charged(self) -> float:
        """What this attempt has charged so far."""
        return math.fsum(self._charges)

    def heartbeat(self) -> None:
        """
        Make sure that the worker still has the run. The kernel renews the lease by itself.

        Raises:
            LeaseLost: another worker has it; whatever this attempt gives will not be recorded.
        """
        self._hold.check()

    def charge(self, cost: float) -> None:
        """
        Charge the run for something already spent, even if the attempt fails later.

        The generation costs at least the sum; an observation without `cost` costs just that.

        Raises:
            ValueError: the cost is negative or not finite.
        """
        if not math.isfinite(cost) or cost < 0:
            raise ValueError(f"a charge is a finite number from 0, not {cost!r}")
        self._charges.append(float(cost))
