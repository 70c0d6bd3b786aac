"""Which Python a kernel runs on, inside what, and with which variables. Pure: nothing is run."""

from pathlib import Path

import msgspec


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How a session's kernel is started; part of its options, inherited by its children.

    `python` names an interpreter (absolute, or relative to the session's folder); None lets the
    host choose. `launcher` is an argv that the interpreter's argv is appended to (`bwrap …`).
    `env` adds variables; a journal keeps their names only, never their values.
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
