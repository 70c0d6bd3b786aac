"""How the demo looks in a terminal: progress lines, the session tree, the loop's table and plot."""

from collections.abc import Sequence
from typing import Any

from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from .console import Console
from .session_tree import session_tree

PLOT_WIDTH = 16
SHOWN_LINES = 4
"""Of a longer cell, so many lines are shown."""


class DemoView:
    """Writes to one console; remembers the last cell, to show it once when it is run again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_code = ""

    def step(self, title: str) -> None:
        """Begin a step."""
        self._console.print(Text(title, style="bold"))

    def say(self, text: str) -> None:
        """Say one line inside a step."""
        self._console.print(Text("  " + text), soft_wrap=True)

    def item(self, item: dict[str, Any]) -> None:
        """Show a finished item of the session."""
        kind = item["type"]
        if kind == "agentMessage":
            self.say(f"model: {item['text'].strip()}")
        elif kind == "replCell" and item["author"] == "model":
            if item["code"] != self._last_code:
                self._code(item["code"].strip().splitlines())
                self._last_code = item["code"]
            if item.get("result"):
                self.say(f"→ {item['result'][:120]}")
        elif kind == "childSpawn":
            self.say(f"child {item['name']} admitted ({item['model']})")
        elif kind == "childMessage":
            self.say(f"notice of {item['senderName']}: {item.get('notice') or item['text'][:80]}")

    def _code(self, lines: list[str]) -> None:
        if len(lines) > SHOWN_LINES + 1:
            lines = [*lines[:SHOWN_LINES], f"# … {len(lines) - SHOWN_LINES} more lines"]
        self._console.print(Syntax("\n".join(lines), "python"))

    def tree(self, root: dict[str, Any]) -> None:
        """Draw the session tree with own and subtree usage."""
        self._console.print(session_tree(root))

    def loop(self, generations: Sequence[dict[str, Any]]) -> None:
        """Draw the loop's table and the reward plot beside it."""
        table = Table(box=None, pad_edge=False)
        for heading in ("gen", "candidate", "saved", "decision", "reason", "applied", "reward"):
            table.add_column(heading)
        bars = plot([g["reward"] for g in generations])
        for generation, bar in zip(generations, bars, strict=True):
            table.add_row(
                str(generation["generation"]),
                str(generation["artifactId"]),
                f"{100 * generation['reward']:.2f} %",
                generation["action"],
                generation["reason"],
                "yes" if generation["applied"] else "",
                bar,
            )
        self._console.print(table)


def plot(rewards: Sequence[float]) -> list[str]:
    """Give one bar a reward, from the lowest to the highest of them, in `PLOT_WIDTH` characters."""
    low, high = min(rewards), max(rewards)
    span = (high - low) or 1.0
    return ["█" * (1 + round((reward - low) / span * (PLOT_WIDTH - 1))) for reward in rewards]
