"""Budgets of home, day, session and turn over random trees and kills between any two writes."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_host.children import accounts as accounts_module
from rlm_host.children.accounts import BUDGET, Accounts
from rlm_host.children.budget import NOTHING, Amount, BudgetBook, Scope
from rlm_host.children.spending import DAY, HOST, Spending
from rlm_host.models.catalog import ModelInfo
from rlm_host.models.prices import Price
from rlm_host.models.provider import Request, UserMessage
from rlm_protocol import records as r
from rlm_protocol.errors import BudgetExhausted
from rlm_protocol.usage import Budget, Usage

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
MODEL = ModelInfo(
    provider="a",
    name="b",
    max_output_tokens=50,
    prices=(Price(input_nano_usd_per_mtok=10**6, output_nano_usd_per_mtok=10**6),),
)
REQUEST = Request(model="a/b", messages=(UserMessage(text="x"),))
limits = st.builds(
    Budget, tokens=st.none() | st.integers(0, 2000), spawns=st.none() | st.integers(0, 5)
)


class Crash(BaseException):
    """The power went."""


class Power:
    """Goes out at the nth write, before or after it."""

    def __init__(self) -> None:
        self.left = -1

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


class Session:
    """As much of a session as budgets need: its journal is what survives."""

    def __init__(self, world: "World", name: str, parent: "Session | None", limit: Budget) -> None:
        self.world, self.id, self.parent, self.limit = world, name, parent, limit
        self.journal: list[r.Record] = [header(name)]
        self.launched_by: str | None = None
        self.requests = 0
        self.load()

    def load(self) -> None:
        self.folds = {BUDGET: BudgetBook()}
        for record in self.journal:
            self.folds[BUDGET].apply(r.Entry(1, 1, NOW_MS, record))

    @property
    def last_seq(self) -> int:
        return len(self.journal)

    @property
    def state(self) -> Any:
        turns = [one.turn_id for one in self.journal if isinstance(one, r.TurnAccepted)]
        return SimpleNamespace(
            options=SimpleNamespace(budget=self.limit),
            created_at_ms=NOW_MS,
            turn=SimpleNamespace(turn_id=turns[-1]) if turns else None,
            opened=SimpleNamespace(parent=self.parent),
        )

    async def append(self, *records: r.Record) -> None:
        self.world.power.point()
        self.journal += records
        for record in records:
            self.folds[BUDGET].apply(r.Entry(1, 1, NOW_MS, record))
        self.world.power.point()


class DurableSpending(Spending):
    """The real table; the power may go out around each of its writes."""

    power: Power

    def _write(self, work: Callable[[], Any]) -> Any:
        self.power.point()
        result = work()
        self.power.point()
        return result

    def reserve(self, *given: Any, **more: Any) -> tuple[str, ...]:
        result: tuple[str, ...] = self._write(
            lambda: super(DurableSpending, self).reserve(*given, **more)
        )
        return result

    def settle(self, *given: Any) -> None:
        self._write(lambda: super(DurableSpending, self).settle(*given))

    def release(self, *given: Any) -> None:
        self._write(lambda: super(DurableSpending, self).release(*given))


class World:
    """Two roots with trees below them, on one home. `start` is a host's start."""

    def __init__(self, path: Path, host: Budget, day: Budget, roots: list[Budget]) -> None:
        self.path, self.host, self.day = path, host, day
        self.power, self.now_ms = Power(), NOW_MS
        self.used, self.crashed = 0, False
        self.roots = [Session(self, f"root{n}", None, limit) for n, limit in enumerate(roots)]
        self.sessions = list(self.roots)
        self.open_spending()

    def open_spending(self) -> None:
        self.spending = DurableSpending(self.path, host=self.host, day=self.day)
        self.spending.power = self.power
        self.accounts = Accounts(self, lambda _: MODEL, self.spending)  # type: ignore[arg-type]

    # what Accounts asks of Kin
    @property
    def clock(self) -> Any:
        return SimpleNamespace(now_ms=lambda: self.now_ms)

    async def parent_of(self, actor: Session) -> tuple[Session, Any]:
        assert actor.parent is not None
        return actor.parent, SimpleNamespace(turn_id=actor.launched_by)

    async def root_of(self, actor: Session) -> Session:
        while actor.parent is not None:
            actor = actor.parent
        return actor

    def loaded(self, session_id: str) -> Session | None:
        return next((one for one in self.sessions if one.id == session_id), None)

    # what happens
    async def do(self, step: tuple[str, int, int, Budget]) -> None:
        what, who, number, limit = step
        actor = self.sessions[who % len(self.sessions)]
        if what == "turn":
            turn_id = f"{actor.id}-t{actor.last_seq}"
            await actor.append(r.TurnAccepted(turn_id=turn_id, budget=limit))
        elif what == "spawn":
            name = f"s{len(self.sessions)}"
            try:
                await self.accounts.reserve_spawn(actor, name)  # type: ignore[arg-type]
            except BudgetExhausted:
                return
            await self.accounts.settle_spawn(actor, name, spawned=True)  # type: ignore[arg-type]
            child = Session(self, name, actor, limit)
            turn = actor.state.turn
            child.launched_by = turn.turn_id if turn else None
            self.sessions.append(child)
        elif what == "midnight":
            self.now_ms += DAY_MS
        else:
            await self.request(actor, what, number)

    async def request(self, actor: Session, what: str, tokens: int) -> None:
        actor.requests += 1
        try:
            await self.accounts.reserve(actor, REQUEST, actor.requests)  # type: ignore[arg-type]
        except BudgetExhausted:
            return
        usage = None
        if what == "answered":
            usage = Usage(input_tokens=1, output_tokens=tokens, responses=1)
            self.used += 1 + tokens
        elif what == "unmeasured":
            usage = Usage(responses=1, unmeasured=1)
        await self.accounts.settle(actor, actor.requests, usage)  # type: ignore[arg-type]

    async def restart(self) -> None:
        self.spending.close()
        for session in self.sessions:
            session.load()
        self.open_spending()
        for root in self.roots:
            await self.accounts.recover(root)  # type: ignore[arg-type]

    # what must hold
    def check_limits(self) -> None:
        for root in self.roots:
            book = root.folds[BUDGET]
            tree = [one for one in self.sessions if root_of(one) is root]
            scopes = [Scope(key=one.id, limit=one.limit) for one in tree]
            scopes += [turn for one in tree for turn in one.folds[BUDGET].turns.values()]
            for scope in scopes:
                within(scope.limit, book.spent(scope.key), scope.key)
        within(self.host, self.spending.spent(), HOST)
        within(self.day, self.spending.spent(now_ms=self.now_ms), DAY)

    def check_settled(self) -> None:
        """Nothing is reserved, and what was used is on every account at least."""
        in_journals = 0
        for root in self.roots:
            book = root.folds[BUDGET]
            assert book.open == {}
            assert all(amount == NOTHING for amount in book.reserved.values())
            in_journals += sum(
                one.tokens for one in root.journal if isinstance(one, r.BudgetSettled)
            )
        assert self.spending.open() == {}
        assert self.used <= self.spending.spent().tokens <= in_journals


