"""Budgets over real sessions: admitted before the request, told once, zero reserved at the end."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.accounts import book_of, worst_case
from rlm_host.children.budget import NOTHING
from rlm_host.children.spending import Spending
from rlm_host.models.catalog import ModelInfo
from rlm_host.models.prices import Price
from rlm_host.models.provider import Request, UserMessage
from rlm_host.sessions.session import SessionActor
from rlm_protocol import errors as e
from rlm_protocol.item import Notice
from rlm_protocol.usage import Budget
from support.family import Family, family
from support.processes import in_time

pytestmark = pytest.mark.anyio


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})


def settled(root: SessionActor) -> None:
    book = book_of(root)
    assert book.open == {}
    assert all(amount == NOTHING for amount in book.reserved.values())


async def spawn_all(host: Family, root: SessionActor, count: int) -> list[str]:
    agents = [await host.spawn(root, SAY, name=f"w{n}") for n in range(count)]
    return [agent.status for agent in await host.ended(root, *agents)]


async def test_no_request_goes_out_that_the_root_has_no_room_for(tmp_path: Path) -> None:
    """The scripted model's worst case is its window: 200,000 tokens of output."""
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo", budget=Budget(tokens=250_000))
        assert await spawn_all(host, root, 1) == ["completed"]
        [notice] = await host.noticed(root, 1)
        assert notice.notice == "endedWithoutReply"
        await root.wait_idle()  # the notice made a turn of its own, which is metered too
        settled(root)
        used, whole = book_of(root).used[root.id].tokens, root.state.own + root.state.attributed
        assert used == whole.input_tokens + whole.output_tokens
    async with family(tmp_path / "tight") as host:
        (tmp_path / "tight").mkdir(exist_ok=True)
        root = await host.root(model="scripted/echo", budget=Budget(tokens=1_000))
        assert await spawn_all(host, root, 2) == ["error", "error"]
        for agent in host.children.agents(root):
            assert agent.error is not None
            assert "budget" in agent.error
        assert root.state.attributed.responses == 0
        settled(root)


