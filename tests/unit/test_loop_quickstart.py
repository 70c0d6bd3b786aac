import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "loop_quickstart.py"


def test_the_example_of_the_seed_runs_as_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == "live: skill-1"
    assert second.startswith("0.7 max_generations [LoopGeneration(generation=0, action='accept'")
    assert (tmp_path / "runs.sqlite3").exists()
