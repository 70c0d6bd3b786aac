"""
What the host has every kernel process do by silent cells.

Before its first cell and again after every restore it puts `rlm`, `bash` and the client's `tools`
into the namespace. They win over restored names, for what was not there on the day of the snapshot
must not stay away.
"""

from collections.abc import Callable, Sequence

import msgspec

from rlm_protocol.session import ClientTool

Bootstrap = Callable[[], str]
"""Gives the code of the silent cell, as it is now."""

STOP = "from rlm._bootstrap import stop; stop()"
"""Ends what cells left running: background commands and tasks."""


def bind_code(tools: Sequence[ClientTool] = ()) -> str:
    """Give the code that binds everything, with these tools."""
    given = repr(msgspec.json.encode(tools).decode()) if tools else ""
    return f"from rlm._bootstrap import bind; bind({given})"
