"""No scope passes its limit and nothing stays reserved, whatever runs, fails, crashes or retries."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rlm_host.children.budget import NOTHING, Amount, BudgetBook, Scope
from rlm_protocol import records as r
from rlm_protocol.errors import BudgetExhausted
from rlm_protocol.usage import Budget

limits = st.builds(
    Budget,
    usd=st.none() | st.integers(0, 40).map(float),
    tokens=st.none() | st.integers(0, 400),
    spawns=st.none() | st.integers(0, 6),
)


def entry(record: Any) -> r.Entry:
    return r.Entry(1, 1, 0, record)


class Budgets(RuleBasedStateMachine):
    """A random tree of sessions whose requests reserve, settle, fail, or are cut off by a crash."""

    @initialize(limit=limits)
    def start(self, limit: Budget) -> None:
        self.paths: list[tuple[Scope, ...]] = [(Scope(key="s0", limit=limit),)]
        self.journal: list[Any] = []
        self.book = BudgetBook()
        self.count = 0

    def write(self, record: Any) -> None:
        self.journal.append(record)
        self.book.apply(entry(record))

    def reserve(self, path: tuple[Scope, ...], amount: Amount) -> bool:
        try:
            self.book.admit(amount, path, now_ms=0)
        except BudgetExhausted:
            return False
        self.count += 1
        self.write(
            r.BudgetReserved(
                reservation_id=f"r{self.count}",
                session_id=path[0].key,
                scopes=tuple(scope.key for scope in path),
                cost_nano_usd=amount.cost_nano_usd or 0,
                tokens=amount.tokens,
                spawns=amount.spawns,
            )
        )
        return True

    @rule(data=st.data(), limit=limits)
    def spawn(self, data: Any, limit: Budget) -> None:
        path = data.draw(st.sampled_from(self.paths))
        room = self.book.spawns_left(path)
        if self.reserve(path, Amount(spawns=1)):
            assert room is None or room > 0
            self.write(r.BudgetSettled(reservation_id=f"r{self.count}", spawns=1))
            self.paths.append((Scope(key=f"s{len(self.paths)}", limit=limit), *path))
        else:
            assert room is not None
            assert room < 1

    @rule(data=st.data(), usd=st.integers(0, 9), tokens=st.integers(0, 99))
    def request(self, data: Any, usd: int, tokens: int) -> None:
        path = data.draw(st.sampled_from(self.paths))
        self.reserve(path, Amount(cost_nano_usd=usd * 10**9, tokens=tokens))

    @rule(data=st.data(), part=st.fractions(0, 1))
    def settle(self, data: Any, part: Any) -> None:
        """Answered, failed (nothing used), or settled twice."""
        if not self.book.open:
            return
        key = data.draw(st.sampled_from(sorted(self.book.open)))
        reservation = self.book.open[key]
        settled = r.BudgetSettled(
            reservation_id=key,
            cost_nano_usd=int(reservation.cost_nano_usd * part),
            tokens=int(reservation.tokens * part),
        )
        self.write(settled)
        self.write(settled)

    @rule()
    def crash(self) -> None:
        """The host dies; the next one folds the journal and charges what was cut off in full."""
        before, self.book = self.book, BudgetBook()
        for record in self.journal:
            self.book.apply(entry(record))
        loaded = BudgetBook()
        loaded.load(before.dump())
        assert loaded == self.book == before
        for key, reservation in list(self.book.open.items()):
            self.write(
                r.BudgetSettled(
                    reservation_id=key,
                    cost_nano_usd=reservation.cost_nano_usd,
                    tokens=reservation.tokens,
                    spawns=reservation.spawns,
                )
            )
        assert all(amount == NOTHING for amount in self.book.reserved.values())

    @invariant()
    def no_scope_passes_its_limit(self) -> None:
        for path in self.paths:
            limit, spent = path[0].limit, self.book.spent(path[0].key)
            assert limit.usd is None or (spent.cost_nano_usd or 0) <= limit.usd * 10**9
            assert limit.tokens is None or spent.tokens <= limit.tokens
            assert limit.spawns is None or spent.spawns <= limit.spawns

    @invariant()
    def a_scope_holds_everything_below_it(self) -> None:
        reserved = self.book.reserved.get("s0", NOTHING)
        assert reserved.tokens == sum(res.tokens for res in self.book.open.values())

    def teardown(self) -> None:
        self.crash()


Budgets.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBudgets = Budgets.TestCase


def scope(**limit: Any) -> Scope:
    return Scope(key="s", limit=Budget(**limit), since_ms=1000)


@pytest.mark.parametrize(
    ("limit", "amount", "now_ms", "unit"),
    [
        ({"usd": 1}, Amount(cost_nano_usd=10**9), 0, None),
        ({"usd": 1}, Amount(cost_nano_usd=10**9 + 1), 0, "usd"),
        ({"usd": 1}, Amount(cost_nano_usd=None), 0, "usd"),
        ({}, Amount(cost_nano_usd=None), 0, None),
        ({"tokens": 5}, Amount(cost_nano_usd=None, tokens=5), 0, None),
        ({"tokens": 5}, Amount(tokens=6), 0, "tokens"),
        ({"spawns": 0}, Amount(spawns=1), 0, "spawns"),
        ({"spawns": 0}, Amount(tokens=10**9), 0, None),
        ({"seconds": 2}, Amount(), 3000, None),
        ({"seconds": 2}, Amount(), 3001, "seconds"),
    ],
)
def test_limits(limit: dict[str, Any], amount: Amount, now_ms: int, unit: str | None) -> None:
    if unit is None:
        BudgetBook().admit(amount, (scope(**limit),), now_ms=now_ms)
    else:
        with pytest.raises(BudgetExhausted) as caught:
            BudgetBook().admit(amount, (scope(**limit),), now_ms=now_ms)
        assert caught.value.data["unit"] == unit
        assert caught.value.data["limit"] == limit[unit]


def test_a_scope_warns_once_at_80_percent() -> None:
    book, of_tokens = BudgetBook(), scope(tokens=10)
    for number, warned in ((7, []), (1, [of_tokens]), (2, [of_tokens])):
        reserved = r.BudgetReserved(
            reservation_id=str(number), session_id="s", scopes=("s",), tokens=number
        )
        book.apply(entry(reserved))
        assert book.to_warn((of_tokens,), now_ms=0) == warned
    book.apply(entry(r.BudgetWarned(scope="s")))
    assert book.to_warn((of_tokens,), now_ms=0) == []
