"""Skills in real kernels: importable by name, explained when they are not, never in the way."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.kernels.skills import Skills
from rlm_protocol.session import KernelRecipe, SessionCreateParams, SessionOptions
from support.family import PYTHON, STEPS, family
from support.processes import in_time, my_children, until
from support.sandboxes import need_sandbox
from support.skill_folders import DESCRIPTION, GOOD, make_skill

pytestmark = pytest.mark.anyio


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


def with_skills(tmp_path: Path, **more: Any) -> Any:
    return family(tmp_path, skills=Skills(home=tmp_path / "home", workspace=True), **more)


async def test_a_skill_is_bound_importable_and_told_of_to_children_too(tmp_path: Path) -> None:
    make_skill(tmp_path / "home" / "skills", "word_count")
    make_skill(tmp_path / ".rlm" / "skills", "near", "WHERE = 'workspace'")
    async with with_skills(tmp_path) as host:
        root = await host.root(model=STEPS)
        assert f"- `word_count`: {DESCRIPTION}" in root.state.prompt
        assert (
            await host.cell(root, "word_count")
            == f"<skill 'word_count' of {tmp_path}/home/skills/word_count>"
        )
        assert await host.cell(root, "'Call `count' in word_count.__doc__") == "True"
        assert await host.cell(root, "word_count.count('a b c')") == "3"
        assert (
            await host.cell(root, "from word_count.words import split; split('a b')")
            == "['a', 'b']"
        )
        assert await host.cell(root, "import word_count as w; w is word_count") == "True"
        assert await host.cell(root, "near.WHERE") == "'workspace'"
        assert "has no attribute 'nothing'" in await host.cell(root, "word_count.nothing")
        assert "call one of its functions" in await host.cell(root, "word_count()")
        listed = await host.cell(root, "x = 1; [n for n in dir() if n in ('x', 'near')]")
        assert listed == "['near', 'x']"
        assert (await root.kernel.names()).names == ("split", "w", "x")
        task = play({"call": "await rlm.submit_result(word_count.count('a b'))"}, {"text": "ok"})
        agent = await host.spawn(root, task, name="w")
        await host.noticed(root, 1)
        assert await host.children.result(root, "w", None, None) == (2, 1)
        child = await host.store.get(agent.session_id)
        assert f"- `word_count`: {DESCRIPTION}" in child.state.prompt
    assert not my_children()


BAD = {
    "syntax": ("def broken(:\n    pass\n", "SyntaxError", "line 1"),
    "missing": ("x = 1\nimport nothing_of_this_name\n", "ModuleNotFoundError", "line 2"),
    "deeper": ("from .words import split, absent\n", "ImportError", "line 1"),
    "exits": ("import sys\nsys.exit(3)\n", "SystemExit: 3", "line 2"),
    "hard": ("raise BaseException('odd')\n", "BaseException: odd", None),
}


async def test_a_skill_that_cannot_be_loaded_explains_itself_until_it_is_mended(
    tmp_path: Path,
) -> None:
    place = tmp_path / "home" / "skills"
    folders = {name: make_skill(place, name, code) for name, (code, _, _) in BAD.items()}
    make_skill(place, "unread", md="no front matter")
    make_skill(place, "pytest")
    async with with_skills(tmp_path) as host:
        root = await host.root()
        for name, (_, error, where) in BAD.items():
            for use in (f"{name}.count('a')", f"{name}('a')", f"from {name} import count"):
                said = await host.cell(root, use)
                assert error in said, said
                if where is not None:
                    assert "SkillUnavailable: The skill" in said
                    assert f"{folders[name]}/__init__.py, {where}" in said
                    assert "Mend it there and use it again." in said
        said = await host.cell(root, "unread.anything")
        assert "SKILL.md does not begin with a line ---" in said
        assert "hides what is installed" in await host.cell(root, "pytest.count")
        assert await host.cell(root, "import pytest; pytest.__version__ > '1'") == "True"
        make_skill(place, "missing", GOOD)
        assert await host.cell(root, "missing.count('a b')") == "2"
        assert await host.cell(root, "1 + 1") == "2"


async def test_a_skill_that_hangs_or_prints_does_so_in_the_cell_that_uses_it(
    tmp_path: Path,
) -> None:
    place, mark = tmp_path / "home" / "skills", tmp_path / "mark"
    make_skill(place, "hangs", f"open({str(mark)!r}, 'w').close()\nwhile True:\n    pass\n")
    make_skill(place, "prints", "print('loud')\nX = 1\n")
    async with with_skills(tmp_path) as host:
        root = await host.root()
        assert await host.cell(root, "prints") != ""
        done = await in_time(root.execute_cell("prints.X"))
        assert done.result == "1"
        items = await host.items(root)
        assert [item.stdout for item in items][-1] == "loud\n"
        await root.start_turn("run: hangs.X")
        await until(mark.exists)
        await root.interrupt()
        await in_time(root.wait_idle())
        assert await host.cell(root, "prints.X + 1") == "2"


async def test_skills_win_over_restored_names_and_heal(tmp_path: Path) -> None:
    """Reported of a host whose skills stayed broken after a restore (prime-agent #1507)."""
    place = tmp_path / "home" / "skills"
    make_skill(place, "skill", "import nothing_of_this_name")
    async with with_skills(tmp_path) as host:
        root = await host.root()
        code = """
alias, later = skill, 'a variable of this name'
try:
    skill.count
except ImportError:
    pass
rlm, other = 'not rlm', 'kept'
"""
        assert await host.cell(root, code) == ""
    make_skill(place, "skill")
    make_skill(place, "later")
    async with with_skills(tmp_path) as host:
        root = await host.store.get(root.id)
        assert await host.cell(root, "skill.count('a b')") == "2"
        assert await host.cell(root, "alias is skill, later.count('a'), other") == (
            "(True, 1, 'kept')"
        )
        assert await host.cell(root, "callable(rlm)") == "True"
        await host.cell(root, "mine = skill.Counter('a b c')")
    async with with_skills(tmp_path) as host:  # what was made of a skill comes back with it
        root = await host.store.get(root.id)
        assert await host.cell(root, "mine.words, type(mine) is skill.Counter") == (
            "(['a', 'b', 'c'], True)"
        )


async def test_a_workspaces_skill_never_runs_by_itself(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    make_skill(tmp_path / ".rlm" / "skills", "sly", f"open({str(mark)!r}, 'w').close()")
    async with with_skills(tmp_path) as host:
        root = await host.root()
        assert await host.cell(root, "dir(sly), repr(sly), sly.__doc__, 1")
        await root.kernel.names(detail=True)
        assert await host.cell(root, "import inspect; inspect.getmodule(open) is None") != ""
        assert not mark.exists()


async def test_a_sandboxed_kernel_has_the_users_skills_and_cannot_change_them(
    tmp_path: Path,
) -> None:
    need_sandbox()
    make_skill(tmp_path / "home" / "skills", "word_count")
    (tmp_path / "cwd").mkdir()
    async with with_skills(tmp_path) as host:
        host.cwd = tmp_path / "cwd"
        options = SessionOptions(recipe=KernelRecipe(sandbox="workspace"))
        params = SessionCreateParams(cwd=str(host.cwd), model=PYTHON, options=options)
        root = await host.store.create(params)
        assert await host.cell(root, "word_count.count('a b')") == "2"
        write = "open(word_count.__file__, 'a')"
        assert "Read-only file system" in await host.cell(root, write)