def within(limit: Budget, spent: Amount, key: str) -> None:
    assert limit.tokens is None or spent.tokens <= limit.tokens, key
    assert limit.spawns is None or spent.spawns <= limit.spawns, key


def root_of(session: Session) -> Session:
    return session if session.parent is None else root_of(session.parent)


def header(name: str) -> r.SessionOpened:
    return r.SessionOpened(session_id=name, name="", cwd="/", model="a/b", prompt="", max_depth=9)


steps = st.tuples(
    st.sampled_from(["answered", "answered", "unmeasured", "failed", "spawn", "turn", "midnight"]),
    st.integers(0, 9),
    st.integers(0, 50),
    limits,
)


@settings(max_examples=25, deadline=None)
@given(
    host=limits,
    day=limits,
    roots=st.lists(limits, min_size=2, max_size=2),
    life=st.lists(steps, max_size=15),
    crashes=st.lists(st.integers(1, 25), max_size=4),
)
def test_whatever_is_killed_no_scope_passes_its_limit_and_nothing_stays_reserved(
    host: Budget, day: Budget, roots: list[Budget], life: list[Any], crashes: list[int]
) -> None:
    lived(host, day, roots, life, crashes)


def lived(
    host: Budget, day: Budget, roots: list[Budget], life: list[Any], crashes: list[int]
) -> World:
    """Live a life, with the power going out after so many writes each time; give its end."""

    async def live(world: World) -> None:
        left = list(crashes)
        world.power.left = left.pop(0) if left else -1
        for step in life:
            try:
                await world.do(step)
            except Crash:
                world.crashed = True
                while True:  # a host that starts may be killed, too
                    world.power.left = left.pop(0) if left else -1
                    try:
                        await world.restart()
                        break
                    except Crash:
                        continue
            world.check_limits()
        world.power.left = -1
        await world.restart()
        world.check_limits()
        world.check_settled()
        world.spending.close()

    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "budget.sqlite3", host, day, roots)
        asyncio.run(live(world))
    return world


WIDE = Budget(tokens=100_000, spawns=100)
STORY: list[Any] = [
    ("turn", 0, 0, WIDE),
    ("answered", 0, 40, WIDE),
    ("spawn", 0, 0, WIDE),
    ("answered", 2, 30, WIDE),
    ("failed", 2, 0, WIDE),
    ("spawn", 2, 0, WIDE),
    ("answered", 1, 20, WIDE),
]


def test_a_kill_at_every_write_of_a_story_loses_nothing_that_was_used() -> None:
    calm = lived(WIDE, WIDE, [WIDE, WIDE], STORY, [])
    turn = calm.roots[0].folds[BUDGET].turns.keys()
    book = calm.roots[0].folds[BUDGET]
    [turn_id] = turn
    assert book.used[turn_id] == book.used["root0"], "the turn holds what it launched"
    for nth in itertools.count(1):
        world = lived(WIDE, WIDE, [WIDE, WIDE], STORY, [nth, nth % 5 + 1])
        if not world.crashed:
            break
    assert nth > 40


def test_a_row_that_no_journal_knows_is_released_at_recovery() -> None:
    """The host died between the home's row and the root's record."""

    async def live(world: World) -> None:
        world.power.left = 3  # after the row, before the record
        try:
            await world.do(("answered", 0, 5, Budget()))
        except Crash:
            pass
        else:
            raise AssertionError("the power stayed on")
        assert len(world.spending.open()) == 1
        assert [type(one) for one in world.roots[0].journal] == [r.SessionOpened]
        await world.restart()
        assert world.spending.open() == {}
        assert world.spending.spent() == NOTHING
        world.spending.close()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "budget.sqlite3"
        asyncio.run(live(World(path, Budget(tokens=1000), Budget(), [Budget(), Budget()])))
    assert accounts_module.OF_HOME.keys() == {HOST, DAY}
