"""
The crash table of durable loops: thirty points of failure, and which store can suffer which.

A test says with `@crash("C4", …)` which rows it holds. What a row means on a store that cannot have
the fault is said here. After a session with such tests the table is printed.
"""

from collections import defaultdict
from collections.abc import Iterable

import pytest

STORES = ("sqlite", "postgres", "temporal")
ROWS = {
    "C1": "killed before step",
    "C2": "killed inside step",
    "C3": "killed after step, before the decision",
    "C4": "killed after the intent, before apply",
    "C5": "killed inside apply",
    "C6": "killed after apply, before the event",
    "C7": "killed inside the event's transaction",
    "C8": "killed after the event, before it is acknowledged",
    "C9": "killed after the final event",
    "C10": "the judge flips between attempts",
    "C11": "a renewal fails, or finds the lease lost",
    "C12": "SIGSTOP past the lease, takeover, SIGCONT",
    "C13": "own lease expired, nobody took over",
    "C14": "many workers race",
    "C15": "wall clock days off",
    "C16": "reboot",
    "C17": "disk full",
    "C18": "one event altered",
    "C19": "pages overwritten, not a database",
    "C20": "written by a newer version",
    "C21": "a step that always kills its process",
    "C22": "a step that raises every time",
    "C23": "a step that gives the wrong type, or NaN",
    "C24": "cancelled twice, before the start",
    "C25": "SIGKILL among many acknowledged events",
    "C26": "commit outcome unknown",
    "C27": "read-only, or a place that cannot hold a store",
    "C28": "fork while the parent runs",
    "C29": "prune races a reader",
    "C30": "time passes while nobody works",
}
_ENGINES = "claims, leases and renewals are Temporal's own"
_SERVERS = "the server's own matter; its files are not ours"
NOT_POSSIBLE = {
    ("C7", "temporal"): _SERVERS,
    ("C11", "temporal"): _ENGINES,
    ("C13", "temporal"): _ENGINES,
    ("C16", "postgres"): "leases are timed by the server, which starts none anew",
    ("C16", "temporal"): _ENGINES,
    ("C17", "temporal"): _SERVERS,
    ("C18", "temporal"): _SERVERS,
    ("C19", "postgres"): _SERVERS,
    ("C19", "temporal"): _SERVERS,
    ("C20", "temporal"): "there are no tables of ours",
    ("C26", "temporal"): "the workflow is replayed, not asked again",
    ("C27", "temporal"): _SERVERS,
    ("C29", "temporal"): "the namespace's retention deletes runs, not we",
    ("C30", "temporal"): "only what steps say they took is charged, by the same fold",
}


def crash(*rows: str, on: Iterable[str] | None = None) -> pytest.MarkDecorator:
    """Say which rows a test holds; `on` which stores, if no parameter of it says so."""
    assert set(rows) <= ROWS.keys(), rows
    return pytest.mark.crash(*rows, on=None if on is None else tuple(on))


def cells_of(item: pytest.Item) -> list[tuple[str, str]]:
    """Give the rows and stores that a test holds."""
    parameters = getattr(item, "callspec", None)
    given = [v for v in parameters.params.values() if v in STORES] if parameters else []
    return [
        (row, store)
        for mark in item.iter_markers("crash")
        for row in mark.args
        for store in mark.kwargs["on"] or given
    ]


def table(outcomes: dict[tuple[str, str], set[str]]) -> list[str]:
    """Give the table as lines: what came of each cell, or why there is nothing to come."""
    lines = [f"{'':4} {'':50}" + "".join(f"{store:>10}" for store in STORES)]
    reasons: dict[str, int] = {}
    for row, what in ROWS.items():
        cells = []
        for store in STORES:
            reason = NOT_POSSIBLE.get((row, store))
            if reason is not None:
                cells.append(f"n/a {reasons.setdefault(reason, len(reasons) + 1)}")
            else:
                cells.append(_word(outcomes.get((row, store), set())))
        lines.append(f"{row:4} {what:50}" + "".join(f"{cell:>10}" for cell in cells))
    return [*lines, *(f"n/a {number}: {reason}" for reason, number in reasons.items())]


def _word(outcomes: set[str]) -> str:
    for outcome in ("failed", "error", "skipped", "passed"):
        if outcome in outcomes:
            return {"passed": "ok", "skipped": "skipped"}.get(outcome, "FAILED")
    return "not run"


class Plugin:
    """Collects what came of the table's cells, and prints it at the session's end."""

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        for cell in cells_of(item):
            item.user_properties.append(("crash", cell))

    def pytest_report_collectionfinish(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> list[str]:
        """With `--collect-only`: name the cells that no test holds."""
        if not config.option.collectonly:
            return []
        held = {cell for item in items for cell in cells_of(item)}
        cells = {(row, store) for row in ROWS for store in STORES} - NOT_POSSIBLE.keys()
        return [f"crash table: no test holds {sorted(cells - held)}"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        outcomes = defaultdict[tuple[str, str], set[str]](set)
        for outcome in ("passed", "failed", "skipped", "error"):
            for report in terminalreporter.stats.get(outcome, ()):
                for name, cell in getattr(report, "user_properties", ()):
                    if name == "crash":
                        outcomes[tuple(cell)].add(outcome)
        if outcomes:
            terminalreporter.section("crash table of durable loops")
            for line in table(outcomes):
                terminalreporter.write_line(line)
