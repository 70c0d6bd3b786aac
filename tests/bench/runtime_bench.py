"""What the runtime's benchmarks share: processes side by side, medians of rounds, one table per row."""

import argparse
import compileall
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
PYTHON = os.path.realpath(sys.executable) if sys.prefix == sys.base_prefix else sys.executable
RUNTIME = (PYTHON, "-P", "-m", "rlm.repl")
FLOOR = (PYTHON, "-P", str(HERE / "floor_repl.py"))
PASS_MS = 12.0
"""What `python -c pass` takes on the machine that goals in milliseconds are stated for."""
decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode
now = time.perf_counter


class Lines:
    """A process that speaks lines of JSON."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready: bool = True,
        pass_fds: Sequence[int] = (),
        **env: str,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **env},
            pass_fds=pass_fds,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self._fd = self.stdout.fileno()
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._count = 0
        self.ready: dict[str, Any] = self.event() if ready else {}

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.stdin.close()
        self.stdout.close()

    @property
    def pid(self) -> int:
        return int(self.ready.get("pid") or self.process.pid)

    def send(self, *messages: dict[str, Any]) -> None:
        self.stdin.write(b"".join(encode(m) + b"\n" for m in messages))
        self.stdin.flush()

    def event(self) -> dict[str, Any]:
        while not self._lines:
            data = os.read(self._fd, 1 << 18)
            if not data:
                raise EOFError("the process ended")
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(whole)
        event: dict[str, Any] = decode(self._lines.popleft())
        return event

    @property
    def pending(self) -> bool:
        """Whether an event lies here already."""
        return bool(self._lines)

    def until_done(self, id_: str) -> list[dict[str, Any]]:
        got = [self.event()]
        while got[-1]["event"] != "done" or got[-1]["id"] != id_:
            got.append(self.event())
        return got

    def start(self, code: str) -> str:
        self._count += 1
        id_ = f"c{self._count}"
        self.send({"type": "execute", "id": id_, "code": code})
        return id_

    def run(self, code: str) -> list[dict[str, Any]]:
        return self.until_done(self.start(code))

    def ask(self, type_: str, **fields: Any) -> dict[str, Any]:
        self._count += 1
        id_ = f"c{self._count}"
        self.send({"type": type_, "id": id_, **fields})
        return self.until_done(id_)[-1]

    def timed(self, code: str) -> float:
        """Give the seconds from sending a cell to its done."""
        began = now()
        self.run(code)
        return now() - began

    def cpu_s(self) -> float:
        with open(f"/proc/{self.pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9

    def peak_bytes(self) -> int:
        with open(f"/proc/{self.pid}/status") as file:
            return next(int(r.split()[1]) * 1024 for r in file if r.startswith("VmHWM"))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    return sorted(values)[max(0, round(len(values) * 0.95) - 1)]


def run_once(*argv: str) -> float:
    """Give the seconds that a program takes from spawn to end."""
    began = now()
    subprocess.run(argv, stdin=subprocess.DEVNULL, check=True)
    return now() - began


class Report:
    """Collects one row's measures and prints them as a table and verdict lines."""

    def __init__(self, row: str) -> None:
        self.row = row
        self.rows: list[dict[str, Any]] = []

    def ratio(
        self,
        name: str,
        ours: Sequence[float],
        floor: Sequence[float],
        goal: float,
        *,
        least: bool = False,
    ) -> None:
        """Compare round by round: `goal` is an upper bound, or the least with `least`."""
        ratios = [a / b for a, b in zip(ours, floor, strict=True)]
        self._add(name, median(ratios), min(ratios), max(ratios), goal, "x", least)

    def beside(self, name: str, theirs: Sequence[float], floor: Sequence[float]) -> None:
        """Show what a peer, or something else without a goal, takes compared with the floor."""
        ratios = [a / b for a, b in zip(theirs, floor, strict=True)]
        self._show(name, median(ratios), min(ratios), max(ratios), "x", "")

    def told(self, name: str, values: Sequence[float], unit: str) -> None:
        """Show a figure that has no goal."""
        self._show(name, median(values), min(values), max(values), unit, "")

    def value(self, name: str, values: Sequence[float], goal: float, unit: str) -> None:
        self._add(name, median(values), min(values), max(values), goal, unit, False)

    def _add(
        self, name: str, value: float, low: float, high: float, goal: float, unit: str, least: bool
    ) -> None:
        ok = value >= goal if least else value <= goal
        sign = ">=" if least else "<="
        verdict = f"goal {sign}{goal:g}{unit} {'ok' if ok else 'MISSED'}"
        self._show(name, value, low, high, unit, verdict, goal=goal, ok=ok)

    def _show(
        self, name: str, value: float, low: float, high: float, unit: str, verdict: str, **more: Any
    ) -> None:
        figures = {"value": value, "low": low, "high": high}
        self.rows.append({"row": self.row, "name": name, **figures, **more})
        line = f"{self.row:4} {name:34} {value:9.2f}{unit} ({low:.2f}-{high:.2f}) {verdict}"
        print(line.rstrip(), flush=True)


def compile_packages() -> None:
    """Compile what is measured to bytecode, as an installer does; a checkout may have stale files."""
    for name in ("rlm", "rlm_protocol"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            compileall.compile_dir(folder, quiet=1)


def main(row: str, measure: Callable[[Report, int], None], *, rounds: int, short: int) -> None:
    """Run one benchmark: `--short` for fewer rounds, `--json FILE` to keep the numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    compile_packages()
    report = Report(row)
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    measure(report, short if options.short else rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(report.rows, indent=1))
