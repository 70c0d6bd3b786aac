"""A session and its descendants as a tree: what each used itself, and what all below it used."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree


def session_tree(root: Mapping[str, Any]) -> Tree:
    """Draw the answer of `session/tree`."""
    top = Tree(_node(root))
    _add(top, root)
    return top


def _add(tree: Tree, node: Mapping[str, Any]) -> None:
    for child in node["children"]:
        _add(tree.add(_node(child)), child)


def _node(node: Mapping[str, Any]) -> Text:
    text = Text(node["name"], style="bold")
    about = f"  {node['model']}  {node['status']}  own {_usage(node['own'])}"
    if node["children"]:
        about += f"  subtree {_usage(node['subtree'])}"
    return text.append(about, style="not bold")


def _usage(usage: Mapping[str, Any]) -> str:
    tokens = usage["inputTokens"] + usage["outputTokens"]
    unpriced = usage["unknownCost"] + usage["unmeasured"]
    at_least = "at least " if unpriced else ""
    return f"{tokens:,} tokens {at_least}${usage['costNanoUsd'] / 1e9:.6f}"
