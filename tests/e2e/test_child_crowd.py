"""Many children at once, on whatever machine runs the tests."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.kin import ChildrenSettings
from rlm_host.children.usage import own_of_tree
from rlm_protocol.session import TreeNode
from support.family import STEPS, family
from support.processes import my_children

pytestmark = pytest.mark.anyio


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})


async def test_a_hundred_children_of_one_parent_end_told_and_counted(tmp_path: Path) -> None:
    async with family(tmp_path, settings=ChildrenSettings(running_max=16)) as host:
        root = await host.root(model="scripted/echo")
        agents = [await host.spawn(root, SAY, name=f"w{n}") for n in range(100)]
        ended = await host.ended(root, *agents)
        assert {agent.status for agent in ended} == {"completed"}
        notices = await host.noticed(root, 100)
        assert len({notice.sender_id for notice in notices}) == len(notices) == 100
        tree = await host.children.tree(root.id)
        assert len(tree.children) == 100
        assert own_of_tree(tree) == tree.subtree == root.state.subtree
        assert root.state.attributed.responses == 100
        # Several ends share a turn: a parent is not asked a hundred times.
        assert root.state.turns < 100


async def test_a_tree_of_three_levels_spawns_itself(tmp_path: Path) -> None:
    """A root, four children with a kernel each, nine leaves below each of them: 40 agents."""
    leaves = "\n".join(
        f"await rlm({SAY!r}, name='leaf{n}', model='scripted/steps', unguarded=True)"
        for n in range(9)
    )
    middle = play({"call": leaves}, {"call": "await rlm.submit_result('spawned')"}, {"text": "ok"})
    spawning = "\n".join(
        f"await rlm({middle!r}, name='mid{n}', model='scripted/steps', result={{'required': True}})"
        for n in range(4)
    )
    async with family(tmp_path, settings=ChildrenSettings(running_max=2)) as host:
        root = await host.root(model=STEPS)
        await host.say(root, play({"call": spawning}, {"text": "waiting"}))
        await host.noticed(root, 4)
        tree = await host.children.tree(root.id)
        assert counted(tree) == 1 + 4 + 36
        assert statuses(tree) == {"completed"}
        assert own_of_tree(tree) == tree.subtree == root.state.subtree
        for n in range(4):
            assert await host.children.result(root, f"mid{n}", None, None) == ("spawned", 1)
    assert not my_children()


def counted(node: TreeNode) -> int:
    return 1 + sum(map(counted, node.children))


def statuses(node: TreeNode) -> set[str]:
    return {status for child in node.children for status in (child.status, *statuses(child))}
