"""Which folders are skills, which place's counts, and what is said of those that are none."""

from pathlib import Path

import pytest

from rlm_host.kernels.skills import DESCRIPTION_CHARS, FILE_BYTES, Skills, front_matter
from rlm_host.sessions.prompt import compose
from support.skill_folders import DESCRIPTION, make_skill, skill_md


def offered(tmp_path: Path, **more: object) -> dict[str, str | None]:
    """The names in the home, with their problems."""
    skills = Skills(home=tmp_path, **more).offered(tmp_path / "cwd")  # type: ignore[arg-type]
    return {skill.name: skill.problem for skill in skills}


def test_a_skill_has_a_name_a_description_and_a_folder(tmp_path: Path) -> None:
    make_skill(tmp_path / "skills", "word-count")
    (tmp_path / "skills" / ".hidden").mkdir()
    (tmp_path / "skills" / "file").write_text("")
    [skill] = Skills(home=tmp_path).offered(tmp_path)
    assert (skill.name, skill.description, skill.problem) == ("word_count", DESCRIPTION, None)
    assert skill.path == str((tmp_path / "skills" / "word-count").resolve())


def test_of_two_with_one_name_the_first_places_counts(tmp_path: Path) -> None:
    for place in ("bundled", "home/skills", "cwd/.rlm/skills"):
        make_skill(tmp_path / place, "same", md=skill_md("same", place))
        make_skill(tmp_path / place, place.partition("/")[0])
    skills = Skills(
        bundled=tmp_path / "bundled",
        home=tmp_path / "home",
        workspace=True,
        disabled=frozenset(["cwd"]),
    )
    found = {skill.name: skill for skill in skills.offered(tmp_path / "cwd")}
    assert list(found) == ["bundled", "home", "same"]
    assert found["same"].description == "bundled"
    assert found["same"].path is None, "the kernel has its own copy"
    without = Skills(home=tmp_path / "home").offered(tmp_path / "cwd")
    assert [skill.name for skill in without] == ["home", "same"]
    assert Skills().offered(tmp_path) == ()


@pytest.mark.parametrize(
    "name",
    ["json", "rlm", "bash", "tools", "list", "print", "class", "2fast", "a b", "_private", "os"],
)
def test_a_name_that_would_hide_something_is_left_out(tmp_path: Path, name: str) -> None:
    make_skill(tmp_path / "skills", name)
    assert offered(tmp_path) == {}


@pytest.mark.parametrize(
    ("md", "said"),
    [
        ("", "does not begin"),
        ("name: x\n", "does not begin"),
        ("---\nname: bad\ndescription: d\n", "does not end"),
        ("---\nname: bad\n---\n", "no description"),
        ("---\nname: bad\ndescription: ''\n---\n", "no description"),
        ("---\nname: other\ndescription: d\n---\n", "does not name it 'bad'"),
        ("---\nname: bad\n: what\n---\n", "no `key: value`"),
        (skill_md("bad", "d" * (DESCRIPTION_CHARS + 1)), "no description of 1 to"),
        (skill_md("bad") + "x" * FILE_BYTES, "no file of at most"),
        ("---\nname: bad\ndescription: \udcff\n---\n", "utf-8"),
    ],
)
def test_a_broken_skill_file_is_a_problem_that_names_it(tmp_path: Path, md: str, said: str) -> None:
    folder = make_skill(tmp_path / "skills", "bad")
    (folder / "SKILL.md").write_bytes(md.encode("utf-8", "surrogateescape"))
    problem = offered(tmp_path)["bad"]
    assert problem is not None
    assert said in problem


def test_links_that_lead_out_and_missing_parts_are_problems(tmp_path: Path) -> None:
    place = tmp_path / "skills"
    make_skill(tmp_path / "elsewhere", "outside")
    make_skill(place, "linked")
    (place / "outside").symlink_to(tmp_path / "elsewhere" / "outside")
    (place / "inside").symlink_to(place / "linked")
    for name, part in (("skill", "SKILL.md"), ("init", "__init__.py")):
        folder = make_skill(place, f"no_{name}")
        (folder / part).unlink()
        stolen = make_skill(place, f"stolen_{name}")
        (stolen / part).unlink()
        (stolen / part).symlink_to(tmp_path / "elsewhere" / "outside" / part)
    found = offered(tmp_path)
    for name in ("outside", "stolen_skill", "stolen_init"):
        assert "leads out of" in str(found[name])
    assert "no package" in str(found["no_init"])
    assert "No such file" in str(found["no_skill"])
    assert "does not name it" in str(found["inside"])
    assert found["linked"] is None


def test_front_matter_is_read_as_people_write_it() -> None:
    text = """---
# a comment
name: "a-b"
description: >
  One line
  and another.
license: 'it''s free'
metadata:
  author: somebody
empty:
---
body: not this
"""
    assert front_matter(text) == {
        "name": "a-b",
        "description": "One line and another.",
        "license": "it's free",
        "metadata": "author: somebody",
        "empty": "",
    }


def test_the_model_is_told_of_those_that_work(tmp_path: Path) -> None:
    make_skill(tmp_path / "skills", "good")
    make_skill(tmp_path / "skills", "bad", md="nothing")
    skills = Skills(home=tmp_path).offered(tmp_path)
    prompt = compose([], is_child=False, skills=skills)
    assert f"- `good`: {DESCRIPTION}\n" in prompt
    assert "bad" not in prompt[len(compose([], is_child=False)) :]
