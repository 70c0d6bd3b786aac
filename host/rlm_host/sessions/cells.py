"""Cells of a session: handed to its kernel in order, streamed to clients, recorded once."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlm_protocol import kernel as wire
from rlm_protocol import records as r
from rlm_protocol.errors import KernelDied, RlmError
from rlm_protocol.item import CellError, ItemDelta, ReplCell
from rlm_protocol.repl import KernelStatus, ReplExecuteResult, ReplOutput, ReplStatusChanged

from ..kernels.cell import CellOutcome, OutputEvent, Revival, SnapshotReport
from ..kernels.cell import KernelStatus as Status
from .output import Channel, Output

if TYPE_CHECKING:
    from .session import SessionActor

log = logging.getLogger(__name__)

YIELD_S = 0.7
"""A cell of an interrupted turn may take this long to end; then the turn ends without it."""
LINGER_MS = 5
"""A cell that ends sooner has its start and its end in one write of the journal."""

STATUS: dict[Status, KernelStatus] = {
    Status.ABSENT: "none",
    Status.STARTING: "starting",
    Status.IDLE: "idle",
    Status.BUSY: "busy",
    Status.INTERRUPTING: "interrupting",
    Status.STOPPING: "dead",
}
_ENDED: dict[str, Literal["completed", "failed", "interrupted"]] = {
    "ok": "completed",
    "error": "failed",
    "interrupted": "interrupted",
}
STUCK = "The cell did not yield; it is left to the kernel, which is killed if it goes on."


class CellRun(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that has ended. `failure` is the kernel's own error, where that is why."""

    item: ReplCell
    failure: RlmError | None = None


class Cells:
    """Runs the cells of one session. `revival` of a new process is told once, with its cell."""

    def __init__(self, session: "SessionActor") -> None:
        self._session = session
        self.running: dict[str, str | None] = {}
        """The turn of each cell that runs or waits; None of one that a client asked for."""
        self._served = False  # whether a process has answered since this host opened the session

    async def run(
        self,
        code: str,
        *,
        item_id: str,
        author: Literal["model", "client", "child", "host"],
        turn_id: str | None = None,
        call_id: str | None = None,
        interrupt: asyncio.Event | None = None,
    ) -> CellRun:
        """
        Run a cell and make its end durable, whatever becomes of it.

        With `interrupt` set the cell is interrupted; one that does not end in `YIELD_S` is recorded
        as interrupted and left behind.

        Raises:
            StoreFull, StoreUnavailable, SessionClosed: its end could not be recorded.
        """
        session, began_ms = self._session, self._session.clock.now_ms()
        started = r.CellStarted(
            item_id=item_id, code=code, author=author, turn_id=turn_id, call_id=call_id
        )
        session.write(started, linger_ms=LINGER_MS)
        output = Output(item_id, session.artifacts, self._on_delta(item_id, session.last_seq))
        item = ReplCell(
            id=item_id,
            turn_id=turn_id,
            status="inProgress",
            code=code,
            author=author,
            started_at_ms=began_ms,
        )
        session.subscriptions.open_item(
            item_id, session.last_seq, lambda: _with_output(item, output, "inProgress")
        )
        self.running[item_id] = turn_id
        try:
            outcome, failure = await self._execute(code, item_id, output, interrupt)
            notes = self._note_revival(outcome) if outcome is not None else []
            item = msgspec.structs.replace(
                _with_output(item, output, _status_of(outcome, failure)),
                completed_at_ms=session.clock.now_ms(),
                kernel=session.state.kernel + self._new_process(outcome),
                ordinal=session.state.cells,
            )
            if failure is not None:
                item = msgspec.structs.replace(item, error=_error_of(failure))
                notes.append(_failure_text(failure))
            if outcome is None and failure is None:
                notes.append(STUCK)
            shown = "\n".join([*notes, output.shown()]).strip("\n") or "(no output)"
            record = r.ItemCompleted(
                item=item, call_id=call_id, shown=shown if call_id is not None else None
            )
            await session.append(*self._kernel_started(outcome), record)
        finally:
            del self.running[item_id]
            output.close()
            session.subscriptions.close_item(item_id)
        return CellRun(item=item, failure=failure)

    async def run_silent(self, code: str, *, item_id: str) -> ReplExecuteResult:
        """Run a cell that leaves no record. Raises Kernel* errors."""
        output = Output(item_id, self._session.artifacts, lambda *_: None)
        try:
            outcome = await self._session.kernel.execute(
                code, cell_id=item_id, on_event=output.add, silent=True
            )
        finally:
            output.close()
        return ReplExecuteResult(
            cell_id=item_id,
            status=outcome.status,
            error=output.error,
            truncated=output.truncated,
            artifact=output.artifact,
        )

    async def _execute(
        self, code: str, item_id: str, output: Output, interrupt: asyncio.Event | None
    ) -> tuple[CellOutcome | None, RlmError | None]:
        kernel = self._session.kernel
        running = kernel.execute(code, cell_id=item_id, on_event=output.add)
        try:
            if interrupt is None:
                return await running, None
            task = self._session.adopt(asyncio.ensure_future(running))
            if not await _ended_before(task, interrupt):
                kernel.interrupt(item_id)
                await asyncio.wait([task], timeout=YIELD_S)
                if not task.done():
                    return None, None
            return await asyncio.shield(task), None
        except RlmError as why:
            return None, why

    def _on_delta(self, item_id: str, seq: int) -> Callable[[Channel, int, str], None]:
        session = self._session

        def tell(channel: Channel, offset: int, text: str) -> None:
            session.emit(
                "item/delta",
                ItemDelta(
                    **session.where(seq),
                    item_id=item_id,
                    channel=channel,
                    offset=offset,
                    text=text,
                ),
                after_seq=seq,
            )

        return tell

    # --- the process behind the cells ---

    def _new_process(self, outcome: CellOutcome | None) -> bool:
        return outcome is not None and (not self._served or outcome.revival is not None)

    def _kernel_started(self, outcome: CellOutcome | None) -> list[r.Record]:
        if outcome is None or not self._new_process(outcome):
            return []
        self._served = True
        revival = outcome.revival
        return [
            r.KernelStarted(
                incarnation=self._session.state.kernel + 1,
                reason=revival.reason if revival else "first",
                restored=revival.restored if revival else (),
                failed=tuple(name.name for name in revival.failed) if revival else (),
                refused=revival.refused if revival else None,
            )
        ]

    def _note_revival(self, outcome: CellOutcome) -> list[str]:
        """Say to the model which names a new process has and which it lost."""
        if outcome.revival is not None:
            taken = self._session.state.snapshot
            return [_revival_text(outcome.revival, taken.skipped if taken else ())]
        if self._new_process(outcome) and self._session.state.kernel:
            return ["[A new kernel process: nothing that was defined before exists any more.]"]
        return []

    def on_background(self, event: OutputEvent) -> None:
        """Tell clients of output that belongs to no running cell."""
        where = self._session.where()
        match event:
            case wire.Stdout(text=text):
                payload = ReplOutput(**where, channel="stdout", text=text)
            case wire.Stderr(text=text):
                payload = ReplOutput(**where, channel="stderr", text=text)
            case wire.Display(data=data):
                payload = ReplOutput(**where, channel="display", data=data)
            case _:
                return
        self._session.emit("repl/output", payload)

    async def on_saved(self, report: SnapshotReport) -> None:
        """Record a snapshot; a disk that does not take the record leaves it to the next one."""
        record = r.SnapshotTaken(
            item_id=report.cell_id,
            snapshot=report.id,
            saved=len(report.saved),
            skipped=tuple(name.name for name in report.skipped),
            size_bytes=report.size_bytes,
        )
        try:
            await self._session.append(record)
        except RlmError as why:
            log.warning("a snapshot of %s is not recorded: %s", self._session.id, why)

    def on_status(self, status: Status) -> None:
        """Tell clients what the kernel is doing."""
        session = self._session
        session.emit(
            "repl/status",
            ReplStatusChanged(
                **session.where(),
                status=STATUS[status],
                incarnation=session.state.kernel,
                pid=session.kernel.pid,
            ),
        )


