"""What waits for a person: asked of every client above it, decided by the first answer."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlm_protocol import records as r
from rlm_protocol.errors import ApprovalDenied, RlmError, SessionClosed
from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.host import ApprovalAnswer, ApprovalRequest, ApprovalResolved, Decision
from rlm_protocol.limits import APPROVAL_MS, OUTPUT_INLINE_BYTES
from rlm_protocol.session import Approvals as Wanted

from .subscriptions import Askable, Listener, audience

if TYPE_CHECKING:
    from .session import SessionActor

What = Literal["cell", "spawn", "tool"]
_SAID: dict[Decision, str] = {
    "deny": "a person did not allow it",
    "expired": "nobody decided in time",
    "cancelled": "it was cancelled before anybody decided",
}


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """How an approval was settled."""

    decision: Decision
    reason: str | None = None

    def told(self, what: What) -> str:
        """Say why a thing was not done."""
        reason = f" {self.reason}" if self.reason else ""
        done = "was not run" if what == "cell" else "was not done"
        return f"The {what} {done}: {_SAID.get(self.decision, self.decision)}.{reason}"


class _Pending(msgspec.Struct, eq=False):
    request: ApprovalRequest
    ruling: "asyncio.Future[Ruling]"
    asking: "dict[str, asyncio.Future[None]]"
    """What runs for each client that was asked."""


class Approvals:
    """
    The open questions of one session.

    Each is a record before anybody is asked, and its end is one before anything is done. A crash
    ends those that are open: the host that opens the session closes them as cancelled.
    """

    def __init__(self, session: "SessionActor") -> None:
        self._session = session
        self._pending: dict[str, _Pending] = {}

    def wanted(self, what: What) -> bool:
        """Whether the options want a person to be asked."""
        options = self._session.state.options.approvals or Wanted()
        asked = {"cell": options.cells, "spawn": options.spawns, "tool": options.tools}
        return asked[what] == "ask"

    async def require(self, what: What, detail: dict[str, Any], *, cell_id: str | None) -> None:
        """
        Return when a thing that a cell asks for may be done.

        Raises:
            ApprovalDenied: a person said no, nobody decided in time, or the turn was interrupted.
        """
        if self.wanted(what):
            turn = self._session.turn_of(cell_id)
            ruling = await self.ask(
                what,
                detail,
                turn_id=turn.turn_id if turn else None,
                cell_id=cell_id,
                interrupt=turn.interrupt if turn else None,
            )
            if ruling.decision != "allow":
                raise ApprovalDenied(ruling.told(what), what=what, decision=ruling.decision)

    async def ask(
        self,
        what: What,
        detail: dict[str, Any],
        *,
        turn_id: str | None,
        cell_id: str | None = None,
        interrupt: asyncio.Event | None = None,
    ) -> Ruling:
        """
        Wait for the first answer of any client, for the expiry, or for `interrupt`.

        The ruling is durable on return. Cancelling the call settles it as cancelled.
        """
        session = self._session
        request = ApprovalRequest(
            session_id=session.id,
            approval_id=session.new_id("approval"),
            what=what,
            detail=detail,
            expires_at_ms=session.clock.now_ms() + APPROVAL_MS,
        )
        ruling = Ruling(decision="cancelled")
        try:
            await session.append(_asked(request, turn_id, cell_id))
            ruling = await self._decided(request, interrupt)
        finally:
            settled = self._settle(request.approval_id, ruling)
        if settled is not None:
            await settled
        return ruling

    async def _decided(self, request: ApprovalRequest, interrupt: asyncio.Event | None) -> Ruling:
        pending = _Pending(request, asyncio.get_running_loop().create_future(), {})
        expiry = asyncio.ensure_future(self._session.clock.sleep(APPROVAL_MS))
        stop = asyncio.ensure_future((interrupt or asyncio.Event()).wait())
        waits: list[asyncio.Future[Any]] = [pending.ruling, expiry, stop]
        self._pending[request.approval_id] = pending
        try:
            for client in audience(self._session):
                self._put_to(client, pending)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if pending.ruling.done():
                return pending.ruling.result()
            return Ruling(decision="cancelled" if stop.done() else "expired")
        finally:
            del self._pending[request.approval_id]
            for one in (*waits, *pending.asking.values()):
                one.cancel()

    def _settle(self, approval_id: str, ruling: Ruling) -> "asyncio.Future[r.Entry] | None":
        """Record the ruling; once it is durable, those above are told, too."""
        session = self._session

        def tell(settled: "asyncio.Future[r.Entry]") -> None:
            if settled.cancelled() or settled.exception() is not None:
                return
            entry = settled.result()
            resolved = ApprovalResolved(
                session_id=session.id,
                seq=entry.seq,
                gen=entry.gen,
                approval_id=approval_id,
                decision=ruling.decision,
            )
            own = set(session.subscriptions.listeners)
            for client in audience(session):
                if client not in own:
                    client("approval/resolved", resolved)

        record = r.ApprovalSettled(
            approval_id=approval_id, decision=ruling.decision, reason=ruling.reason
        )
        with contextlib.suppress(SessionClosed):
            settled = session.write(record)
            settled.add_done_callback(tell)
            return settled
        return None

    def ask_again(self, listener: Listener) -> None:
        """Put every open question to a client that has just attached."""
        if isinstance(listener, Askable):
            for pending in self._pending.values():
                self._put_to(listener, pending)

    def _put_to(self, client: Askable, pending: _Pending) -> None:
        running = pending.asking.get(client.client_id)
        if running is None or running.done():  # else it has the question before it
            asking = self._session.launch(self._one(client, pending))
            pending.asking[client.client_id] = asking

    async def _one(self, client: Askable, pending: _Pending) -> None:
        try:
            raw = await client.ask("approval/request", pending.request)
            answer = msgspec.json.decode(raw, type=ApprovalAnswer)
        except (RlmError, *UNDECODABLE):
            return  # this client cannot answer; another one may, or it expires
        if not pending.ruling.done():
            pending.ruling.set_result(Ruling(decision=answer.decision, reason=answer.reason))


def _asked(request: ApprovalRequest, turn_id: str | None, cell_id: str | None) -> r.ApprovalAsked:
    small = len(msgspec.json.encode(request.detail)) <= OUTPUT_INLINE_BYTES
    return r.ApprovalAsked(
        approval_id=request.approval_id,
        what=request.what,
        expires_at_ms=request.expires_at_ms,
        detail=request.detail if small else None,
        turn_id=turn_id,
        cell_id=cell_id,
    )
