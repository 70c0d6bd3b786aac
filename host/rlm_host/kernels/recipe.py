"""Which Python a kernel runs on, inside what, and with which variables: what is asked for."""

from collections.abc import Mapping
from enum import StrEnum, auto
from pathlib import Path

import msgspec


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How a session's kernel is started; part of its options, inherited by its children.

    `python` names an interpreter, or the folder of a virtual environment (absolute, relative to the
    session's folder, or a program on the PATH); None lets the host choose. `launcher` is an argv
    that the interpreter's argv is appended to (`bwrap …`). `env` adds variables; a journal keeps
    their names only, never their values.
    """

    python: str | None = None
    launcher: tuple[str, ...] = ()
    env: dict[str, str] = {}


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session brings to the start of its kernel."""

    recipe: Recipe
    cwd: Path
    session_dir: Path
    depth: int
    max_depth: int


class Source(StrEnum):
    """Who named the interpreter."""

    RECIPE = auto()
    VARIABLE = auto()
    CONFIG = auto()
    WORKSPACE = auto()
    MANAGED = auto()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter that was named; None is the managed one."""

    source: Source
    python: str | None = None


def choose(
    recipe: Recipe, cwd: Path, environ: Mapping[str, str], configured: str | None = None
) -> Choice:
    """
    Say which interpreter counts: the session's own, RLM_KERNEL_PYTHON, the `configured` one, the
    workspace's .venv, ours.

    The first that is named counts, usable or not: a project's kernel never changes its packages
    without a word. What the editor passes is the session's own.
    """
    if recipe.python is not None:
        return Choice(source=Source.RECIPE, python=recipe.python)
    if named := environ.get("RLM_KERNEL_PYTHON"):
        return Choice(source=Source.VARIABLE, python=named)
    if configured is not None:
        return Choice(source=Source.CONFIG, python=configured)
    venv = cwd / ".venv"
    if (venv / "pyvenv.cfg").exists():
        return Choice(source=Source.WORKSPACE, python=str(venv / "bin" / "python"))
    return Choice(source=Source.MANAGED)
