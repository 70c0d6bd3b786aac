"""
What the tests of the editors need from outside; `editors/e2e/install.sh` gets it.

RLM_TEST_EDITORS names the folder that it has filled. Without the variable these tests are skipped
and say so; with it, what is missing is failing.
"""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VSCODE = ROOT / "editors" / "vscode"
HOW = "sh editors/e2e/install.sh FOLDER, and set RLM_TEST_EDITORS=FOLDER"


def tools() -> Path:
    """Give the folder of install.sh, or skip the test."""
    folder = os.environ.get("RLM_TEST_EDITORS")
    if folder is None:
        pytest.skip(f"no VS Code here: {HOW}")
    return Path(folder)


def node() -> str:
    """Give Node, with the extension's packages installed, or skip the test."""
    found = shutil.which("node")
    if found and (VSCODE / "node_modules" / "vscode-jsonrpc").is_dir():
        return found
    missing = f"no {'vscode-jsonrpc' if found else 'node'} here: {HOW}"
    if "RLM_TEST_EDITORS" in os.environ:
        pytest.fail(missing)
    pytest.skip(missing)
