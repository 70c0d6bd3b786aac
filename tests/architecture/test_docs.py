"""What the documents say of the code is true."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["architecture.md", "loops.md"])
def test_every_promise_names_a_test_that_exists(page: str) -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "docs" / page).read_text())
    assert named
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text())
        names = {
            n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert test in names, f"{file}::{test}"


def test_the_repository_names_no_machine_and_no_registry() -> None:
    """Built in pieces, so that this file does not name them either."""
    words = ["pypi." + "org", "files.python" + "hosted", "registry." + "npmjs", "deb." + "debian"]
    paths = ["/wor" + "k/", "/ro" + "ot/"]
    endings = {".py", ".md", ".toml", ".json", ".jsonl", ".lua", ".ts", ".yml", ".yaml", ""}
    skipped = {".git", ".venv", "node_modules", "__pycache__", "uv.lock"}
    for path in ROOT.rglob("*"):
        if path.is_dir() or skipped & {*path.parts, path.name} or path.suffix not in endings:
            continue
        if any(
            part.startswith(".") and part not in {".ci"} for part in path.relative_to(ROOT).parts
        ):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for word in (*words, *paths):
            assert word not in text, f"{path.relative_to(ROOT)} holds {word}"