async def test_a_childs_own_budget_ends_it_with_what_it_has(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(budget=Budget(usd=10))
        agent = await host.spawn(root, SAY, name="poor", budget={"usd": 0.01})
        [ended] = await host.ended(root, agent)
        assert ended.status == "error"
        rich = await host.spawn(root, SAY, name="rich", budget={"usd": 2})
        [ended] = await host.ended(root, rich)
        assert ended.status == "completed"
        assert len(await host.noticed(root, 2)) == 2
        settled(root)
        assert set(book_of(root).used) >= {root.id, rich.session_id}


async def test_spawns_are_counted_where_they_are_admitted(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(budget=Budget(spawns=2))
        await spawn_all(host, root, 2)
        with pytest.raises(e.BudgetExhausted):
            await host.spawn(root, SAY, name="third")
        with pytest.raises(e.NameTaken):
            await host.spawn(root, SAY, name="w1")
        assert len(host.children.agents(root)) == 2
        await host.noticed(root, 2)
        settled(root)


async def test_one_warning_at_80_percent_and_reservations_survive_a_restart(
    tmp_path: Path,
) -> None:
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo", budget=Budget(tokens=240_000))
        await host.say(root, "one")
        await host.say(root, "two")
        items = await host.items(root)
        assert [i.level for i in items if isinstance(i, Notice)] == ["warning"]
        used = dict(book_of(root).used)
    async with family(tmp_path) as host:
        root = await host.store.get(root.id)
        assert book_of(root).used == used
        await host.say(root, "three")
        items = await host.items(root)
        assert len([i for i in items if isinstance(i, Notice)]) == 1
        settled(root)


async def test_a_turns_budget_bounds_what_the_turn_launches_and_nothing_else(
    tmp_path: Path,
) -> None:
    """The scripted model's window makes a worst case of at least 200,000 tokens."""
    spawn = "await rlm({0!r}, name={1!r}, model='scripted/steps', unguarded=True)"
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/steps")
        turn_id = await root.start_turn(
            play({"call": spawn.format(SAY, "one")}, {"text": "ok"}),
            budget=Budget(tokens=900_000, spawns=1),
        )
        await host.noticed(root, 1)
        used = book_of(root).used[turn_id]
        child = host.agent(root, "one")
        tokens = child.usage.input_tokens + child.usage.output_tokens
        assert used.spawns == 1
        assert used.tokens > tokens > 0, "the turn's own requests, and the child's"
        await host.children.send(root, "one", SAY)  # a client's task: no turn's
        await host.noticed(root, 2)
        assert book_of(root).used[turn_id] == used
        await root.start_turn(
            play({"call": spawn.format(SAY, "two")}, {"call": spawn.format(SAY, "three")}),
            budget=Budget(spawns=1),
        )
        await host.noticed(root, 3)
        assert [agent.name for agent in host.children.agents(root)] == ["one", "two"]
        poor = await root.start_turn("[]", budget=Budget(tokens=1000))
        await in_time(root.wait_idle())
        ended = [i for i in await host.items(root) if getattr(i, "turn_id", None) == poor]
        assert root.state.last_status == "failed"
        assert [type(one).__name__ for one in ended] == ["UserMessage"]
        await host.say(root, SAY)
        assert root.state.last_status == "completed"
        settled(root)


async def test_host_and_day_bound_every_tree_of_a_home(tmp_path: Path) -> None:
    path = tmp_path / "home" / "budget.sqlite3"

    def limited() -> Spending:
        return Spending(path, host=Budget(spawns=2), day=Budget(tokens=450_000))

    async with (
        family(tmp_path, spending=limited()) as one,
        family(tmp_path, spending=limited()) as two,
    ):
        first, second = await one.root(model="scripted/echo"), await two.root(model="scripted/echo")
        for host, root in ((one, first), (two, second)):
            await spawn_all(host, root, 1)
            await host.noticed(root, 1)
        with pytest.raises(e.BudgetExhausted) as caught:
            await two.spawn(second, SAY, name="third")
        assert (caught.value.data["scope"], caught.value.data["unit"]) == ("host", "spawns")
        spent = limited().spent()
        whole = [actor.state.own + actor.state.attributed for actor in (first, second)]
        assert spent.tokens == sum(usage.input_tokens + usage.output_tokens for usage in whole)
        assert limited().open() == {}
        assert spent.spawns == 2
    async with family(
        tmp_path, spending=Spending(path, host=None, day=Budget(tokens=200_000))
    ) as host:
        root = await host.store.get(first.id)
        await host.say(root, "no room today")
        assert root.state.last_status == "failed"
        assert limited().open() == {}
    async with family(
        tmp_path, spending=Spending(path, host=None, day=Budget(tokens=240_000))
    ) as host:
        root = await host.store.get(first.id)
        await host.say(root, "one")
        await host.say(root, "two")
        notices = [i for i in await host.items(root) if isinstance(i, Notice)]
        assert ["for today" in notice.text for notice in notices] == [True]


async def test_an_unknown_price_is_refused_where_money_is_limited(tmp_path: Path) -> None:
    providers = {"local": {"kind": "openai", "base_url": "http://127.0.0.1:9", "models": ["m"]}}
    spending = Spending(
        tmp_path / "home" / "budget.sqlite3", host=None, day=Budget(usd=1_000_000.0)
    )
    async with family(tmp_path, providers=providers, spending=spending) as host:
        root = await host.root(model="local/m")
        await host.say(root, "hello")
        assert root.state.last_status == "failed"
        assert root.state.own.responses == 0


def test_the_worst_case_is_one() -> None:
    request = Request(model="a/b", messages=(UserMessage(text="é" * 100),))
    price = Price(
        input_nano_usd_per_mtok=1_000_000_000,
        output_nano_usd_per_mtok=2_000_000_000,
        cache_write_nano_usd_per_mtok=5_000_000_000,
    )
    model = ModelInfo(provider="a", name="b", max_output_tokens=1000, prices=(price,))
    worst = worst_case(request, model)
    assert worst.tokens >= 200 + 1000
    assert worst.cost_nano_usd == 1000 * 2000 + (worst.tokens - 1000) * 5000
    unknown = worst_case(request, ModelInfo(provider="a", name="b", context_window_tokens=5))
    assert unknown.cost_nano_usd is None
    assert unknown.tokens == worst.tokens - 1000 + 5
