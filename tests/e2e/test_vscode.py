"""Our extension in a real VS Code, and our host behind Microsoft's own JSON-RPC client."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.cli import cli_env
from support.editors import ROOT, VSCODE, node, tools

RUN_S = 300
COMMAND = json.dumps([sys.executable, "-m", "rlm_host"])


def run(argv: Sequence[str], env: dict[str, str], cwd: Path) -> str:
    """Run a program and everything it starts to an end; give what it said, which is of success."""
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=RUN_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, said
    return said


def test_the_extension_in_a_real_vs_code(tmp_path: Path) -> None:
    script = ROOT / "editors" / "e2e" / "vscode.mjs"
    argv = [node(), str(script), str(tools()), str(tmp_path), COMMAND]
    said = run(argv, cli_env(tmp_path), tmp_path)
    assert "10 passed, 0 failed" in said


def test_vscode_jsonrpc_is_served_and_models_are_drawn(tmp_path: Path) -> None:
    npm = shutil.which("npm", path=os.pathsep.join([str(Path(node()).parent), os.defpath]))
    assert npm, "Node without npm"
    env = cli_env(tmp_path, RLM_COMMAND=COMMAND, TMPDIR=str(tmp_path))
    said = run([npm, "test"], env, VSCODE)
    assert re.search(r"^\W+pass 8$", said, re.MULTILINE), said
    assert re.search(r"^\W+skipped 0$", said, re.MULTILINE), said
