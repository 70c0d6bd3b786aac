"""How loops look, all of wire data: lines, tables, a plot for people, JSON, CSV for programs."""

import csv
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rlm_protocol.loop import LoopGeneration

from .cli_client import print_json
from .loop_page import page_of
from .loop_plot import LiveReward, RewardPlot

SHOWN = 12
"""Generations that are seen while a run goes on."""
PLOT_LINES = 8
COLUMNS = (
    # heading, and the narrowest console that it is shown in
    ("gen", 0),
    ("artifact", 60),
    ("reward", 0),
    ("gain", 80),
    ("cost", 80),
    ("decision", 0),
    ("reason", 40),
    ("applied", 80),
)


def print_report(report: dict[str, Any], form: str | None) -> None:
    """Print a whole run as `json`, `html`, `csv` (its generations alone), or a table and a plot."""
    run, generations = report["run"], report["generations"]
    if form == "json":
        print_json(report)
    elif form == "html":
        sys.stdout.write(page_of(report))
    elif form == "csv":
        columns = [field.encode_name for field in msgspec.structs.fields(LoopGeneration)]
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in one.items()} for one in generations)
    else:
        console = Console()
        console.print(generation_table(generations, console.width))
        console.print(_drawn(console, plot_of(generations)), end="")
        console.print(head_line(run), soft_wrap=True)


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def plot_of(generations: Sequence[dict[str, Any]]) -> RewardPlot:
    """Give the plot of a whole run."""
    plot, live = RewardPlot(), LiveReward()
    for one in generations:
        plot.add(one, live.after(one))
    return plot


def _drawn(console: Console, plot: RewardPlot) -> Text:
    if len(plot) < 2:
        return Text()
    options = console.options
    lines = plot.lines(options.max_width, PLOT_LINES, ascii_only=options.ascii_only)
    return Text("".join(f"{line}\n" for line in lines), no_wrap=True, style="cyan")


def generation_table(generations: Sequence[dict[str, Any]], width: int) -> Table:
    """Give a row for each generation, with the columns that so many characters have room for."""
    table = Table(box=None, pad_edge=False)
    shown = [narrowest <= width for _, narrowest in COLUMNS]
    for heading, narrowest in COLUMNS:
        if narrowest <= width:
            table.add_column(heading, overflow="fold")
    for one in generations:
        cells = (
            str(one["generation"]),
            Text(str(one["artifactId"] or "")),
            *(number(one[field]) for field in ("reward", "gain", "cost")),
            one["action"],
            Text(one["reason"]),
            "yes" if one["applied"] else "",
        )
        table.add_row(*(cell for cell, seen in zip(cells, shown, strict=True) if seen))
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
    A run while it goes on: a table and a plot that move in a terminal, elsewhere a line per
    generation.

    Owns the lower end of the console for the length of its block; what others print stands above.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._recent: list[dict[str, Any]] = []
        self._plot = RewardPlot()
        self._spinner = Spinner("line" if console.options.ascii_only else "dots")
        self._live = Live(console=console, transient=True, get_renderable=self._seen)
        self._moving = console.is_terminal and not console.is_dumb_terminal

    def __enter__(self) -> "LoopView":
        if self._moving:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Tell something beside the generations."""
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def generation(self, generation: dict[str, Any], best: float | str | None) -> None:
        """Show one that has been recorded, and the best reward after it."""
        if not self._moving:
            self._console.print(generation_line(generation), soft_wrap=True)
        self._recent = [*self._recent, generation][-SHOWN:]
        self._plot.add(generation, best)

    def run(self, run: dict[str, Any]) -> None:
        """Show how the run stands."""
        most = "" if run["maxGenerations"] is None else f" of at most {run['maxGenerations']}"
        self._spinner.update(text=head_line(run).append(f"{most}, cost {number(run['cost'])}"))

    def last(self) -> RenderableType:
        """Give what is worth keeping on the console when the run has ended."""
        room = self._console.height - PLOT_LINES - 3
        recent = self._recent[-room:] if room > 0 else []
        table = [generation_table(recent, self._console.width)] if recent else []
        return Group(*table, _drawn(self._console, self._plot))

    def _seen(self) -> Group:
        return Group(self.last(), self._spinner)