def execute_result(run: CellRun) -> ReplExecuteResult:
    """Give the answer of `repl/execute`."""
    item = run.item
    status: Literal["ok", "error", "interrupted"] = "interrupted"
    if item.status != "interrupted":
        status = "ok" if item.status == "completed" else "error"
    return ReplExecuteResult(
        cell_id=item.id,
        status=status,
        result=item.result,
        error=item.error,
        truncated=item.truncated,
        artifact=item.artifact,
    )


async def _ended_before(running: "asyncio.Future[CellOutcome]", interrupt: asyncio.Event) -> bool:
    """Wait for the cell or the interrupt; tell whether the cell was first."""
    waiting = asyncio.ensure_future(interrupt.wait())
    both: list[asyncio.Future[Any]] = [running, waiting]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return running.done()


def _status_of(
    outcome: CellOutcome | None, failure: RlmError | None
) -> Literal["completed", "failed", "interrupted"]:
    if failure is not None:
        return "failed"
    return "interrupted" if outcome is None else _ENDED[outcome.status]


def _with_output(
    item: ReplCell,
    output: Output,
    status: Literal["inProgress", "completed", "failed", "interrupted"],
) -> ReplCell:
    return msgspec.structs.replace(
        item,
        status=status,
        stdout=output.text("stdout"),
        stderr=output.text("stderr"),
        result=output.text("result") or None,
        error=output.error,
        truncated=output.truncated or output.displays_dropped > 0,
        artifact=output.artifact,
        display=tuple(output.displays),
    )


def _error_of(failure: RlmError) -> CellError:
    return CellError(ename=type(failure).__name__, evalue=failure.message)


def _failure_text(failure: RlmError) -> str:
    if not isinstance(failure, KernelDied):
        return failure.message
    end = failure.data.get("signal") or f"exit code {failure.data.get('exit_code')}"
    tail = str(failure.data.get("stderr_tail") or "").strip()
    return (
        f"The kernel process ended in this cell ({end}). The next call starts a new one from the "
        f"last snapshot.{chr(10) + tail if tail else ''}"
    )


def _revival_text(revival: Revival, skipped: tuple[str, ...]) -> str:
    """Say what is there and what is not; `skipped` names could not be saved."""
    came_back = ", ".join(revival.restored) or "none"
    text = f"[A new kernel process ({revival.reason}). Names that came back: {came_back}."
    lost = [f"{name.name} ({name.reason})" for name in revival.failed]
    lost += [f"{name} (could not be saved)" for name in skipped if name not in revival.restored]
    if lost:
        text += f" Not restored: {', '.join(lost)}."
    if revival.refused is None:
        text += " Whatever else was defined before does not exist any more."
    if revival.refused:
        text += f" The snapshot was not used: {revival.refused}."
    return text + "]"
