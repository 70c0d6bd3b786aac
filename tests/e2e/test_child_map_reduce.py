"""examples/map_reduce.py: a large text, eight children with contracts, two kinds of model."""

import collections
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.mock_vendors import KEYS, SELECTORS, Answer, Asked, MockVendors

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "map_reduce.py"
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def text(path: Path) -> dict[str, Any]:
    """Write at least 5 MB of real text, Python's own sources; give what one reader counts."""
    with path.open("wb") as file:
        for source in sorted(Path(os.__file__).parent.glob("**/*.py")):
            file.write(source.read_bytes() + b"\n")
            if file.tell() >= 5_200_000:
                break
    words = re.findall(r"[a-z']+", path.read_bytes().decode("utf-8", "replace").lower())
    return {"words": len(words), "top": dict(collections.Counter(words).most_common(5))}


async def run(home: Path, *argv: str, **env: str) -> str:
    given = {
        "PATH": os.environ["PATH"],
        "RLM_HOME": str(home),
        "RLM_KERNEL_PYTHON": sys.executable,
        **env,
    }
    with anyio.fail_after(180):
        done = await anyio.run_process([sys.executable, *argv], env=given, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def read_back(said: str, home: Path, **env: str) -> None:
    """`rlm-host session show ID --tree` gives the same run: eight children, to the cent."""
    last = re.fullmatch(r"session (\S+), (\S+) USD", said.splitlines()[-1])
    assert last is not None
    show = ("-m", "rlm_host", "session", "show", last[1], "--tree")
    shown = await run(home, *show, **env)
    assert all(f"part-{number}" in shown for number in range(8))
    tree = json.loads(await run(home, *show, "--json", **env))["tree"]
    assert [child["name"] for child in tree["children"]] == [f"part-{n}" for n in range(8)]
    assert {child["status"] for child in tree["children"]} == {"completed"}
    own = [node["own"]["costNanoUsd"] for node in (tree, *tree["children"])]
    assert sum(own) == tree["subtree"]["costNanoUsd"]
    assert f"{sum(own) / 1e9:.4f}" == last[2]


async def test_eight_children_count_what_one_reader_counts(tmp_path: Path) -> None:
    want = text(tmp_path / "text")
    assert (tmp_path / "text").stat().st_size >= 5_000_000
    home = tmp_path / "home"
    said = await run(home, str(EXAMPLE), str(tmp_path / "text"), "--model", "scripted/python")
    assert json.loads(said.splitlines()[-2]) == want
    assert len(re.findall(r"^part-\d: \d+ words$", said, re.MULTILINE)) == 8
    await read_back(said, home)


def answer(asked: Asked) -> Answer:
    """A model that does what its task says: run the code, then say that it is done."""
    tasks = [FENCE.search(str(message.get("content"))) for message in asked.messages]
    code = next(task.group(1) for task in reversed(tasks) if task)
    if asked.messages[-1]["role"] == "tool":
        return Answer(text="Done.")
    return Answer(calls=(("python", {"code": code}),))


async def test_the_same_program_runs_on_an_openai_compatible_endpoint(tmp_path: Path) -> None:
    want = text(tmp_path / "text")
    with MockVendors(answer) as vendors:
        (tmp_path / "home").mkdir(mode=0o700)
        (tmp_path / "home" / "config.toml").write_text(vendors.config())
        home, model = tmp_path / "home", SELECTORS["chat"]
        program = (str(EXAMPLE), str(tmp_path / "text"), "--model", model)
        said = await run(home, *program, **KEYS)
        assert json.loads(said.splitlines()[-2]) == want
        assert len(vendors.requests) == 16
        await read_back(said, home, **KEYS)
