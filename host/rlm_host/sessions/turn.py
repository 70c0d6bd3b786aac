"""
The agent loop of one turn: ask the model, run its cells, ask again, until it calls nothing.

Every request is an attempt: its intent is durable before it goes out, its outcome or failure after.
No call of an answer runs before the answer is complete and durable.
"""

import asyncio
import hashlib
import logging
import secrets
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlm_protocol import records as r
from rlm_protocol.base import ErrorInfo
from rlm_protocol.errors import (
    AuthRequired,
    InternalError,
    KernelUnavailable,
    ModelUnavailable,
    ProviderFailed,
    RlmError,
)
from rlm_protocol.item import CellError, ErrorItem, Notice, ReplCell, ToolCall
from rlm_protocol.usage import Usage

from ..models.provider import Message, ProviderError, Request
from .answer import Answer, Answering
from .cells import YIELD_S
from .prompt import PYTHON
from .schema import NotValid, check_output
from .user_cells import told

if TYPE_CHECKING:
    from .session import SessionActor

log = logging.getLogger(__name__)

TRIES = 5
"""Attempts at one answer, the first included."""
BACKOFF_MS = 500
BACKOFF_MAX_MS = 30_000
RETRY_AFTER_MAX_MS = 120_000
"""A vendor that wants a longer pause than this ends the turn instead."""
SCHEMA_TRIES = 3
"""Final answers that may miss the output schema before the turn fails."""
CLOSE_AGAIN_MS = 1000

_encoder = msgspec.json.Encoder(order="deterministic")
_ERRORS: dict[str, type[RlmError]] = {"auth": AuthRequired, "not_found": ModelUnavailable}


class Interrupted(Exception):
    """The turn was interrupted. Never leaves this module."""


