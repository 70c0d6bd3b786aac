"""Reports about systems like this one, replayed: children that vanish, come back, or end unheard."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.kin import registry_of
from rlm_protocol import errors as e
from support.family import Family, family
from support.processes import in_time, until

pytestmark = pytest.mark.anyio


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})
WAIT = play({"wait_ms": 600_000})


async def test_ten_that_are_cancelled_at_once_are_all_terminal_and_stay_so(tmp_path: Path) -> None:
    """Killed children reappeared from their transcripts (oh-my-pi #7250, #10531)."""
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo")
        agents = [await host.spawn(root, WAIT, name=f"w{n}") for n in range(10)]
        await until(lambda: "running" in {a.status for a in host.children.agents(root)})
        await in_time(asyncio.gather(*(host.children.cancel(root, one.child_id) for one in agents)))
        assert [a.status for a in host.children.agents(root)] == ["cancelled"] * 10
        assert len(await host.noticed(root, 10)) == 10
    async with family(tmp_path) as host:
        root = await host.store.get(root.id)
        assert [a.status for a in host.children.agents(root)] == ["cancelled"] * 10
        assert len(await host.notices(root)) == 10


async def test_a_child_whose_process_is_killed_ends_with_one_notice(tmp_path: Path) -> None:
    """An orphaned run was removed silently, and its parent waited for ever (openclaw #35865)."""
    die = play({"call": "import os; os.kill(os.getpid(), 9)"}, {"text": "gave up"})
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo")
        await host.spawn(root, die, name="w", result={"required": True})
        [notice] = await host.noticed(root, 1)
        assert notice.notice == "failed"
        child = registry_of(root).children[notice.sender_id]
        told = await host.store.peek(child.admitted.session_id)
        assert told[0].last_status == "completed", "it was told of the death and went on"
    async with family(tmp_path) as host:
        assert len(await host.notices(await host.store.get(root.id))) == 1


async def test_nothing_said_to_a_child_that_is_being_deleted_brings_it_back(
    tmp_path: Path,
) -> None:
    """A stale message created a deleted sub-agent again (cloudflare/agents #2024)."""
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo")
        agent = await host.spawn(root, SAY, name="w")
        await host.noticed(root, 1)
        works = [host.children.delete(root, agent.child_id), *_messages(host, root, 3)]
        ended = await in_time(asyncio.gather(*works, return_exceptions=True))
        refused = (e.AgentNotFound, e.SessionClosed, e.SessionNotFound, e.MessageLimit)
        assert not isinstance(ended[0], BaseException)
        assert all(isinstance(one, refused) or not isinstance(one, Exception) for one in ended)
        for late in _messages(host, root, 1):
            with pytest.raises(e.AgentNotFound):
                await late
        with pytest.raises(e.SessionNotFound):
            await host.store.get(agent.session_id)
        before = _names(agent.session_dir)
        await in_time(root.wait_idle())
        assert _names(agent.session_dir) == before
        assert [one.status for one in registry_of(root).children.values()] == ["deleted"]


async def test_a_cell_that_gives_up_a_spawn_leaves_a_child_that_runs_or_none(
    tmp_path: Path,
) -> None:
    """Admitted and never begun, a child would be queued for ever and its parent never quiet."""
    code = f"""
import asyncio
for n in range(40):
    try:
        await asyncio.wait_for(rlm({SAY!r}, model='scripted/steps', unguarded=True), n / 4000)
    except TimeoutError:
        pass
"""
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo")
        assert await host.cell(root, code) == ""
        await until(lambda: not registry_of(root).busy(), "the end of every child")
        known = host.children.agents(root)
        assert {agent.status for agent in known} <= {"completed"}
        await host.noticed(root, len(known))


def _messages(host: Family, root: Any, count: int) -> list[Any]:
    return [host.children.send(root, "w", SAY) for _ in range(count)]


def _names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())
