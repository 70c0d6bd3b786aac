"""The example of a program that owns a host."""

import subprocess
import sys
from pathlib import Path

from support.cli import DEADLINE_S, cli_env

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed_host.py"


def test_a_program_owns_a_host_in_twenty_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        cwd=tmp_path,
        env=cli_env(tmp_path),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "21 completed [scripted] 42\n", "")
    assert len(EXAMPLE.read_text().splitlines()) <= 20
