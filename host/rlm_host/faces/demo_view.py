"""How the demo looks in a terminal: progress lines, the session tree, the loop's table and plot."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

PLOT_WIDTH = 16


class DemoView:
    """Writes to one console; holds nothing else."""

    def __init__(self, console: Console) -> None:
        self._console = console

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
            code = item["code"].strip().splitlines()
            shown = "\n".join([*code[:4], f"# … {len(code) - 4} more lines"][: max(len(code), 5)])
            self._console.print(Syntax(shown if len(code) > 5 else "\n".join(code), "python"))
            if item.get("result"):
                self.say(f"→ {item['result'][:120]}")
        elif kind == "childSpawn":
            self.say(f"child {item['name']} admitted ({item['model']})")
        elif kind == "childMessage":
            self.say(f"notice of {item['senderName']}: {item.get('notice') or item['text'][:80]}")

    def tree(self, root: dict[str, Any]) -> None:
        """Draw the session tree with own and subtree usage."""
        top = Tree(_node(root))
        self._branches(top, root["children"])
        self._console.print(top)

    def _branches(self, tree: Tree, children: Iterable[dict[str, Any]]) -> None:
        for child in children:
            self._branches(tree.add(_node(child)), child["children"])

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


def _node(node: dict[str, Any]) -> Text:
    own, subtree = _usage(node["own"]), _usage(node["subtree"])
    text = Text(node["name"], style="bold")
    text.append(f"  {node['model']}  {node['status']}  ", style="not bold")
    text.append(f"own {own}", style="not bold")
    if node["children"]:
        text.append(f"  subtree {subtree}", style="not bold")
    return text


def _usage(usage: dict[str, Any]) -> str:
    tokens = usage["inputTokens"] + usage["outputTokens"]
    return f"{tokens:,} tokens ${usage['costNanoUsd'] / 1e9:.6f}"
