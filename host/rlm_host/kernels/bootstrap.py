"""
What every kernel process is told before its first cell, and again after every restore.

It puts `rlm`, `bash` and the client's `tools` into the namespace. After a restore too: they win
over restored names, for what was not there on the day of the snapshot must not stay away.
"""

from collections.abc import Callable, Sequence

import msgspec

from rlm_protocol.session import ClientTool

IDLE_CODE = "__import__('rlm._idle')._idle.check()"
"""A silent cell that fails, and says why, when a thread or a task of the cells goes on."""
Bootstrap = Callable[[], str]
"""Gives the code of the silent cell, as it is now."""


def bind_code(tools: Sequence[ClientTool] = ()) -> str:
    """Give the code that binds everything, with these tools."""
    given = repr(msgspec.json.encode(tools).decode()) if tools else ""
    return f"from rlm._bootstrap import bind; bind({given})"
