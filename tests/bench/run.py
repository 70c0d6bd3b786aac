"""Run benchmarks by row: `python tests/bench/run.py [--short] [P1 P2 ...]`. Fails only on a broken script."""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {
    "P1": "kernel_start.py",
    "P1w": "warm_start.py",
    "P2": "execute_roundtrip.py",
    "P3": "output.py",
    "P4": "interrupt.py",
    "P5": "host_request.py",
    "P6": "snapshot.py",
    "P7": "host_start.py",
    "P8": "host_roundtrip.py",
    "P9": "host_execute.py",
    "P10": "loop_generation.py",
    "P11": "loop_restart.py",
    "P12": "session_resume.py",
    "P13": "children.py",
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("rows", nargs="*", default=sorted(ROWS))
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}")
    flags = ["--short"] if options.short else []
    failed = [
        row
        for row in options.rows
        if subprocess.run([sys.executable, str(HERE / ROWS[row]), *flags], cwd=HERE).returncode
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
