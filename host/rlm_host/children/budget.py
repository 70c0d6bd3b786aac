"""
Budgets of a tree: admitted, not observed. A fold of the root's budget records. Pure.

Before a request goes out its worst case is set aside on every scope above it, in one record; what
it really took is settled afterwards and the rest is free again. A scope therefore never passes its
limit, whatever runs side by side and whenever the host dies.
"""

from typing import Any

import msgspec

from rlm_protocol import records as r
from rlm_protocol.child import BudgetReserved, BudgetSettled, BudgetWarned
from rlm_protocol.errors import BudgetExhausted
from rlm_protocol.usage import Budget

WARN_AT = 0.8
NANO_PER_USD = 1_000_000_000


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """Money, tokens and spawns. `cost_nano_usd` None: the price is unknown."""

    cost_nano_usd: int | None = 0
    tokens: int = 0
    spawns: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            cost_nano_usd=(self.cost_nano_usd or 0) + (other.cost_nano_usd or 0),
            tokens=self.tokens + other.tokens,
            spawns=self.spawns + other.spawns,
        )

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(
            cost_nano_usd=(self.cost_nano_usd or 0) - (other.cost_nano_usd or 0),
            tokens=self.tokens - other.tokens,
            spawns=self.spawns - other.spawns,
        )


NOTHING = Amount()


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """
    One scope that a request is charged to: its key, its limits, and when they began to count.

    `session_id` is the session that is told when it runs low.
    """

    key: str
    limit: Budget = Budget()
    since_ms: int = 0
    session_id: str = ""


class BudgetBook(msgspec.Struct, kw_only=True):
    """
    What every scope of a tree has used and has reserved. Changed by `apply` alone.

    `open` are the reservations without a settlement. After a restart they are those of requests
    that were cut off, and the host settles them with their full worst case. `turns` are the
    session's own turns with a budget, by their ids; all else is filled in the root's book alone.
    """

    session_id: str = ""
    turns: dict[str, Scope] = {}
    used: dict[str, Amount] = {}
    reserved: dict[str, Amount] = {}
    open: dict[str, BudgetReserved] = {}
    warned: dict[str, None] = {}

    def apply(self, entry: r.Entry) -> None:
        """Take in the next record; a settlement without its reservation changes nothing."""
        match entry.record:
            case r.SessionOpened(session_id=session_id):
                self.session_id = session_id
            case r.TurnAccepted(turn_id=turn_id, budget=Budget() as limit):
                self.turns[turn_id] = Scope(
                    key=turn_id, limit=limit, since_ms=entry.at_ms, session_id=self.session_id
                )
            case BudgetReserved() as record:
                if record.reservation_id not in self.open:
                    self.open[record.reservation_id] = record
                    _add(self.reserved, record.scopes, _amount(record))
            case BudgetSettled() as record:
                reservation = self.open.pop(record.reservation_id, None)
                if reservation is not None:
                    _add(self.reserved, reservation.scopes, NOTHING - _amount(reservation))
                    _add(self.used, reservation.scopes, _amount(record))
            case BudgetWarned(scope=scope):
                self.warned[scope] = None
            case _:
                pass

    def dump(self) -> Any:
        """Give the state as JSON builtins."""
        return msgspec.to_builtins(self)

    def load(self, state: Any) -> None:
        """Take a dumped state. Raises ValueError (msgspec.ValidationError) when it is none."""
        loaded = msgspec.convert(state, BudgetBook)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(loaded, name))

    def spent(self, key: str) -> Amount:
        """Give what a scope has used and reserved."""
        return self.used.get(key, NOTHING) + self.reserved.get(key, NOTHING)

    def admit(self, amount: Amount, scopes: tuple[Scope, ...], *, now_ms: int) -> None:
        """
        Hold a worst case to every scope, innermost first.

        Raises:
            BudgetExhausted: a scope has no room (`scope`, `unit`, `used`, `limit`), or it limits
                money and the price of the request is unknown.
        """
        for scope in scopes:
            check_room(scope, self.spent(scope.key), amount, now_ms=now_ms)

    def to_warn(self, scopes: tuple[Scope, ...], *, now_ms: int) -> list[Scope]:
        """Give the scopes that have passed 80 % of a limit and were not warned yet."""
        return [
            scope
            for scope in scopes
            if scope.key not in self.warned and is_low(scope, self.spent(scope.key), now_ms=now_ms)
        ]

    def spawns_left(self, scopes: tuple[Scope, ...]) -> int | None:
        """Give how many children the narrowest scope still admits; None when none limits them."""
        rooms = [
            scope.limit.spawns - self.spent(scope.key).spawns
            for scope in scopes
            if scope.limit.spawns is not None
        ]
        return min(rooms, default=None)


def check_room(scope: Scope, spent: Amount, amount: Amount, *, now_ms: int) -> None:
    """
    Hold an amount to one scope that has used and reserved `spent`.

    Raises:
        BudgetExhausted: there is no room, or money is limited and the price is unknown.
    """
    if scope.limit.usd is not None and amount.cost_nano_usd is None:
        raise BudgetExhausted(
            "The budget limits money and the price of this model is unknown.",
            scope=scope.key,
            unit="usd",
            used=(spent.cost_nano_usd or 0) / NANO_PER_USD,
            limit=scope.limit.usd,
        )
    for unit, wanted, limit in _measures(scope, spent + amount, now_ms):
        if wanted > limit:
            used = next(u for n, u, _ in _measures(scope, spent, now_ms) if n == unit)
            raise BudgetExhausted(scope=scope.key, unit=unit, used=used, limit=limit)


def is_low(scope: Scope, spent: Amount, *, now_ms: int) -> bool:
    """Whether a scope has passed 80 % of one of its limits."""
    return any(used >= WARN_AT * limit for _, used, limit in _measures(scope, spent, now_ms))


def _measures(scope: Scope, amount: Amount, now_ms: int) -> list[tuple[str, float, float]]:
    """Give `(unit, amount, limit)` for each limit of a scope, in the limit's own unit."""
    limit = scope.limit
    rows = (
        ("usd", (amount.cost_nano_usd or 0) / NANO_PER_USD, limit.usd),
        ("tokens", amount.tokens, limit.tokens),
        ("spawns", amount.spawns, limit.spawns),
        ("seconds", (now_ms - scope.since_ms) / 1000, limit.seconds),
    )
    return [(unit, spent, bound) for unit, spent, bound in rows if bound is not None]


def _amount(record: BudgetReserved | BudgetSettled) -> Amount:
    return Amount(cost_nano_usd=record.cost_nano_usd, tokens=record.tokens, spawns=record.spawns)


def _add(book: dict[str, Amount], scopes: tuple[str, ...], amount: Amount) -> None:
    for key in scopes:
        book[key] = book.get(key, NOTHING) + amount
