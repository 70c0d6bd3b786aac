"""Every cell of the crash table has a test, or a reason why it cannot have one."""

import subprocess
import sys
from pathlib import Path

from support.crash_table import NOT_POSSIBLE, ROWS, table

TESTS = Path(__file__).parents[1]


def test_every_possible_cell_has_a_test() -> None:
    files = sorted(str(f) for f in TESTS.rglob("test_*.py") if "@crash(" in f.read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-m", "crash", *files],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("crash table:")]
    assert told == ["crash table: no test holds []"]


def test_the_table_says_of_each_cell_what_came_of_it_or_why_nothing_can() -> None:
    lines = table({("C1", "sqlite"): {"passed"}, ("C1", "postgres"): {"passed", "failed"}})
    assert len(ROWS) == 30
    assert lines[1].split()[-4:] == ["ok", "FAILED", "not", "run"]
    assert sum(line.startswith("C") for line in lines) == 30
    for reason in NOT_POSSIBLE.values():
        assert any(line.endswith(reason) for line in lines)