class Turn:
    """
    One running turn. `interrupt` may be set at any moment, also before `run`.

    `run` ends in exactly one TurnCompleted record, in at most a second after `interrupt`.
    """

    def __init__(
        self, session: "SessionActor", turn_id: str, output_schema: dict[str, Any] | None
    ) -> None:
        self.turn_id = turn_id
        self.interrupt = asyncio.Event()
        self._session = session
        self._output_schema = output_schema
        self._phase: r.Phase = "accepted"

    async def run(self) -> r.TurnCompleted:
        """Run to the end; give the terminal record, which is durable."""
        try:
            output = await self._loop()
            ended = r.TurnCompleted(turn_id=self.turn_id, status="completed", output=output)
        except Interrupted:
            ended = r.TurnCompleted(turn_id=self.turn_id, status="interrupted", phase=self._phase)
        except RlmError as why:
            ended = self._failed(why)
        except Exception:
            token = secrets.token_hex(4)
            log.exception("turn %s failed with a bug, token %s", self.turn_id, token)
            ended = self._failed(InternalError(token=token))
        return await self._close(ended)

    def _failed(self, why: RlmError) -> r.TurnCompleted:
        info = ErrorInfo(kind=why.kind, message=why.message, code=why.code, retryable=why.retryable)
        return r.TurnCompleted(turn_id=self.turn_id, status="failed", error=info, phase=self._phase)

    async def _close(self, ended: r.TurnCompleted) -> r.TurnCompleted:
        """Make the end durable, however long the disk takes to have room for it."""
        session = self._session
        turn = session.state.turn
        ended = msgspec.structs.replace(ended, usage=turn.usage if turn else Usage())
        while True:
            try:
                await session.append(ended)
            except RlmError as why:
                if session.closing:
                    raise
                session.tell_error(why)
                await session.clock.sleep(CLOSE_AGAIN_MS)
            else:
                return ended

    # --- the loop ---

    async def _loop(self) -> Any:
        missed = 0
        await self._session.load_transcript()
        while True:
            outcome = await self._ask()
            for call in outcome.calls:
                await self._call(call)
            if outcome.calls or self._session.pending("steer"):
                continue
            if outcome.stop == "content_filter":
                raise ProviderFailed("The provider's content filter ended the answer.")
            if outcome.stop == "length":
                await self._notice("warning", "The answer was cut at the model's output limit.")
            if self._output_schema is None:
                return None
            try:
                return check_output(self._output_schema, outcome.text)
            except NotValid as why:
                missed += 1
                if missed == SCHEMA_TRIES:
                    raise why.error from None
                await self._notice(
                    "warning", "The answer does not fit the output schema.", shown=str(why)
                )

    async def _ask(self) -> r.ProviderOutcome:
        """Get one answer; try again where that can help, visibly."""
        for tries in range(1, TRIES + 1):
            self._check()
            await self._take_inputs()
            self._phase = "request"
            try:
                return await self._attempt()
            except ProviderError as why:
                wait_ms = self._backoff_ms(why, tries)
                if wait_ms is None:
                    raise _error_of(why) from None
                await self._notice(
                    "warning",
                    f"{why.message} Trying again in {wait_ms / 1000:.1f} s "
                    f"(attempt {tries + 1} of {TRIES}).",
                )
                await self._unless_interrupted(self._session.clock.sleep(wait_ms))
        raise AssertionError("the last try raises")

    def _backoff_ms(self, why: ProviderError, tries: int) -> int | None:
        """Give how long to wait before the next try; None when there is none."""
        if not why.retryable or tries == TRIES:
            return None
        spread = self._session.random()  # others that failed together must not come back together
        wait_ms = int(min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** (tries - 1)) * (0.5 + spread / 2))
        if why.retry_after_ms is None:
            return wait_ms
        return None if why.retry_after_ms > RETRY_AFTER_MAX_MS else max(wait_ms, why.retry_after_ms)

    async def _attempt(self) -> r.ProviderOutcome:
        session, turn = self._session, self._session.state.turn
        assert turn is not None
        attempt = turn.attempts + 1
        info, provider = session.models.provider_for(session.state.model)
        request = self._request(info.selector)
        for reserve in session.ports.before_request:
            await self._unless_interrupted(reserve(session, request, attempt))
        intent = r.ProviderIntent(
            turn_id=self.turn_id,
            attempt=attempt,
            model=request.model,
            sha256=hashlib.sha256(_encoder.encode(request)).hexdigest(),
            messages=len(request.messages),
        )
        used: Usage | None = None
        try:
            await session.append(intent)
            answering = Answering(session, self.turn_id)
            try:
                answer = await self._stream(answering.collect(provider, request))
            except (Interrupted, ProviderError) as why:
                used = answering.void_usage()
                await session.append(*answering.failed(why, attempt))
                raise
            outcome, records = answering.completed(answer, attempt, request.model)
            used = outcome.usage
            await session.append(outcome, *records)
        finally:
            for settle in session.ports.after_request:
                await settle(session, attempt, used)
        return outcome

    def _request(self, model: str) -> Request:
        state = self._session.state
        messages: tuple[Message, ...] = self._session.transcript.messages
        return Request(
            model=model,
            messages=messages,
            instructions=state.prompt,
            tools=(PYTHON,),
            thinking=state.thinking,
        )

    async def _stream(self, collecting: Any) -> Answer:
        """Wait for the answer or the interrupt; leave a provider that does not let go behind."""
        if self.interrupt.is_set():
            collecting.close()
            raise Interrupted
        running = self._session.adopt(asyncio.ensure_future(collecting))
        answer: Answer = await self._unless_interrupted(running)
        return answer

    async def _call(self, call: r.ToolUse) -> None:
        self._check()
        self._phase = "cell"
        code = call.arguments.get("code")
        if call.name != PYTHON.name or not isinstance(code, str) or len(call.arguments) != 1:
            await self._refuse(call)
            return
        if not await self._allowed(call, code):
            return
        run = await self._session.cells.run(
            code,
            item_id=self._session.new_id("cell"),
            author="model",
            turn_id=self.turn_id,
            call_id=call.id,
            interrupt=self.interrupt,
        )
        if isinstance(run.failure, KernelUnavailable):
            raise run.failure
        self._check()

    async def _allowed(self, call: r.ToolUse, code: str) -> bool:
        """Ask a person where the options want it; a cell that is not allowed is recorded so."""
        session = self._session
        if not session.approvals.wanted("cell"):
            return True
        ruling = await session.approvals.ask(
            "cell", {"code": code}, turn_id=self.turn_id, interrupt=self.interrupt
        )
        self._check()
        if ruling.decision == "allow":
            return True
        text = ruling.told("cell")
        now_ms = session.clock.now_ms()
        item = ReplCell(
            id=session.new_id("cell"),
            turn_id=self.turn_id,
            status="failed",
            code=code,
            error=CellError(ename="ApprovalDenied", evalue=text),
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )
        await session.append(r.ItemCompleted(item=item, shown=text, call_id=call.id))
        return False

    async def _refuse(self, call: r.ToolUse) -> None:
        now_ms = self._session.clock.now_ms()
        text = f"There is one tool, {PYTHON.name}, with one argument, code (a string)."
        item = ToolCall(
            id=self._session.new_id("call"),
            turn_id=self.turn_id,
            status="failed",
            name=call.name,
            arguments=call.arguments,
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )
        await self._session.append(r.ItemCompleted(item=item, shown=text, call_id=call.id))

    async def _take_inputs(self) -> None:
        """Let what was said meanwhile, and what people ran, enter before the next request."""
        session = self._session
        records: list[r.Record] = []
        if session.state.user_cells:
            text = told(session.state.user_cells)
            records.append(self._notice_record("info", "A person ran cells.", shown=text))
        for waiting in session.pending("steer"):
            item = msgspec.structs.replace(waiting.item, turn_id=self.turn_id)
            records.append(r.ItemCompleted(item=item, shown=waiting.shown))
        if records:
            await session.append(*records)

    async def _notice(self, level: Any, text: str, shown: str | None = None) -> None:
        await self._session.append(self._notice_record(level, text, shown))

    def _notice_record(self, level: Any, text: str, shown: str | None) -> r.ItemCompleted:
        return notice_record(self._session, level, text, shown=shown, turn_id=self.turn_id)

    # --- interrupts ---

    def _check(self) -> None:
        if self.interrupt.is_set():
            raise Interrupted

    async def _unless_interrupted(self, awaitable: Any) -> Any:
        """Wait for `awaitable`; an interrupt cancels it, and leaves it behind if it hangs."""
        running = asyncio.ensure_future(awaitable)
        waiting = asyncio.ensure_future(self.interrupt.wait())
        try:
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not running.done():
            running.cancel()
            await asyncio.wait([running], timeout=YIELD_S)
            raise Interrupted
        return running.result()


def notice_record(
    session: "SessionActor",
    level: Literal["info", "warning"],
    text: str,
    *,
    shown: str | None = None,
    turn_id: str | None = None,
) -> r.ItemCompleted:
    """Give the record of a notice; `shown` is what the model is told of it."""
    now_ms = session.clock.now_ms()
    item = Notice(
        id=session.new_id("notice"),
        turn_id=turn_id,
        level=level,
        text=text,
        started_at_ms=now_ms,
        completed_at_ms=now_ms,
    )
    return r.ItemCompleted(item=item, shown=shown)


def error_item(item_id: str, turn_id: str | None, why: RlmError, now_ms: int) -> ErrorItem:
    """Give the item by which clients are told of an error."""
    info = ErrorInfo(kind=why.kind, message=why.message, code=why.code, retryable=why.retryable)
    return ErrorItem(
        id=item_id, turn_id=turn_id, error=info, started_at_ms=now_ms, completed_at_ms=now_ms
    )


def _error_of(why: ProviderError) -> RlmError:
    row = _ERRORS.get(why.kind, ProviderFailed)
    return row(why.message, reason=why.kind, status=why.status)
