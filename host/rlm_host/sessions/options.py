"""Typed options of a session: merged field by field, journaled without values of variables."""

import os
import stat
from pathlib import Path

import msgspec

from rlm_protocol import records as r
from rlm_protocol.limits import MAX_DEPTH_DEFAULT
from rlm_protocol.session import SessionOptions, Thinking

from ..kernels.skills import Skills
from .prompt import INSTRUCTIONS_CHARS, Instructions, compose

FILE = "AGENTS.md"


class SessionDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the user chose for sessions that do not say; `thinking` is clamped to their model."""

    model: str | None = None
    thinking: Thinking | None = None
    max_depth: int = MAX_DEPTH_DEFAULT


DEFAULTS = SessionDefaults()


def merged(old: SessionOptions, new: SessionOptions) -> SessionOptions:
    """Give `old` with every field that `new` gives; also a child's inheritance."""
    given = {
        name: getattr(new, name) for name in new.__struct_fields__ if getattr(new, name) is not None
    }
    return msgspec.structs.replace(old, **given)


def env_of(options: SessionOptions) -> dict[str, str]:
    """Give the variables for the kernel, with their values."""
    return dict(options.recipe.env or {}) if options.recipe else {}


def public(options: SessionOptions) -> SessionOptions:
    """Give the options as they are journaled: without the variables' values."""
    if options.recipe is None:
        return options
    return msgspec.structs.replace(
        options, recipe=msgspec.structs.replace(options.recipe, env=None)
    )


def composed(
    home: Path, opened: r.SessionOpened, options: SessionOptions, skills: Skills
) -> tuple[str, tuple[str, ...]]:
    """
    Give the system prompt of a session, and which instruction files are in it. Blocks.

    The client's text first, then `AGENTS.md` of the home and of the workspace.
    """
    files = [found for folder in (home, Path(opened.cwd)) if (found := _read(folder / FILE))]
    extra = [Instructions(options.instructions or ""), *files]
    paths = tuple(one.path for one in files if one.path)
    prompt = compose(
        extra,
        is_child=opened.parent is not None,
        tools=options.tools or (),
        skills=skills.offered(Path(opened.cwd)),
    )
    return prompt, paths


def _read(path: Path) -> Instructions | None:
    """Read an instruction file as far as it is used; none there, or none to read, is fine."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        # One character more than is shown, so that the cut is seen.
        text = file.read(4 * (INSTRUCTIONS_CHARS + 1)).decode("utf-8", "replace")
    return Instructions(text, str(path))
