"""What waits for a person: asked of every client that is attached, decided by the first answer."""

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlm_protocol.errors import RlmError
from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.host import ApprovalAnswer, ApprovalRequest, ApprovalResolved

from .subscriptions import Listener

if TYPE_CHECKING:
    from .session import SessionActor

EXPIRES_MS = 10 * 60 * 1000
"""Unanswered for so long, also with nobody attached, it is denied, never granted."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """How an approval was settled."""

    decision: Literal["allow", "deny", "expired", "cancelled"]
    reason: str | None = None


class _Pending(msgspec.Struct, eq=False):
    request: ApprovalRequest
    ruling: "asyncio.Future[Ruling]"


class Approvals:
    """
    The open questions of one session. They are not durable: a crash ends the turn that asked.

    A listener that can be asked has a coroutine `ask(method, params)` giving the raw answer.
    """

    def __init__(self, session: "SessionActor") -> None:
        self._session = session
        self._pending: dict[str, _Pending] = {}

    async def ask(
        self,
        what: Literal["cell", "spawn", "tool"],
        detail: dict[str, Any],
        *,
        interrupt: asyncio.Event | None = None,
    ) -> Ruling:
        """Wait for the first answer of any client, for the expiry, or for `interrupt`."""
        session = self._session
        request = ApprovalRequest(
            session_id=session.id,
            approval_id=session.new_id("approval"),
            what=what,
            detail=detail,
            expires_at_ms=session.clock.now_ms() + EXPIRES_MS,
        )
        pending = _Pending(request, asyncio.get_running_loop().create_future())
        self._pending[request.approval_id] = pending
        for listener in session.subscriptions.listeners:
            self._put_to(listener, pending)
        expiry = asyncio.ensure_future(session.clock.sleep(EXPIRES_MS))
        stop = asyncio.ensure_future((interrupt or asyncio.Event()).wait())
        waits: list[asyncio.Future[Any]] = [pending.ruling, expiry, stop]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            ruling = Ruling(decision="cancelled" if stop.done() else "expired")
            if pending.ruling.done():
                ruling = pending.ruling.result()
        finally:
            del self._pending[request.approval_id]
            for one in waits:
                one.cancel()
        resolved = ApprovalResolved(
            **session.where(), approval_id=request.approval_id, decision=ruling.decision
        )
        session.emit("approval/resolved", resolved)
        return ruling

    def ask_again(self, listener: Listener) -> None:
        """Put every open question to a client that has just attached."""
        for pending in self._pending.values():
            self._put_to(listener, pending)

    def _put_to(self, listener: Listener, pending: _Pending) -> None:
        ask = getattr(listener, "ask", None)
        if ask is not None:
            asking = self._session.launch(self._one(ask, pending))
            pending.ruling.add_done_callback(lambda _: asking.cancel())

    async def _one(self, ask: Any, pending: _Pending) -> None:
        try:
            raw = await ask("approval/request", pending.request)
            answer = msgspec.json.decode(raw, type=ApprovalAnswer)
        except (RlmError, *UNDECODABLE):
            return  # this client cannot answer; another one may, or it expires
        if not pending.ruling.done():
            pending.ruling.set_result(Ruling(decision=answer.decision, reason=answer.reason))
