"""How loops look: lines and tables for people, JSON and CSV for programs, all of wire data."""

import csv
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rlm_protocol.loop import LoopGeneration

from .cli_client import print_json

SHOWN = 12
"""Generations that are seen while a run goes on."""


def print_report(run: dict[str, Any], generations: list[dict[str, Any]], form: str | None) -> None:
    """Print a whole run as `json`, as `csv` (its generations alone), or as a table."""
    if form == "json":
        print_json({"run": run, "generations": generations})
    elif form == "csv":
        columns = [field.encode_name for field in msgspec.structs.fields(LoopGeneration)]
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in one.items()} for one in generations)
    else:
        console = Console()
        console.print(generation_table(generations))
        console.print(head_line(run), soft_wrap=True)


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def generation_table(generations: Sequence[dict[str, Any]]) -> Table:
    """Give a row for each generation."""
    table = Table(box=None, pad_edge=False)
    for heading in ("gen", "artifact", "reward", "gain", "cost", "decision", "reason", "applied"):
        table.add_column(heading)
    for one in generations:
        table.add_row(
            str(one["generation"]),
            Text(str(one["artifactId"] or "")),
            *(number(one[field]) for field in ("reward", "gain", "cost")),
            one["action"],
            Text(one["reason"]),
            "yes" if one["applied"] else "",
        )
    return table


def generation_line(generation: dict[str, Any]) -> Text:
    """Give one generation in a line."""
    line = Text(f"{generation['generation']:>5}  {generation['action']:<9}")
    line.append(f"{number(generation['reward']):>10}  {generation['reason']}")
    return line


def head_line(run: dict[str, Any]) -> Text:
    """Give a run in a line."""
    line = Text(f"{run['runId']}  {run['status']}  generation {run['generation']}")
    if run.get("bestReward") is not None:
        line.append(f"  best {number(run['bestReward'])} {run.get('bestArtifactId') or ''}")
    if run.get("stoppedReason"):
        line.append(f"  ({run['stoppedReason']})")
    return line


def number(value: float | str | None) -> str:
    """Give a measured number; nothing if there is none."""
    return f"{value:.6g}" if isinstance(value, int | float) else str(value or "")


class LoopView:
    """
    A run while it goes on: a table that moves in a terminal, elsewhere a line per generation.

    Owns the lower end of the console for the length of its block; what others print stands above.
    """

    def __init__(self, console: Console, max_generations: int) -> None:
        self._console = console
        self._max = max_generations
        self._recent: list[dict[str, Any]] = []
        self._spinner = Spinner("dots")
        self._live = Live(console=console, transient=True, get_renderable=self._seen)
        self._moving = console.is_terminal

    def __enter__(self) -> "LoopView":
        if self._moving:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Tell something beside the generations."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def generation(self, generation: dict[str, Any], run: dict[str, Any]) -> None:
        """Show one that has been recorded, and how the run stands after it."""
        if not self._moving:
            self._console.print(generation_line(generation), soft_wrap=True)
            return
        self._recent = [*self._recent, generation][-SHOWN:]
        said = head_line(run).append(f"  of at most {self._max}, cost {number(run['cost'])}")
        self._spinner.update(text=said)

    def _seen(self) -> Group:
        table = [generation_table(self._recent)] if self._recent else []
        return Group(*table, self._spinner)
