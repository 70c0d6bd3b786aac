"""Budgets over real sessions: admitted before the request, told once, zero reserved at the end."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.accounts import book_of, worst_case
from rlm_host.children.budget import NOTHING
from rlm_host.models.catalog import ModelInfo
from rlm_host.models.prices import Price
from rlm_host.models.provider import Request, UserMessage
from rlm_host.sessions.session import SessionActor
from rlm_protocol import errors as e
from rlm_protocol.item import Notice
from rlm_protocol.session import Budget
from support.family import Family, family

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
