"""examples/map_reduce.py: a large text, eight children with contracts, two kinds of model."""

import collections
import json
import os
import random
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
    """Write at least 5 MB of words; give what a careful reader counts."""
    chance = random.Random(7)
    vocabulary = [f"{a}{b}{c}" for a in "kmst" for b in "aeiou" for c in ("", "n", "r", "st")]
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    words = chance.choices(vocabulary, weights, k=1_600_000)
    path.write_text(
        "\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12)), "utf-8"
    )
    return {"words": len(words), "top": dict(collections.Counter(words).most_common(5))}


async def run(tmp_path: Path, home: Path, model: str, **env: str) -> str:
    given = {
        "PATH": os.environ["PATH"],
        "RLM_HOME": str(home),
        "RLM_KERNEL_PYTHON": sys.executable,
        **env,
    }
    with anyio.fail_after(180):
        done = await anyio.run_process(
            [sys.executable, str(EXAMPLE), str(tmp_path / "text"), "--model", model],
            env=given,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_eight_children_count_what_one_reader_counts(tmp_path: Path) -> None:
    want = text(tmp_path / "text")
    assert (tmp_path / "text").stat().st_size >= 5_000_000
    said = await run(tmp_path, tmp_path / "home", "scripted/python")
    assert json.loads(said.splitlines()[-2]) == want
    assert len(re.findall(r"^part-\d: \d+ words$", said, re.MULTILINE)) == 8


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
        said = await run(tmp_path, tmp_path / "home", SELECTORS["chat"], **KEYS)
    assert json.loads(said.splitlines()[-2]) == want
    assert len(vendors.requests) == 16
