"""Children as real sessions: each with its own kernel, journal and contract."""

from pathlib import Path

import pytest

from rlm_protocol.usage import Usage
from support.family import PYTHON, family

pytestmark = pytest.mark.anyio

SPAWN = """run:
handle = await rlm(
    "run: await rlm.submit_result({{'answer': sum(range(10)), 'depth': __import__('os').environ['RLM_DEPTH']}})",
    name="adder",
    model="scripted/python",
    result={{"schema": {{"type": "object", "required": ["answer"]}}, "required": True}},
)
print(handle.name, handle.status, handle.session_dir.name == handle.rlm_child_id)
""".replace("{{", "{").replace("}}", "}")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_cell_delegates_and_reads_the_checked_result(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(model=PYTHON)
        await host.say(root, SPAWN)
        [notice] = await host.noticed(root, 1)
        assert notice.notice == "submitted"
        assert notice.sender_name == "adder"
        [agent] = host.children.agents(root)
        assert agent.status == "completed"
        value, generation = await host.children.result(root, "adder", None, None)
        assert (value, generation) == ({"answer": 45, "depth": "1"}, 1)
        got = await host.cell(root, "await rlm.get_result(handle, fields=['answer'])")
        assert got == "{'answer': 45}"
        home = Path(agent.session_dir)
        assert home.parent == root.artifacts_path
        assert {".rlm-contract.json", f"{agent.session_id}.jsonl"} <= names(home)
        tree = await host.children.tree(root.id)
        assert [node.name for node in tree.children] == ["adder"]
        assert tree.own + tree.children[0].own == tree.subtree == root.state.subtree
        assert tree.children[0].own != Usage()
