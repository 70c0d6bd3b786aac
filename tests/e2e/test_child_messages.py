"""Who may write to whom, how it arrives, and what a parent may see of its children."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.kin import recent_of
from rlm_host.sessions.session import SessionActor
from rlm_protocol import bridge
from rlm_protocol import errors as e
from rlm_protocol.item import ChildMessage
from support.family import STEPS, Family, family
from support.processes import in_time, until

pytestmark = pytest.mark.anyio


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})


async def ask(host: Family, actor: SessionActor, kind: str, **payload: Any) -> Any:
    """A host request, as a cell of this session would make it."""
    return await actor.ports.answer(actor, kind, payload, None)


async def session_of(host: Family, root: SessionActor, name: str) -> SessionActor:
    return await host.store.get(host.agent(root, name).session_id)


async def heard(host: Family, actor: SessionActor) -> list[tuple[str, str, str]]:
    items = await host.items(actor)
    return [
        (i.relationship, i.sender_name, i.text)
        for i in items
        if isinstance(i, ChildMessage) and i.notice is None
    ]


async def test_the_host_says_who_a_message_is_from(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(name="boss", model=STEPS)
        await host.spawn(root, SAY, name="ann")
        await host.spawn(root, SAY, name="bob")
        await host.noticed(root, 2)
        ann, bob = await session_of(host, root, "ann"), await session_of(host, root, "bob")
        receipt = await ask(host, ann, "rlm.send_sibling", name="bob", message=" look ")
        assert (receipt.target, receipt.delivery_status) == ("bob", "delivered")
        await ask(host, ann, "rlm.send_parent", message="up")
        await in_time(bob.wait_idle())
        await in_time(root.wait_idle())
        assert (await heard(host, bob))[-1] == ("sibling", "ann", "look")
        assert await heard(host, root) == [("child", "ann", "up")]
        await until(lambda: host.agent(root, "bob").status == "completed")
        assert host.agent(root, "bob").generation == 1
        assert len(await host.notices(root)) == 2
        for wrong in (
            ask(host, ann, "rlm.send_sibling", name="ann", message="me"),
            ask(host, ann, "rlm.send_sibling", name="boss", message="no sibling"),
            ask(host, ann, "rlm.send_child", name="bob", message="no child"),
            ask(host, root, "rlm.send_child", name="carl", message="nobody"),
        ):
            with pytest.raises(e.AgentNotFound):
                await wrong
        for orphan in (
            ask(host, root, "rlm.send_parent", message="x"),
            ask(host, root, "rlm.send_sibling", name="ann", message="x"),
            ask(host, root, "rlm.submit_result", value=1),
        ):
            with pytest.raises(e.NotAChild):
                await orphan


async def test_a_message_steers_a_child_that_works_and_keeps_its_task(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        task = play({"call": "import asyncio; await asyncio.sleep(1)"}, {"text": "ok"})
        await host.spawn(root, task, name="w")
        child_id = host.agent(root, "w").session_id
        await until(lambda: _cell_runs(host, child_id))
        receipt = await host.children.send(root, "w", "hurry")
        assert receipt.delivery_status == "queued"
        await host.noticed(root, 1)
        assert host.agent(root, "w").generation == 1
        child = await host.store.get(child_id)
        assert [text for _, _, text in await heard(host, child)] == [task, "hurry"]


def _cell_runs(host: Family, session_id: str) -> bool:
    return any(a.id == session_id and a.state.open_cells for a in host.store.loaded())


async def test_family_shows_parent_siblings_and_children_in_order(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(name="boss")
        for name in ("zoe", "ann", "mid"):
            await host.spawn(root, SAY, name=name)
        await host.spawn(root, play({"error": "auth"}), name="failed")
        await host.noticed(root, 4)
        mid = await session_of(host, root, "mid")
        await host.spawn(mid, SAY, name="leaf")
        await host.noticed(mid, 1)
        found = await ask(host, mid, "rlm.family")
        assert isinstance(found, bridge.Family)
        assert found.current is not None
        assert found.current.name == "mid"
        assert [(m.relationship, m.name, m.depth) for m in found.entries] == [
            ("parent", "boss", 0),
            ("sibling", "ann", 1),
            ("sibling", "zoe", 1),
            ("child", "leaf", 2),
        ]
        top = await ask(host, root, "rlm.family")
        assert top.current is None
        assert [m.replied_since_task for m in top.entries] == [False] * 3
        assert {m.status for m in top.entries} == {"idle"}


async def test_policies_switch_notice_messages_and_observation_off_each_alone(
    tmp_path: Path,
) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        for switch in ("terminal", "messages", "observe"):
            await host.spawn(root, SAY, name=switch, context={switch: False})
        await host.noticed(root, 2)
        assert {n.sender_name for n in await host.notices(root)} == {"messages", "observe"}
        with pytest.raises(e.PolicyDenied):
            await ask(
                host, await session_of(host, root, "messages"), "rlm.send_parent", message="x"
            )
        with pytest.raises(e.PolicyDenied):
            await ask(host, root, "rlm.observe", target="observe")
        await ask(host, await session_of(host, root, "observe"), "rlm.send_parent", message="x")
        await ask(host, root, "rlm.observe", target="messages")
        await in_time(root.wait_idle())


async def test_a_parent_observes_within_limits(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        task = play({"text": "x" * 3000})
        await host.spawn(root, task, name="w")
        await host.noticed(root, 1)
        seen = await ask(host, root, "rlm.observe", target="w", limit=1, max_chars=100)
        [message] = seen.messages
        assert (message.role, message.text, message.truncated) == ("assistant", "x" * 100, True)
        assert seen.agent.name == "w"
        both = await ask(host, root, "rlm.observe", target="w", limit=50, max_chars=2000)
        assert [m.role for m in both.messages] == ["user", "assistant"]
        assert [m.index for m in both.messages] == [0, 1]
        for wrong in ({"limit": 0}, {"limit": 51}, {"max_chars": 79}, {"max_chars": 2001}):
            with pytest.raises(e.InvalidParams):
                await ask(host, root, "rlm.observe", target="w", **wrong)


async def test_rate_and_number_of_waiting_messages_are_limited(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(model=STEPS)
        await host.spawn(root, SAY, name="w")
        await host.noticed(root, 1)
        child = await session_of(host, root, "w")
        await root.start_turn(play({"wait_ms": 60_000}))
        for n in range(3):
            receipt = await ask(host, child, "rlm.send_parent", message=f"m{n}")
            assert receipt.delivery_status == "queued"
        with pytest.raises(e.MessageLimit):
            await ask(host, child, "rlm.send_parent", message="too much")
        with pytest.raises(e.MessageLimit):
            await ask(host, child, "rlm.send_parent", message="x" * 16_385)
        assert len(root.state.pending) == 3
        await root.interrupt(subtree=True)
        await in_time(root.wait_idle())


async def test_models_are_found_within_limits_and_without_secrets(tmp_path: Path) -> None:
    key = "sk-canary-0123456789"
    async with family(tmp_path, env={"OPENAI_API_KEY": key}) as host:
        root = await host.root()
        found = await ask(host, root, "rlm.find_models", query="openai", limit=3)
        assert 1 <= len(found.models) <= 3
        assert all(m.provider == "openai" for m in found.models)
        for limit in (0, 21):
            with pytest.raises(e.InvalidParams):
                await ask(host, root, "rlm.find_models", limit=limit)
        code = "import os; [m.selector for m in await rlm.find_models('scripted echo')], str(dict(os.environ))"
        said = await host.cell(root, code)
        assert "scripted/echo" in said
        spawned = await host.spawn(
            root, play({"call": "import os; await rlm.submit_result(str(dict(os.environ)))"})
        )
        await host.ended(root, spawned)
        value, _ = await host.children.result(root, spawned.child_id, None, None)
        assert "RLM_DEPTH" in value
        for text in (said, value, *(_texts(host.home))):
            assert key not in text


def _texts(home: Path) -> list[str]:
    texts = []
    for path in home.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # a staged file is renamed
            texts.append(path.read_bytes().decode("utf-8", "replace"))
    return texts


async def test_recent_messages_are_bounded(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo")
        for n in range(30):
            await host.say(root, f"message {n}")
        recent = recent_of(root)
        assert recent.count == 60
        assert len(recent.messages) == 50
        assert recent.messages[-2].text == "message 29"
