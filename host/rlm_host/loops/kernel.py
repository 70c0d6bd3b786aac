"""`LoopKernel`: durable loops for those who call it, with or without an event loop."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol.errors import ConfigInvalid, RlmError
from rlm_protocol.loop import Provenance
from rlm_protocol.loop_records import Completed, LoopConfig, Steps

from .audit import DecisionLog
from .calls import StoreThread, adrive, drive
from .compute import ComputeController
from .inputs import check_config
from .leases import Hold, LeaseKeeper
from .provenance import provenance_of
from .report import LoopGeneration, LoopReport, read_report, submission
from .stores.base import LEASE_MS, ControlAction, Lease, RunRow, RunStore
from .stores.group_commit import Fault, no_fault
from .submission import fork_run, submit_run
from .telemetry import RSITelemetry
from .worker import Surroundings, Work, Worker


class LoopKernel:
    """
    Runs loops in the order step, gates, decision, apply or rollback, record, and survives a crash
    at any point of it (seed: loop kernel).

    The store is at-least-once: `step`, `apply` and `rollback` must be idempotent for
    `(run_id, generation)`. With `record="intent"` a decision to accept or roll back is durable
    before it is carried out, so that after a crash it is carried out again and not taken again;
    with `record="single"` the step is repeated instead.

    One kernel may run any number of runs at once, each in its thread (`run`) or task (`arun`). It
    keeps their leases from one thread, which lives as long as there is one.

    Args:
        store: where the runs are kept.
        config: of the runs that this kernel submits; None for a kernel that submits none.
        gates: functions `(context, observation) -> Verdict`. One that raises or gives anything
            else never lets a candidate through.
        decision_log: gets a row for each generation.
        telemetry: gets a span for each generation.
        compute: handed to the step as `context.compute`.
        code: the folder whose state in Git is recorded with submissions and claims; the working
            folder if None.
        on_generation: called with each generation once it is durable, and the run as it is then.
        lease_ms: how long a worker that has stopped keeps a run from others.
        fault: called at each named point of a generation, for tests.
    """

    def __init__(
        self,
        store: RunStore,
        config: LoopConfig | None,
        *,
        gates: Sequence[Callable[..., Any]] = (),
        decision_log: DecisionLog | None = None,
        telemetry: RSITelemetry | None = None,
        compute: ComputeController | None = None,
        code: Path | None = None,
        on_generation: Callable[[RunRow, LoopGeneration], None] | None = None,
        lease_ms: int = LEASE_MS,
        fault: Fault = no_fault,
    ) -> None:
        self.store = store
        self.config = config
        self._lease_ms = lease_ms
        self._code = (code or Path()).absolute()
        self._around = Surroundings(
            store=store,
            gates=named(gates),
            decision_log=decision_log,
            telemetry=telemetry,
            compute=compute,
            on_generation=on_generation,
            fault=fault,
        )
        self._keeper = LeaseKeeper(store)
        self.stores = StoreThread(store)
        """Through which tasks call the store."""

    # --- runs ---------------------------------------------------------------------------------

    def submit(
        self,
        run_id: str | None = None,
        *,
        config: LoopConfig | None = None,
        steps: Steps | None = None,
    ) -> str:
        """
        Make a run durable and give its id; nothing runs yet. The same id again is a no-op.

        Call it in a thread from a task: it may look at the working tree for a moment.

        Args:
            run_id: 1 to 64 letters, digits, `.`, `_`, `-`; a random one if None.
            config: of this run; the kernel's if None.
            steps: tell a host how to run it without its submitter; kept with the run.

        Raises:
            ConfigInvalid: a value of the configuration is missing or out of range. Nothing is kept.
            Conflict: the id belongs to a run with another configuration or other steps.
        """
        config = config or self.config
        return submit_run(self.store, config, code=self._code, run_id=run_id, steps=steps)

    def run(
        self,
        run_id: str,
        worker: str,
        step: Callable[..., Any],
        *,
        apply: Callable[..., Any] | None = None,
        rollback: Callable[..., Any] | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> LoopReport:
        """
        Go on with a run until it ends, is paused, or its step has failed too often for now.

        In the last case the report says `running`: call `run` again until `report.terminal`. On a
        run that is terminal or paused nothing is called.

        Args:
            run_id: a submitted run; it runs with the configuration it was submitted with.
            worker: a name for people; it makes nobody the owner.
            step: `(context) -> LoopObservation`.
            apply: `(context, observation)`, called once per accepted generation, again after a
                crash in it or a failure of it.
            rollback: `(context, accepted)`: make this artifact live again (None: none is left).
            cancel: asked at every boundary and by `context.cancelled`; True cancels the run.

        Raises:
            RunNotFound: there is no such run.
            LeaseHeld: another worker has it.
            LeaseLost: another worker got it meanwhile; this one has written nothing since.
            RlmError: the store cannot be read or written. What was recorded is kept: call again.
        """
        lease = self._claim(run_id, worker, provenance_of(self._code))
        if lease is None:
            return self.report(run_id)
        work = Work(step=step, apply=apply, rollback=rollback)
        worked: Worker | None = None
        try:
            with self._keeper.keep(lease, cancel) as hold:
                worked = self._worker(hold, work)
                if worked is not None:
                    drive(worked.logic())
        except BaseException:
            with contextlib.suppress(RlmError):
                self.store.release(lease)
            raise
        if worked is not None and not worked.ended:
            self.store.release(lease)
        return self.report(run_id)

    async def arun(
        self,
        run_id: str,
        worker: str,
        step: Callable[..., Any],
        *,
        apply: Callable[..., Any] | None = None,
        rollback: Callable[..., Any] | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> LoopReport:
        """
        Do what `run` does on behalf of a task; the functions may be coroutine functions.

        Others run in threads. When the task is cancelled, `context.cancelled` becomes true, the
        function in a thread is awaited, and the run is released as it stands.
        """
        async with self.stores as stores:
            await self.carry_on(
                run_id, worker, Work(step=step, apply=apply, rollback=rollback), cancel
            )
            return await stores.call(lambda: self.report(run_id))

    async def carry_on(
        self,
        run_id: str,
        worker: str,
        work: Work,
        cancel: Callable[[], bool] | None = None,
        *,
        on_claimed: Callable[[], None] = lambda: None,
    ) -> None:
        """Do what `arun` does, without a report of all generations at the end."""
        claimed: list[Lease] = []
        worked: Worker | None = None

        # Outside the stores' thread: all other runs would wait for Git.
        provenance = await anyio.to_thread.run_sync(provenance_of, self._code)

        def claim() -> None:
            lease = self._claim(run_id, worker, provenance)
            claimed.extend([] if lease is None else [lease])

        async with self.stores as stores:
            try:
                await stores.call(claim)
                on_claimed()
                for lease in claimed:
                    with self._keeper.keep(lease, cancel) as hold:
                        worked = await stores.call(lambda hold=hold: self._worker(hold, work))  # type: ignore[misc]
                        if worked is not None:
                            await adrive(worked.logic(), stores, hold)
            except BaseException:
                for lease in claimed:
                    with contextlib.suppress(RlmError):
                        await stores.call(lambda lease=lease: self.store.release(lease))  # type: ignore[misc]
                raise
            if worked is not None and not worked.ended:
                await stores.call(lambda: self.store.release(claimed[0]))

    def _claim(self, run_id: str, worker: str, provenance: Provenance) -> Lease | None:
        return self.store.claim(run_id, worker, ttl_ms=self._lease_ms, provenance=provenance)

    def _worker(self, hold: Hold, work: Work) -> Worker | None:
        """Give the worker of a claimed run, or end a run whose configuration makes no sense."""
        lease, row = hold.lease, hold.lease.row
        try:
            config = check_config(records.decode_config(row.config))
        except (msgspec.DecodeError, ConfigInvalid):
            last = Completed(status="failed", reason="config_invalid")
            self.store.append(lease, [last], row.head, status=last.status, reason=last.reason)
            return None
        first = submission(self.store, lease.run_id)
        return Worker(self._around, hold, config, first.seed_root, work)

    # --- looking and asking -------------------------------------------------------------------

    def report(self, run_id: str) -> LoopReport:
        """Rebuild a run from its events; no gate is called. See `read_report`."""
        return read_report(self.store, run_id)

    def snapshot(self, run_id: str) -> RunRow:
        """Give the run's row with its head, without reading its events."""
        return self.store.head(run_id)

    def cancel(self, run_id: str, reason: str = "cancelled") -> RunRow:
        """
        Ask for the end of a run; the first reason is kept.

        A worker ends it at its next boundary and sees `context.cancelled`; a run without one ends
        at once, unless a generation of it is half applied: then its next worker ends it.
        """
        return self._request(run_id, "cancel", reason)

    def pause(self, run_id: str, reason: str = "paused") -> RunRow:
        """Ask that the run rests after the generation it is in."""
        return self._request(run_id, "pause", reason)

    def resume(self, run_id: str, reason: str = "resumed") -> RunRow:
        """Let a paused run go on, once `run` is called."""
        return self._request(run_id, "resume", reason)

    async def ask(self, run_id: str, action: ControlAction, reason: str) -> RunRow:
        """Do what `cancel`, `pause` and `resume` do on behalf of a task."""
        async with self.stores as stores:
            row = await stores.call(lambda: self.store.request(run_id, action, reason))
        self._keeper.poke()
        return row

    def _request(self, run_id: str, action: ControlAction, reason: str) -> RunRow:
        row = self.store.request(run_id, action, reason)
        self._keeper.poke()
        return row

    def fork(
        self,
        run_id: str,
        generation: int,
        *,
        new_run_id: str | None = None,
        config: LoopConfig | None = None,
        reseed: bool = False,
    ) -> str:
        """
        Submit a run that begins with another's generations 0 to `generation`, and give its id.

        Args:
            run_id: the parent; it is not changed, running or not.
            config: for the generations to come; the parent's if None.
            reseed: whether its generations get other seeds than the parent's would have.

        Raises:
            ConfigInvalid: a value is out of range, or the parent has not completed the generation.
            RunNotFound, Conflict: of parent and new id.
        """
        return fork_run(
            self.store,
            run_id,
            generation,
            code=self._code,
            new_run_id=new_run_id,
            config=config,
            reseed=reseed,
        )


def named(gates: Sequence[Callable[..., Any]]) -> list[tuple[str, Callable[..., Any]]]:
    """Give each gate the name it is recorded under; the second of a name gets a number."""
    named: dict[str, Callable[..., Any]] = {}
    for gate in gates:
        name = getattr(gate, "__name__", type(gate).__name__)
        count = sum(known.split("#")[0] == name for known in named)
        named[f"{name}#{count + 1}" if count else name] = gate
    return list(named.items())
