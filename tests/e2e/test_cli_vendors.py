"""`rlm-host run` against both vendors' wires: a 429 on the way, a cell, and a child with a contract."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import DEADLINE_S, cli_env, processes_of
from support.mock_vendors import KEYS, SELECTORS, Answer, Asked, MockVendors

SPAWN = """\
child = await rlm(
    "Say three in digits.",
    name="counter",
    model={model!r},
    result={{"schema": {{"type": "integer"}}, "required": True}},
)
child.status"""
COLLECT = "(await rlm.get_result(child)) * 14"


def code(source: str) -> Answer:
    return Answer(calls=(("python", {"code": source}),))


class Conversation:
    """Plays the model of a parent and of its child; the first request of all is turned away."""

    def __init__(self, selector: str) -> None:
        self.spawn = SPAWN.format(model=selector)
        self.turned_away = 0

    def __call__(self, asked: Asked) -> Answer:
        said = json.dumps(asked.messages)
        if not self.turned_away:
            self.turned_away += 1
            return Answer(
                status=429, error_type="rate_limit_error", headers=(("retry-after", "0"),)
            )
        if "Measure with a child" not in said:
            done = "submit_result(3)" in said
            return Answer(text="Three.") if done else code("await rlm.submit_result(3)")
        if "Say three in digits" not in said:
            return code(self.spawn)
        if "* 14" in said:
            return Answer(text=f"The child's answer gives {'42' if '42' in said else 'nothing'}.")
        if "counter" in asked.last_text and "ended with a result" in asked.last_text:
            return code(COLLECT)
        return Answer(text="I wait for the child.")


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_a_cell_a_child_and_a_429(dialect: str, tmp_path: Path) -> None:
    selector = SELECTORS[dialect]  # type: ignore[index]
    conversation = Conversation(selector)
    with MockVendors(conversation) as vendors:
        config = tmp_path / "config.toml"
        config.write_text(vendors.config())
        argv = [sys.executable, "-P", "-m", "rlm_host", "run", "Measure with a child", "--json"]
        done = subprocess.run(
            [*argv, "--model", selector, "--config", str(config)],
            env={**cli_env(tmp_path), **KEYS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "gives 42" in lines[-1]["text"], done.stdout
    assert conversation.turned_away == 1
    usage = lines[-1]["usage"]
    assert usage["subtree"]["responses"] > usage["own"]["responses"] >= 4
    told = done.stdout + done.stderr
    written = b"".join(p.read_bytes() for p in (tmp_path / "rlm").rglob("*") if p.is_file())
    for key in KEYS.values():
        assert key not in told
        assert key.encode() not in written
    assert processes_of(tmp_path / "rlm") == []
    assert os.path.isdir(tmp_path / "rlm" / "sessions")
