"""
The money of a tree: usage is folded upwards, budgets are admitted at its root.

Both are kept under one lock for each journal that is written to, because a decision and the record
of it must not have another one between them.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar, cast

import anyio
import msgspec

from rlm_protocol import records as r
from rlm_protocol.errors import RlmError
from rlm_protocol.item import Notice
from rlm_protocol.usage import Usage

from ..models.catalog import ModelInfo
from ..models.prices import cost_nano_usd
from ..models.provider import Request
from ..models.provider import Usage as Measured
from ..processes.pipes import to_the_end
from ..sessions.session import SessionActor
from .budget import NOTHING, Amount, BudgetBook, Scope
from .kin import Kin, registry_of
from .registry import Child
from .spending import DAY, HOST, Spending

BUDGET = "budget"
"""Name of this module's fold in `SessionPorts.folds`."""
OF_SESSION = "More than 80 % of this session's budget is used or reserved."
OF_HOME = {
    HOST: "More than 80 % of this host's budget is used or reserved.",
    DAY: "More than 80 % of this host's budget for today is used or reserved.",
}
OUTPUT_TOKENS_UNKNOWN = 128_000
"""The longest answer that is assumed of a model whose limits are not known."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Accounts:
    """
    Keeps usage and budgets of every tree. Made once, by the service.

    `spending` holds the limits of host and day; None when there are none.
    """

    def __init__(
        self, kin: Kin, resolve: Callable[[str], ModelInfo], spending: Spending | None = None
    ) -> None:
        self._kin, self._resolve, self._spending = kin, resolve, spending
        self._locks: dict[str, anyio.Lock] = {}
        self._owed: dict[str, dict[str, r.BudgetSettled]] = {}
        """Settlements of each root that a disk did not take, by reservation."""

    # --- usage ---

    async def fold_up(self, actor: SessionActor) -> None:
        """
        Bring every ancestor up to date with what this session's subtree has used.

        A disk that does not take a record is logged: the difference is folded up with the next.
        """
        while actor.state.opened.parent is not None:
            parent, child = await self._kin.parent_of(actor)
            try:
                await self._fold_child(parent, child, actor)
            except RlmError as why:
                log.warning("usage of %s is not folded up yet: %s", child.id, why)
                return
            actor = parent

    async def _fold_child(self, parent: SessionActor, child: Child, actor: SessionActor) -> None:
        async with self._lock(parent):
            attribution = registry_of(parent).attribution
            due = attribution.due(child.id, actor.state.subtree, child.item_id)
            if due is not None:
                await parent.append(due)

    # --- budgets ---

    async def reserve(self, actor: SessionActor, request: Request, attempt: int) -> None:
        """
        Set the worst case of a request aside on every scope above the session that has a limit.

        Raises:
            BudgetExhausted: a scope has no room; nothing was set aside.
        """
        scopes = await self._scopes(actor)
        if scopes or self._spending:
            key = _request_id(actor, attempt)
            worst = worst_case(request, self._resolve(request.model))
            try:
                await self._admit(actor, scopes, worst, key)
            except asyncio.CancelledError:
                # The reservation may be on its way to the disk: what follows it frees it.
                root = await self._kin.root_of(actor)
                await self._close(root, r.BudgetSettled(reservation_id=key))
                raise

    async def reserve_spawn(self, actor: SessionActor, child_id: str) -> None:
        """Count a spawn. Raises BudgetExhausted."""
        scopes = await self._scopes(actor)
        if scopes or self._spending:
            await self._admit(actor, scopes, Amount(spawns=1), f"{actor.id}-{child_id}")

    async def settle(self, actor: SessionActor, attempt: int, usage: Usage | None) -> None:
        """Put what a request really took in the place of its worst case; None: it took nothing."""
        await self._settle(actor, _request_id(actor, attempt), usage)

    async def settle_spawn(self, actor: SessionActor, child_id: str, *, spawned: bool) -> None:
        """Keep the spawn that was counted, or give it back."""
        root = await self._kin.root_of(actor)
        reservation = f"{actor.id}-{child_id}"
        if reservation in book_of(root).open:
            await self._close(
                root, r.BudgetSettled(reservation_id=reservation, spawns=int(spawned))
            )

    async def recover(self, root: SessionActor) -> None:
        """Settle what a crash cut off: whether it was used is not known, so it is charged whole."""
        for reservation in tuple(book_of(root).open.values()):
            await self._close(root, _whole(reservation))
        await self._spend(lambda home: home.release(root.id))

    async def spawns_left(self, actor: SessionActor) -> int | None:
        """Give how many more children the budgets above a session admit; None without a limit."""
        scopes, root = await self._scopes(actor), await self._kin.root_of(actor)
        await self._catch_up(root)
        return book_of(root).spawns_left(scopes) if scopes else None

    async def _admit(
        self, actor: SessionActor, scopes: tuple[Scope, ...], amount: Amount, key: str
    ) -> None:
        root = await self._kin.root_of(actor)
        async with self._lock(root):
            await self._catch_up(root)
            book, now_ms = book_of(root), self._kin.clock.now_ms()
            book.admit(amount, scopes, now_ms=now_ms)
            low = await self._spend(lambda home: home.reserve(key, root.id, amount, now_ms=now_ms))
            reserved = r.BudgetReserved(
                reservation_id=key,
                session_id=actor.id,
                scopes=tuple(scope.key for scope in scopes),
                cost_nano_usd=amount.cost_nano_usd or 0,
                tokens=amount.tokens,
                spawns=amount.spawns,
            )
            try:
                await root.append(reserved)
            except RlmError:
                await self._spend(lambda home: home.settle(key, NOTHING))
                raise
            for scope in book.to_warn(scopes, now_ms=now_ms):
                await self._warn(root, scope.key, scope.session_id, OF_SESSION)
            for name in set(low or ()) - book.warned.keys():
                await self._warn(root, name, actor.id, OF_HOME[name])

    async def _settle(self, actor: SessionActor, key: str, usage: Usage | None) -> None:
        root = await self._kin.root_of(actor)
        reservation = book_of(root).open.get(key)
        if reservation is None:
            return
        if usage is None:
            settled = r.BudgetSettled(reservation_id=key)
        elif usage.unmeasured:
            settled = _whole(reservation)
        else:
            settled = r.BudgetSettled(
                reservation_id=key,
                cost_nano_usd=(
                    reservation.cost_nano_usd if usage.unknown_cost else usage.cost_nano_usd
                ),
                tokens=usage.input_tokens + usage.output_tokens,
            )
        await self._close(root, settled)

    async def _close(self, root: SessionActor, settled: r.BudgetSettled) -> None:
        """
        Settle with the home first, then in the journal (see `Spending`).

        What a disk does not take stays reserved: it is settled before the next admission, or
        charged whole by recovery.
        """
        owed = self._owed.setdefault(root.id, {})
        owed[settled.reservation_id] = settled
        amount = Amount(
            cost_nano_usd=settled.cost_nano_usd, tokens=settled.tokens, spawns=settled.spawns
        )
        try:
            await self._spend(lambda home: home.settle(settled.reservation_id, amount))
            await root.append(settled)
        except RlmError as why:
            log.warning("reservation %s stays open: %s", settled.reservation_id, why)
        else:
            owed.pop(settled.reservation_id, None)

    async def _catch_up(self, root: SessionActor) -> None:
        """Settle what could not be settled."""
        for settled in tuple(self._owed.get(root.id, {}).values()):
            await self._close(root, settled)

    async def _spend(self, work: Callable[[Spending], T]) -> T | None:
        """Do something with the home's spending, whole; None where nothing limits it."""
        if self._spending is None:
            return None
        loop = asyncio.get_running_loop()
        return await to_the_end(loop.run_in_executor(None, work, self._spending))

    async def _warn(self, root: SessionActor, scope: str, session_id: str, text: str) -> None:
        """Say once that a scope runs low; a disk that does not take it is told the next time."""
        now_ms, target = self._kin.clock.now_ms(), self._kin.loaded(session_id)
        notice = Notice(
            id=f"budget-{scope}-{root.last_seq}",
            level="warning",
            text=text,
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )
        try:
            await root.append(r.BudgetWarned(scope=scope))
            if target is not None:
                await target.append(r.ItemCompleted(item=notice, shown=notice.text))
        except RlmError as why:
            log.warning("%s was not told that %s runs low: %s", session_id, scope, why)

    async def _scopes(self, actor: SessionActor) -> tuple[Scope, ...]:
        """
        Give what the session's requests are charged to, innermost first, as far as it has a limit.

        On every level that is the turn, of a parent the one that gave the task, and the session.
        """
        scopes = []
        turn_id = actor.state.turn.turn_id if actor.state.turn else None
        while True:
            if (turn := book_of(actor).turns.get(turn_id or "")) is not None:
                scopes.append(turn)
            limit, since_ms = actor.state.options.budget, actor.state.created_at_ms
            if limit is not None:
                scopes.append(
                    Scope(key=actor.id, limit=limit, since_ms=since_ms, session_id=actor.id)
                )
            if actor.state.opened.parent is None:
                return tuple(scopes)
            actor, child = await self._kin.parent_of(actor)
            turn_id = child.turn_id

    def _lock(self, actor: SessionActor) -> anyio.Lock:
        return self._locks.setdefault(actor.id, anyio.Lock())


