"""One stop for a tree: cells end at once, nothing is left running, and nothing starts again."""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.accounts import book_of
from rlm_host.children.kin import ChildrenSettings, registry_of
from rlm_host.client import HostClient
from rlm_host.models.provider import Request
from rlm_host.sessions.session import SessionActor
from rlm_protocol import errors as e
from support.family import STEPS, Family, family
from support.processes import alive, in_time, my_children, until

pytestmark = pytest.mark.anyio

SOON_S = 6.0
"""Far less than the seconds after which an ordinary interrupt kills, and no limit of speed."""


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})
HOLD = (
    "import ctypes, os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); "
    "open({path!r}, 'w').write(str(os.getpid())); ctypes.PyDLL(None).sleep(600)"
)
"""C code that keeps the interpreter's lock: no interrupt reaches it."""


async def pid_in(path: Path) -> int:
    def said() -> str:
        return path.read_text() if path.exists() else ""

    await until(said, f"{path.name}")
    return int(said())


async def requests_end(host: Family, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on remember every provider request of this host."""
    sent: list[str] = []
    provider = host.models.provider_for(STEPS)[1]
    original = provider.stream

    def counted(request: Request) -> Any:
        sent.append(request.model)
        return original(request)

    monkeypatch.setattr(provider, "stream", counted)
    return sent


async def test_a_stop_kills_cells_that_do_not_yield_on_every_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = [tmp_path / f"pid-{n}" for n in range(3)]
    holds = [HOLD.format(path=str(mark)) for mark in marks]
    leaf = play({"call": "kept = 'leaf'"}, {"call": holds[2]}, {"text": "never"})
    middle = play(
        {"call": f"await rlm({leaf!r}, name='leaf', model='scripted/steps', unguarded=True)"},
        {"call": holds[1]},
    )
    root_task = play(
        {"call": f"await rlm({middle!r}, name='mid', model='scripted/steps', unguarded=True)"},
        {"call": holds[0]},
    )
    async with family(tmp_path, snapshot_after_ms=50) as host:
        root = await host.root(model=STEPS)
        await host.cell(root, "kept = 'root'")
        await until(lambda: root.state.snapshot is not None)
        await root.start_turn(root_task)
        pids = [await pid_in(mark) for mark in marks]
        sent = await requests_end(host, monkeypatch)
        began = time.monotonic()
        await in_time(root.interrupt(subtree=True))
        await until(lambda: not any(map(alive, pids)))
        assert time.monotonic() - began < SOON_S
        await in_time(root.wait_idle())
        assert [a.status for a in host.children.agents(root)] == ["cancelled"]
        assert sent == []
        assert await host.cell(root, "kept") == "'root'"
    assert not my_children()


async def test_a_stop_ends_commands_and_tasks_that_cells_left_running(tmp_path: Path) -> None:
    code = """
import asyncio, os
h = bash("sleep 600 & echo $$ > {0}/{1}-bash; wait")
async def later():
    open("{0}/{1}-task", "w").write(str(os.getpid()))
    while True:
        await asyncio.sleep(0.1)
        open("{0}/{1}-beats", "a").write(".")
task = asyncio.create_task(later())
"""
    async with family(tmp_path) as host:
        root = await host.root()
        await host.spawn(
            root, play({"call": code.format(tmp_path, "child")}, {"text": "ok"}), name="rests"
        )
        await host.noticed(root, 1)
        await host.cell(root, code.format(tmp_path, "root"))
        shells = [await pid_in(tmp_path / f"{name}-bash") for name in ("root", "child")]
        assert all(map(alive, shells))
        await in_time(root.interrupt(subtree=True))
        await until(lambda: not any(map(alive, shells)))
        assert await host.cell(root, "await asyncio.sleep(0); (task.cancelled(), h.running)") == (
            "(True, False)"
        )
        assert host.agent(root, "rests").status == "completed"
        assert [actor.id for actor in host.store.loaded()] == [root.id]


async def test_a_task_that_blocks_the_kernel_is_killed_by_a_stop(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    async with family(tmp_path) as host:
        root = await host.root()
        code = f"async def block():\n    {HOLD.format(path=str(mark))}\nt = asyncio.create_task(block())"
        await host.cell(root, code)
        pid = await pid_in(mark)
        began = time.monotonic()
        await in_time(root.interrupt(subtree=True))
        await until(lambda: not alive(pid))
        assert time.monotonic() - began < SOON_S
        assert await host.cell(root, "1 + 1") == "2"


async def test_after_a_stop_nothing_of_the_tree_asks_a_model_until_a_person_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued follow-ups, messages, and a cell's own spawns and tasks wait or are refused."""
    async with family(tmp_path) as host:
        root = await host.root()
        await host.spawn(root, SAY, name="one")
        await host.spawn(root, SAY, name="two")
        await host.noticed(root, 2)
        await in_time(root.interrupt(subtree=True))
        sent = await requests_end(host, monkeypatch)
        for code in (
            f"await rlm({SAY!r}, model='scripted/steps', unguarded=True)",
            f"await rlm.send_child('one', {SAY!r})",
        ):
            assert "A person stopped this tree" in await host.cell(root, code)
        one = await host.store.get(host.agent(root, "one").session_id)
        said = await host.cell(one, f"(await rlm.send_sibling('two', {SAY!r})).delivery_status")
        assert said == "'queued'"
        assert "A person stopped" in await host.cell(
            one, f"await rlm({SAY!r}, model='scripted/steps', unguarded=True)"
        )
        two = await host.store.get(host.agent(root, "two").session_id)
        assert len(two.state.pending) == 1
        assert sent == []
        # What a person says to a child is that person's: it runs, and the rest goes on waiting.
        await host.children.send(root, "one", SAY)
        await until(lambda: host.agent(root, "one").generation == 2)
        await host.ended(root, host.agent(root, "one"))
        assert sent == [STEPS]
        assert len(two.state.pending) == 1
    async with family(tmp_path) as host:  # a restart changes nothing of it
        sent = await requests_end(host, monkeypatch)
        root = await host.store.get(root.id)
        two = await host.store.get(two.id)
        await in_time(two.wait_idle())
        assert len(two.state.pending) == 1
        assert sent == []
        await host.say(root, "run: 1")
        await host.cell(root, f"await rlm.send_child('two', {SAY!r})")
        await until(lambda: not two.state.pending)
        await host.ended(root, host.agent(root, "two"))
        assert sent


async def test_children_that_are_just_being_admitted_are_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        sent = await requests_end(host, monkeypatch)
        code = f"""
for n in range(200):
    await rlm({SAY!r}, name=f'w{{n}}', model='scripted/steps', unguarded=True)
"""
        await root.start_turn(f"run: {code}")
        await until(lambda: len(registry_of(root).children) >= 3)
        await in_time(root.interrupt(subtree=True))
        before = len(sent)
        await in_time(root.wait_idle())
        await until(lambda: all(a.status != "queued" for a in host.children.agents(root)))
        assert not registry_of(root).busy()
        assert len(sent) == before


@pytest.mark.parametrize("seed", range(5))
async def test_whenever_a_tree_is_stopped_no_request_of_it_starts_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A tree that spawns, talks and follows up without end, stopped at some moment."""
    chance = random.Random(seed)
    leaf = play({"call": f"await rlm.send_parent({SAY!r})"}, {"text": "ok"})
    grow = f"""
import asyncio
async def grow():
    for n in range(100):
        child = await rlm(TASK, model='scripted/steps', unguarded=True)
        await asyncio.sleep({chance.random() / 20})
        if n % 3 == 2:
            await child.send({SAY!r})
task = asyncio.create_task(grow())
await asyncio.sleep({chance.random()})
"""
    middle = play({"call": grow.replace("TASK", repr(leaf))}, {"text": "ok"}, {"wait_ms": 50})
    async with family(tmp_path, settings=ChildrenSettings(running_max=4)) as host:
        root = await host.root(model=STEPS)
        sent = await requests_end(host, monkeypatch)
        await root.start_turn(play({"call": grow.replace("TASK", repr(middle))}, {"text": "ok"}))
        wanted = chance.randint(1, 12)
        await until(lambda: len(sent) > wanted)
        await in_time(root.interrupt(subtree=True))
        before = len(sent)
        await in_time(root.wait_idle())
        await until(lambda: not registry_of(root).busy())
        assert await host.cell(root, "task.done()") == "True"
        assert [actor.id for actor in host.store.loaded()] == [root.id]
        assert len(sent) == before
    async with family(tmp_path) as host:
        sent = await requests_end(host, monkeypatch)
        root = await host.store.get(root.id)
        for agent in host.children.agents(root):
            if agent.status == "completed":
                await in_time((await host.store.get(agent.session_id)).wait_idle())
        await in_time(root.wait_idle())
        assert sent == []
        assert not book_of(root).open
    assert not my_children()


async def test_cancelling_a_child_kills_what_it_does_not_give_up(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    async with family(tmp_path) as host:
        root = await host.root()
        await host.spawn(root, play({"call": HOLD.format(path=str(mark))}), name="w")
        pid = await pid_in(mark)
        began = time.monotonic()
        await in_time(host.children.cancel(root, "w"))
        await until(lambda: not alive(pid))
        assert time.monotonic() - began < SOON_S
        [notice] = await host.noticed(root, 1)
        assert notice.notice == "cancelled"


async def test_a_stop_of_the_host_stops_every_tree_and_goes_on(tmp_path: Path) -> None:
    env = {"RLM_HOME": str(tmp_path / "home"), "RLM_KERNEL_PYTHON": sys.executable}
    async with HostClient.spawn(env=env) as client:
        roots = []
        for _ in range(2):
            made = await client.request(
                "session/create", {"cwd": str(tmp_path), "model": "scripted/echo"}
            )
            roots.append(made["session"]["id"])
            for name, task in (("works", play({"wait_ms": 600_000})), ("rests", SAY)):
                options = {"model": STEPS, "name": name, "unguarded": True}
                spawn = {"sessionId": roots[-1], "prompt": task, "options": options}
                await client.request("agent/spawn", spawn)

        async def statuses() -> list[str]:
            listed = [await client.request("agent/list", {"sessionId": one}) for one in roots]
            return [agent["status"] for one in listed for agent in one["agents"]]

        async with asyncio.timeout(30):
            while await statuses() != ["running", "completed"] * 2:
                await asyncio.sleep(0.02)
        assert (await client.request("host/status"))["kernels"] == 0
        stopped = await client.request("host/stop")
        assert stopped["sessions"] >= 2
        assert await statuses() == ["cancelled", "completed"] * 2
        assert await client.request("host/stop") == {"sessions": 0}
        cell = {"sessionId": roots[0], "code": "6 * 7"}
        assert (await client.request("repl/execute", cell))["result"] == "42"


async def test_a_full_disk_does_not_keep_a_tree_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "pid"
    async with family(tmp_path) as host:
        root: SessionActor = await host.root()
        await host.spawn(root, play({"call": HOLD.format(path=str(mark))}), name="w")
        pid = await pid_in(mark)

        async def full(*_: Any) -> None:
            raise e.StoreFull(path="journal")

        with monkeypatch.context() as patch:
            patch.setattr(type(root), "append", full)
            with pytest.raises(e.StoreFull):
                await in_time(root.interrupt(subtree=True))
        await until(lambda: not alive(pid))
