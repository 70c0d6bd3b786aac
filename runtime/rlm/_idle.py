"""What the host asks before it ends a kernel that nobody uses: would anything end with it?"""

import asyncio

from . import _verify


def check() -> None:
    """
    Return when nothing of the cells goes on: no thread of theirs, no task.

    Processes are the host's to see. Raises RuntimeError, which says what goes on.
    """
    if _verify.foreign_threads():
        raise RuntimeError("a thread runs")
    if asyncio.all_tasks(asyncio.get_event_loop()):
        raise RuntimeError("a task runs")
