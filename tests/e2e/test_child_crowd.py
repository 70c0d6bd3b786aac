"""Many children at once, on whatever machine runs the tests."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.kin import ChildrenSettings
from rlm_host.children.usage import own_of_tree
from rlm_host.kernels.cell import KernelStatus
from rlm_host.sessions.session import SessionActor
from rlm_protocol.session import TreeNode
from support.family import STEPS, Family, family
from support.processes import my_children

pytestmark = pytest.mark.anyio

LONG = pytest.mark.long
"""Many kernels take minutes on two cores; a short form runs on every change."""


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})
SUBMIT = play(
    {"call": "import os; kept = os.getpid(); await rlm.submit_result(6 * 7)"}, {"text": "ok"}
)
CONTRACT = {"schema": {"type": "integer"}, "required": True}


class Watch:
    """Looks at all of a host's children, time and again, while the block runs."""

    def __init__(self, host: Family, root: SessionActor) -> None:
        self._host, self._root = host, root
        self.running = self.queued = self.kernels = 0

    async def __aenter__(self) -> "Watch":
        self._task = asyncio.ensure_future(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _look(self) -> None:
        while True:
            statuses = [agent.status for agent in self._host.children.agents(self._root)]
            self.running = max(self.running, statuses.count("running"))
            self.queued = max(self.queued, statuses.count("queued"))
            loaded = self._host.store.loaded()
            alive = [one for one in loaded if one.kernel.status is not KernelStatus.ABSENT]
            self.kernels = max(self.kernels, len(alive))
            await asyncio.sleep(0.02)


async def test_a_hundred_children_of_one_parent_end_told_and_counted(tmp_path: Path) -> None:
    async with family(tmp_path, settings=ChildrenSettings(running_max=16)) as host:
        root = await host.root(model="scripted/echo")
        agents = [await host.spawn(root, SAY, name=f"w{n}") for n in range(100)]
        ended = await host.ended(root, *agents, patience_s=90)
        assert {agent.status for agent in ended} == {"completed"}
        notices = await host.noticed(root, 100)
        assert len({notice.sender_id for notice in notices}) == len(notices) == 100
        tree = await host.children.tree(root.id)
        assert len(tree.children) == 100
        assert own_of_tree(tree) == tree.subtree == root.state.subtree
        assert root.state.attributed.responses == 100
        # Several ends share a turn: a parent is not asked a hundred times.
        assert root.state.turns < 100


@pytest.mark.parametrize(
    ("count", "running_max"), [(10, 2), pytest.param(100, 8, marks=LONG)], ids=["short", "long"]
)
async def test_children_report_by_contract_from_kernels_of_their_own(
    tmp_path: Path, count: int, running_max: int
) -> None:
    async with family(tmp_path, settings=ChildrenSettings(running_max=running_max)) as host:
        root = await host.root(model="scripted/echo")
        async with Watch(host, root) as watch:
            agents = [
                await host.spawn(root, SUBMIT, name=f"w{n}", result=CONTRACT) for n in range(count)
            ]
            ended = await host.ended(root, *agents, patience_s=20 * count)
        assert {agent.status for agent in ended} == {"completed"}
        notices = await host.noticed(root, count)
        assert [notice.notice for notice in notices] == ["submitted"] * count
        for agent in agents:
            assert await host.children.result(root, agent.child_id, None, None) == (42, 1)
        # Twice as many: one that has ended is seen to run until its end is recorded.
        assert watch.running <= 2 * running_max
        assert watch.queued > running_max, "those that wait are seen to wait"
        # As many rest with a kernel as may run; the others' names come back with the next cell.
        assert watch.kernels <= 2 * running_max + 1
        tree = await host.children.tree(root.id)
        assert own_of_tree(tree) == tree.subtree == root.state.subtree
        first = await host.store.get(agents[0].session_id)
        assert first.kernel.status is KernelStatus.ABSENT
        assert int(await host.cell(first, "kept")) > 0, "its names came back with it"
    assert not my_children()


@pytest.mark.parametrize(
    ("middles", "leaves", "submits"),
    [(4, 9, False), (2, 3, True), pytest.param(4, 9, True, marks=LONG)],
    ids=["forty that talk", "eight that report", "forty that report"],
)
async def test_a_tree_of_three_levels_spawns_itself(
    tmp_path: Path, middles: int, leaves: int, submits: bool
) -> None:
    """A root, children with a kernel each, and leaves below each of them."""
    task = SUBMIT if submits else SAY
    contract = f"result={CONTRACT}" if submits else "unguarded=True"
    each = "\n".join(
        f"await rlm({task!r}, name='leaf{n}', model='scripted/steps', {contract})"
        for n in range(leaves)
    )
    middle = play({"call": each}, {"call": "await rlm.submit_result('spawned')"}, {"text": "ok"})
    spawning = "\n".join(
        f"await rlm({middle!r}, name='mid{n}', model='scripted/steps', result={{'required': True}})"
        for n in range(middles)
    )
    async with family(tmp_path, settings=ChildrenSettings(running_max=2)) as host:
        root = await host.root(model=STEPS)
        await host.say(root, play({"call": spawning}, {"text": "waiting"}))
        agents = host.children.agents(root)
        await host.ended(root, *agents, patience_s=20 * middles * leaves)
        await host.noticed(root, middles)
        tree = await host.children.tree(root.id)
        assert counted(tree) == 1 + middles + middles * leaves
        assert statuses(tree) == {"completed"}
        assert own_of_tree(tree) == tree.subtree == root.state.subtree
        for agent in agents:
            assert await host.children.result(root, agent.child_id, None, None) == ("spawned", 1)
            if submits:
                session = await host.store.get(agent.session_id)
                for leaf in host.children.agents(session):
                    value, _ = await host.children.result(session, leaf.child_id, None, None)
                    assert value == 42
    assert not my_children()


def counted(node: TreeNode) -> int:
    return 1 + sum(map(counted, node.children))


def statuses(node: TreeNode) -> set[str]:
    return {status for child in node.children for status in (child.status, *statuses(child))}