def book_of(root: SessionActor) -> BudgetBook:
    """Give the budget book of a tree."""
    return cast(BudgetBook, root.folds[BUDGET])


def worst_case(request: Request, model: ModelInfo) -> Amount:
    """
    Give the most that a request can take.

    A token is at least a byte, so the request's bytes bound its tokens; the answer is bounded by
    what was asked for, by the model's limit, or by its window. Writing to a cache may cost more
    than plain input.
    """
    tokens_in = len(msgspec.json.encode(request))
    tokens_out = (
        request.max_output_tokens
        or model.max_output_tokens
        or model.context_window_tokens
        or OUTPUT_TOKENS_UNKNOWN
    )
    costs = [
        cost_nano_usd(
            model.prices,
            Measured(input_tokens=tokens_in, cache_write_tokens=cached, output_tokens=tokens_out),
        )
        for cached in (0, tokens_in)
    ]
    known = [cost for cost in costs if cost is not None]
    return Amount(
        cost_nano_usd=max(known) if len(known) == len(costs) else None,
        tokens=tokens_in + tokens_out,
    )


def _request_id(actor: SessionActor, attempt: int) -> str:
    turn = actor.state.turn
    return f"{actor.id}-{turn.turn_id if turn else ''}-{attempt}"


def _whole(reservation: r.BudgetReserved) -> r.BudgetSettled:
    return r.BudgetSettled(
        reservation_id=reservation.reservation_id,
        cost_nano_usd=reservation.cost_nano_usd,
        tokens=reservation.tokens,
        spawns=reservation.spawns,
    )
