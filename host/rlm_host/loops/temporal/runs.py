"""Runs on a Temporal cluster, for those who submit, watch and control them."""

import base64
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from rlm_protocol import loop_records as records
from rlm_protocol import loop_temporal as wire
from rlm_protocol.errors import RunNotFound, StoreCorrupt, StoreUnavailable
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import Head, Submitted

from ..head import fold_all
from ..stores.base import PAGE, ControlAction, EventRow, Health, HintsOf, Page, RunRow
from ..stores.rows import check_same_run, not_completed
from .history import Entry, Execution

log = logging.getLogger(__name__)
T = TypeVar("T")
Rows = list[EventRow]
QUEUE = "rlm-loops"
ATTRIBUTES = ("RlmLoopTenant", "RlmLoopWorkspace", "RlmLoopStatus")
"""Keyword search attributes that the namespace must know."""
_CLOSED: dict[WorkflowExecutionStatus, RunStatus] = {
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "cancelled",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
}
_STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_SCHEDULED = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED


class TemporalRuns:
    """
    The runs of one namespace: each a workflow `loop/RUN_ID`, that workers of a queue carry out.

    It keeps the contract of `stores.base.RunReader`; what it says is read from histories, so it
    needs no worker. Claims and leases are Temporal's: a submitted run goes on by itself, and a
    request is acted on by a worker. A run is gone once the namespace's retention has passed.

    The namespace must know the keyword search attributes of `ATTRIBUTES`.

    Args:
        address: HOST:PORT of the cluster's frontend.
        settings: of the runs that are submitted here.

    Raises:
        StoreUnavailable: nobody answers there.
    """

    def __init__(
        self,
        address: str,
        *,
        namespace: str = "default",
        queue: str = QUEUE,
        settings: wire.Settings = wire.Settings(),  # noqa: B008 -- it is frozen
    ) -> None:
        self.address, self.namespace, self.queue = address, namespace, queue
        self._settings = settings
        self._portal_block = start_blocking_portal()
        self._portal: BlockingPortal = self._portal_block.__enter__()
        try:
            self._client = self._wait(connect(address, namespace))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the thread through which the cluster is asked."""
        self._portal_block.__exit__(None, None, None)

    def submit(self, run_id: str, submitted: Submitted) -> bool:
        """Start a run. See `RunReader.submit`."""
        return self._start(run_id, submitted, Head(), 1)

    def fork(self, parent: str, generation: int, run_id: str, submitted: Submitted) -> bool:
        """Start a run from the beginning of another. See `RunReader.fork`."""
        beginning = self._wait(self._beginning(parent, generation))
        if beginning is None:
            raise not_completed(parent, generation, self.head(parent).head.generation)
        head = fold_all(row.event for row in beginning)
        return self._start(run_id, submitted, head, 1 + len(beginning))

    def head(self, run_id: str) -> RunRow:
        """Read the run's newest execution. See `RunReader.head`."""
        return self._wait(self._execution(run_id)).row()

    def events(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> tuple[EventRow, ...]:
        """Give a page of events. See `RunReader.events`."""
        rows = self._wait(self._events(run_id, after))
        return tuple(row for row in rows if row.seq > after)[:limit]

    def get(self, run_id: str, key: str) -> EventRow | None:
        """Give one event; reads the history until it is found. See `RunReader.get`."""
        rows = self._wait(self._events(run_id, 0))
        return next((row for row in rows if row.key == key), None)

    def list(
        self,
        *,
        tenant: str | None = None,
        workspace: str | None = None,
        status: RunStatus | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> Page:
        """
        Give a page of runs, those that are not over first. See `RunReader.list`.

        A change is seen after a moment.
        """
        wanted = zip(ATTRIBUTES, (tenant, workspace, status), strict=True)
        query = "".join(f" AND {name} = {_quoted(value)}" for name, value in wanted if value)
        return self._wait(self._list(_RUNS + query, cursor, limit))

    def request(self, run_id: str, action: ControlAction, reason: str) -> RunRow:
        """Signal a run, and give its row before a worker has acted. See `RunReader.request`."""
        if self.head(run_id).status not in records.TERMINAL:
            try:
                self._wait(self._client.get_workflow_handle(_id(run_id)).signal(action, reason))
            except RunNotFound:  # it has ended meanwhile
                return self.head(run_id)
        return self.head(run_id)

    def hints(
        self, on_hint: Callable[[], None], of: HintsOf = "all"
    ) -> contextlib.AbstractContextManager[None]:
        """Give none: a cluster tells its workers only. See `RunReader.hints`."""
        return contextlib.nullcontext()

    def health(self, *, deep: bool = False) -> Health:
        """Ask the cluster. See `RunReader.health`."""
        return self._wait(self._health())

    # --- inside -------------------------------------------------------------------------------

    def _wait(self, asked: Coroutine[Any, Any, T]) -> T:
        async def answer() -> T:
            return await asked

        try:
            return self._portal.call(answer)
        except RPCError as why:
            if why.status == RPCStatusCode.NOT_FOUND:
                raise RunNotFound("There is no such run, or it is over.") from why
            raise _unavailable(self.address, why) from why

    def _start(self, run_id: str, submitted: Submitted, head: Head, seq: int) -> bool:
        begin = wire.Begin(
            run_id=run_id,
            submitted=submitted,
            head=head,
            seq=seq,
            token=0,
            status="running",
            cancel=None,
            pause=None,
            settings=self._settings,
        )
        values = (submitted.config.tenant, submitted.config.workspace, "running")
        attributes = [
            SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
            for name, value in zip(ATTRIBUTES, values, strict=True)
        ]
        try:
            self._wait(
                self._client.start_workflow(
                    wire.WORKFLOW,
                    msgspec.to_builtins(begin),
                    id=_id(run_id),
                    task_queue=self.queue,
                    task_timeout=timedelta(milliseconds=self._settings.task_ms),
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    search_attributes=TypedSearchAttributes(attributes),
                )
            )
        except WorkflowAlreadyStartedError:
            there = self._wait(self._execution(run_id)).begin.submitted
            check_same_run(run_id, there, submitted)
            return False
        return True

    async def _execution(self, run_id: str, execution: str | None = None) -> Execution:
        """Read one execution of a run, the newest by default. Raises RunNotFound."""
        handle = self._client.get_workflow_handle(_id(run_id), run_id=execution)
        try:
            described = await handle.describe()
        except RPCError as why:
            if why.status != RPCStatusCode.NOT_FOUND:
                raise
            raise RunNotFound(f"There is no run {run_id}.", run_id=run_id) from why
        # Pinned: one that continues meanwhile must not give the beginning of another.
        handle = self._client.get_workflow_handle(_id(run_id), run_id=described.run_id)
        found: Execution | None = None
        async for event in handle.fetch_history_events():
            at_ms = _at_ms(event.event_time)
            if event.event_type == _STARTED:
                started = event.workflow_execution_started_event_attributes
                found = Execution(
                    begin=msgspec.convert(await self._given(started.input), wire.Begin),
                    started_at_ms=at_ms,
                    previous=started.continued_execution_run_id or None,
                    closed=_CLOSED.get(described.status) if described.status else None,
                )
            elif found is not None and (entry := await self._entry(event, at_ms)) is not None:
                found.entries.append(entry)
        if found is None:
            raise StoreCorrupt(f"The history of run {run_id} has no beginning.", run_id=run_id)
        return found

    async def _entry(self, event: HistoryEvent, at_ms: int) -> Entry | None:
        if event.event_type == _SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            return Entry("signal", signal.signal_name, await self._given(signal.input), at_ms)
        if event.event_type == _SCHEDULED:
            asked = event.activity_task_scheduled_event_attributes
            name = asked.activity_type.name
            if name in (wire.APPLY, wire.ROLLBACK, wire.RECORD):
                return Entry("activity", name, await self._given(asked.input), at_ms)
        return None

    async def _given(self, payloads: Any) -> Any:
        return (await self._client.data_converter.decode(payloads.payloads))[0]

    async def _events(self, run_id: str, after: int) -> Rows:
        """Read the newest executions back to the event after one."""
        execution = await self._execution(run_id)
        rows = [*execution.events()]
        while execution.previous is not None and execution.begin.seq > after:
            execution = await self._execution(run_id, execution.previous)
            rows = [*execution.events(), *rows]
        if execution.previous is None and execution.begin.seq > after:
            rows = [*await self._copied(execution), *rows]
        return rows

    async def _copied(self, first: Execution) -> Rows:
        """Give a run's submission, and of a fork the generations of its parent."""
        submitted = first.begin.submitted
        rows = [
            EventRow(seq=1, key="submitted", token=0, at_ms=first.started_at_ms, event=submitted)
        ]
        if submitted.parent is not None and submitted.forked_at is not None:
            rows += await self._beginning(submitted.parent, submitted.forked_at) or []
        return [msgspec.structs.replace(row, seq=seq) for seq, row in enumerate(rows, 1)]

    async def _beginning(self, run_id: str, generation: int) -> Rows | None:
        """Give what a fork copies of a run, or None: it has not completed that generation."""
        rows = await self._events(run_id, 0)
        last = next((row.seq for row in rows if row.key == f"generation:{generation}"), None)
        if last is None:
            return None
        kinds = ("generation:", "intent:", "step_failed:")
        return [row for row in rows if row.seq <= last and row.key.startswith(kinds)]

    async def _list(self, query: str, cursor: str | None, limit: int) -> Page:
        token = None if cursor is None else base64.urlsafe_b64decode(cursor)
        pages = self._client.list_workflows(query, page_size=limit, next_page_token=token)
        await pages.fetch_next_page()
        runs, damaged = [], []
        for found in pages.current_page or ():
            run_id = found.id.removeprefix(_PREFIX)
            try:
                runs.append((await self._execution(run_id)).row())
            except (StoreCorrupt, msgspec.ValidationError):
                damaged.append(run_id)
        following = pages.next_page_token
        return Page(
            runs=tuple(runs),
            damaged=tuple(damaged),
            cursor=base64.urlsafe_b64encode(following).decode() if following else None,
        )

    async def _health(self) -> Health:
        told = await self._client.workflow_service.get_system_info(GetSystemInfoRequest())
        counted = await self._client.count_workflows(_RUNS)
        return Health(
            engine=f"Temporal {told.server_version}",
            location=f"{self.address}/{self.namespace}",
            schema=1,
            runs=counted.count,
            size_bytes=0,
            problems=(),
        )


_PREFIX = "loop/"
_RUNS = f"WorkflowType = '{wire.WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"


async def connect(address: str, namespace: str, identity: str | None = None) -> Client:
    """Reach a cluster, which knows us as `identity`. Raises StoreUnavailable."""
    try:
        return await Client.connect(
            address, namespace=namespace, identity=identity, runtime=_runtime()
        )
    except (RPCError, RuntimeError) as why:
        raise _unavailable(address, why) from why


@functools.cache
def _runtime() -> Runtime:
    """
    Give the process's one Temporal runtime, whose warnings go to our log.

    Left to itself, Temporal's core prints them to stdout, among what a command answers there.
    """
    forwarding = LogForwardingConfig(logger=log, append_target_to_name=False)
    logging_to_us = LoggingConfig(filter=LoggingConfig.default.filter, forwarding=forwarding)
    return Runtime(telemetry=TelemetryConfig(logging=logging_to_us))


def _unavailable(address: str, why: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"The Temporal cluster at {address} does not answer, or refuses: {why}.", address=address
    )


def _id(run_id: str) -> str:
    return _PREFIX + run_id


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _at_ms(at: Any) -> int:
    return int(at.seconds * 1000 + at.nanos // 1_000_000)
