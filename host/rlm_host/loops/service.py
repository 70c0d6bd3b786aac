"""Many loops in one host: what the `loop/*` methods ask for."""

import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable
from typing import Self

import anyio
import anyio.to_thread
import msgspec

from rlm_protocol import loop as wire
from rlm_protocol.errors import LeaseHeld, RlmError, Unsupported
from rlm_protocol.loop_records import LoopConfig, Steps

from .audit import DecisionLog
from .kernel import LoopKernel
from .report import LoopGeneration, read_page, submission
from .steps import Runners, check_steps, work_of
from .stores.base import LEASE_MS, ControlAction, RunRow, RunStore
from .telemetry import RSITelemetry
from .wire import decisions_of, generation_of, report_of, run_of
from .worker import Work

log = logging.getLogger(__name__)


class LoopService:
    """
    Owns the loops of a host for the length of its block, each in a task.

    Leaving the block ends them where they stand: their steps are ended, their leases given back,
    and any host can go on with them. The store is opened at the first use. An interrupted run goes
    on only when somebody asks for it (`run`, `resume_interrupted`).

    Args:
        open_store, open_log: called once, in a thread; no log without `open_log`.
        runners: the places where steps can happen.
        worker: the name of this host in refusals to others.
        on_generation, on_completed: called in the loop, in order, with what clients are told.
        telemetry: gets a span for each generation.
        lease_ms: how long a host that has stopped keeps a run from others.
    """

    def __init__(
        self,
        open_store: Callable[[], RunStore],
        runners: Runners,
        *,
        worker: str,
        on_generation: Callable[[wire.LoopGenerationNotice], None],
        on_completed: Callable[[wire.LoopCompletedNotice], None],
        open_log: Callable[[], DecisionLog] | None = None,
        telemetry: RSITelemetry | None = None,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._open_store = open_store
        self._open_log = open_log
        self._runners = runners
        self._worker = worker
        self._on_generation = on_generation
        self._on_completed = on_completed
        self._telemetry = telemetry
        self._lease_ms = lease_ms
        self._opening = anyio.Lock()
        self._opened: LoopKernel | None = None
        self._log: DecisionLog | None = None
        self._running: dict[str, anyio.Event] = {}
        self._block = contextlib.AsyncExitStack()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._block.enter_async_context(self._tasks)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._block.aclose()

    @property
    def running(self) -> int:
        """How many runs this host is working on."""
        return len(self._running)

    # --- what clients ask for -----------------------------------------------------------------

    async def submit(self, params: wire.LoopSubmitParams) -> wire.Run:
        """
        Make a run durable. It moves with `run`. The same idempotency key gives the same run.

        Raises:
            ConfigInvalid: a value is out of range.
            Unsupported: this host has no place for such steps.
            Conflict: id or key belong to a run with another configuration or other steps.
        """
        steps = Steps(step=params.step, apply=params.apply, rollback=params.rollback)
        check_steps(steps, self._runners)
        given = msgspec.structs.asdict(params.config)
        config = LoopConfig(given.pop("tenant"), given.pop("workspace"), **given)
        run_id = params.run_id or _run_id(params.idempotency_key, config.tenant, config.workspace)
        kernel = await self._kernel()
        await anyio.to_thread.run_sync(lambda: kernel.submit(run_id, config=config, steps=steps))
        return await self.read(run_id)

    async def run(self, run_id: str) -> wire.Run:
        """
        Go on with a run in the background and give it as it is now.

        Nothing happens when it is terminal, paused, or running here already.

        Raises:
            RunNotFound: there is no such run.
            LeaseHeld: another host has it.
            Unsupported: it has steps that this host has no place for.
        """
        kernel = await self._kernel()
        run = await self.read(run_id)
        if run.status != "running":
            return run
        steps = (await kernel.stores.call(lambda: submission(kernel.store, run_id))).steps
        if steps is None:
            raise Unsupported("Only the program that submitted this run can go on with it.")
        work = work_of(steps, self._runners)
        if run_id not in self._running:
            refusals: list[RlmError] = []
            claimed = self._running[run_id] = anyio.Event()

            async def carry_on() -> None:
                await self._carry_on(kernel, run_id, work, claimed, refusals)

            self._tasks.start_soon(carry_on)
            await claimed.wait()
            for refusal in refusals:
                raise refusal
        return await self.read(run_id)

    async def cancel(self, params: wire.RunControlParams) -> wire.Run:
        """Ask for the end of a run. See `LoopKernel.cancel`."""
        return await self._request(params, "cancel", "cancelled")

    async def pause(self, params: wire.RunControlParams) -> wire.Run:
        """Ask that a run rests. See `LoopKernel.pause`."""
        return await self._request(params, "pause", "paused")

    async def resume(self, params: wire.RunControlParams) -> wire.Run:
        """Let a paused run go on: here, unless another host has it or this one cannot."""
        run = await self._request(params, "resume", "resumed")
        with contextlib.suppress(LeaseHeld, Unsupported):
            return await self.run(run.run_id)
        return run

    async def resume_interrupted(self) -> list[wire.Run]:
        """Go on with every run that is neither over, nor paused, nor another host's."""
        kernel, cursor, resumed = await self._kernel(), None, []
        while True:
            page = await kernel.stores.call(
                lambda at=cursor: kernel.store.list(status="running", cursor=at)  # type: ignore[misc]
            )
            for row in page.runs:
                with contextlib.suppress(LeaseHeld, Unsupported):
                    resumed.append(await self.run(row.run_id))
            cursor = page.cursor
            if cursor is None:
                return resumed

    async def read(self, run_id: str) -> wire.Run:
        """Give a run as its head says. Raises RunNotFound."""
        kernel = await self._kernel()
        return run_of(await kernel.stores.call(lambda: kernel.snapshot(run_id)))

    async def snapshot(self, run_id: str) -> wire.LoopSnapshotResult:
        """Give a run's head. Raises RunNotFound."""
        kernel = await self._kernel()
        row = await kernel.stores.call(lambda: kernel.snapshot(run_id))
        return wire.LoopSnapshotResult(head=msgspec.to_builtins(row.head))

    async def report(self, params: wire.LoopReportParams) -> wire.LoopReportResult:
        """Give a page of generations. Raises RunNotFound."""
        kernel = await self._kernel()
        page = await kernel.stores.call(
            lambda: read_page(kernel.store, params.run_id, after=params.after, limit=params.limit)
        )
        return report_of(page)

    async def list_runs(self, params: wire.LoopListParams) -> wire.LoopListResult:
        """Give a page of runs, newest first."""
        kernel = await self._kernel()
        page = await kernel.stores.call(
            lambda: kernel.store.list(
                tenant=params.tenant,
                workspace=params.workspace,
                status=params.status,
                cursor=params.cursor,
                limit=params.limit,
            )
        )
        return wire.LoopListResult(runs=tuple(map(run_of, page.runs)), next_cursor=page.cursor)

    async def fork(self, params: wire.LoopForkParams) -> wire.Run:
        """Submit a run that begins with another's generations. See `LoopKernel.fork`."""
        kernel = await self._kernel()
        run_id = params.new_run_id or _run_id(params.idempotency_key, params.run_id, "fork")
        await anyio.to_thread.run_sync(
            lambda: kernel.fork(params.run_id, params.generation, new_run_id=run_id)
        )
        return await self.read(run_id)

    async def decisions(self, params: wire.LoopDecisionsParams) -> wire.LoopDecisionsResult:
        """Give a page of the decision log; nothing when this host keeps none."""
        kernel, decision_log = await self._kernel(), self._log
        if decision_log is None:
            return wire.LoopDecisionsResult(decisions=())
        rows = await kernel.stores.call(
            lambda: decision_log.rows(params.run_id, after=params.after, limit=params.limit)
        )
        return decisions_of(rows, limit=params.limit)

    # --- inside -------------------------------------------------------------------------------

    async def _kernel(self) -> LoopKernel:
        async with self._opening:
            if self._opened is None:
                store = await anyio.to_thread.run_sync(self._open_store)
                if self._open_log is not None:
                    self._log = await anyio.to_thread.run_sync(self._open_log)
                self._opened = LoopKernel(
                    store,
                    None,
                    decision_log=self._log,
                    telemetry=self._telemetry,
                    on_generation=self._tell,
                    lease_ms=self._lease_ms,
                )
                await self._block.enter_async_context(self._opened.stores)
            return self._opened

    async def _request(
        self, params: wire.RunControlParams, action: ControlAction, reason: str
    ) -> wire.Run:
        kernel = await self._kernel()
        return run_of(await kernel.ask(params.run_id, action, params.reason or reason))

    def _tell(self, row: RunRow, generation: LoopGeneration) -> None:
        self._on_generation(
            wire.LoopGenerationNotice(
                run_id=row.run_id, generation=generation_of(generation), run=run_of(row)
            )
        )

    async def _carry_on(
        self,
        kernel: LoopKernel,
        run_id: str,
        work: Work,
        claimed: anyio.Event,
        refusals: list[RlmError],
    ) -> None:
        """Work on one run. Whatever fails in it ends it alone."""
        error: str | None = None
        try:
            await kernel.carry_on(run_id, self._worker, work, on_claimed=claimed.set)
        except RlmError as why:
            error = str(why)
            if not claimed.is_set():
                refusals.append(why)
        except Exception:
            token = secrets.token_hex(4)
            log.exception("loop %s failed; token %s", run_id, token)
            error = f"The host has a bug. Its log has the traceback under {token}."
        finally:
            del self._running[run_id]
            claimed.set()
        if refusals:
            return
        try:
            run = await self.read(run_id)
        except RlmError as why:
            log.warning("loop %s cannot be read after it has ended: %s", run_id, why)
        else:
            self._on_completed(wire.LoopCompletedNotice(run_id=run_id, run=run, error=error))


def _run_id(key: str | None, *scope: str) -> str:
    """Give the run id that an idempotency key stands for, or a random one."""
    if key is None:
        return secrets.token_hex(16)
    return hashlib.blake2b(
        "\0".join(("loop.key.v1", *scope, key)).encode(), digest_size=16
    ).hexdigest()
