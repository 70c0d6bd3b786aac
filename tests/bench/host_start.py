"""P7: spawn to the answer to `initialize`, against importing pygls; and what was loaded by then."""

import sys
from pathlib import Path

import host_bench as h
import runtime_bench as b

sys.path.append(str(b.HERE.parent))

from support.early_imports import loaded_early


def start(home: Path) -> float:
    began = b.now()
    with h.Framed(h.HOST, home) as host:
        host.ask("initialize", h.INITIALIZE)
        return b.now() - began


def measure(report: b.Report, rounds: int) -> None:
    took, pygls = [], []
    with h.home() as home:
        early = loaded_early(home)
        assert not early, f"loaded before their first use: {sorted(early)}"
        for _ in range(rounds):
            took.append(start(home))
            pygls.append(b.run_once(b.PYTHON, "-c", "import pygls.lsp.server"))
    report.ratio("initialize, to import pygls", took, pygls, 1.3)


if __name__ == "__main__":
    b.main("P7", measure, rounds=20, short=6)
