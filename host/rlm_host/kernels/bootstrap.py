"""
What the host has every kernel process do by silent cells.

Before its first cell and again after every restore it puts `rlm`, `bash`, the client's `tools` and
the skills into the namespace. They win over restored names, for what was not there or did not work
on the day of the snapshot must not stay so.
"""

from collections.abc import Callable, Sequence

import msgspec

from rlm_protocol.session import ClientTool

from .skills import Skill, skills_code

IDLE_CODE = "__import__('rlm._idle')._idle.check()"
"""A silent cell that fails, and says why, when something that a cell began goes on."""
Bootstrap = Callable[[], str]
"""Gives the code of the silent cell, as it is now. Blocks: it looks for skills."""

STOP = "from rlm._bootstrap import stop; stop()"
"""Ends what cells left running: background commands and tasks."""


def bind_code(tools: Sequence[ClientTool] = (), skills: tuple[Skill, ...] = ()) -> str:
    """Give the code that binds everything, with these tools and skills."""
    given = [repr(msgspec.json.encode(tools).decode())] if tools else []
    if skills:
        given.append(f"skills={skills_code(skills)!r}")
    return f"from rlm._bootstrap import bind; bind({', '.join(given)})"
