"""Which names of the namespace are the user's."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RUNTIME_NAMES = frozenset(
    ("rlm", "bash", "asyncio", "mcp", "In", "Out", "get_ipython", "exit", "quit", "open")
)
"""Bound by the host's bootstrap or by shells of other systems: never listed, saved or restored."""

SKILLS: set[str] = set()
"""Names of the skills that the host has bound: as little the user's."""


def is_users(name: object) -> bool:
    """Tell whether the user made this name."""
    return (
        type(name) is str
        and name.isidentifier()
        and not name.startswith("_")
        and name not in RUNTIME_NAMES
        and name not in SKILLS
    )


def user_names(namespace: dict[str, Any]) -> list[str]:
    """Give the user's names in the order in which they were bound."""
    return [name for name in list(namespace) if is_users(name) and not _is_tools(name, namespace)]


def _is_tools(name: str, namespace: dict[str, Any]) -> bool:
    """Tell the client's tools from a variable of the user that has their name."""
    module = sys.modules.get("rlm._tools")
    return name == "tools" and module is not None and type(namespace.get(name)) is module.Tools


@contextmanager
def own_imports() -> Iterator[None]:
    """Import what is ours from where it is installed, never a user's file of that name."""
    path = sys.path[:]
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed
        here = ""
    sys.path[:] = [entry for entry in path if entry not in ("", ".", here)]
    try:
        yield
    finally:
        sys.path[:] = path
