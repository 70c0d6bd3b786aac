"""What the host asks before it ends a kernel that nobody uses: would anything end with it?"""

import asyncio
import os

from . import _linux, _verify


def check() -> None:
    """
    Return when nothing of the cells goes on: no thread of theirs, no task, no process.

    Raises RuntimeError, which says what goes on; as well where processes cannot be seen.
    """
    if _verify.foreign_threads():
        raise RuntimeError("a thread runs")
    if asyncio.all_tasks(asyncio.get_event_loop()):
        raise RuntimeError("a task runs")
    if not _linux.lists_children():
        raise RuntimeError("processes cannot be seen here")
    if any(_runs(pid) for parent in (os.getpid(), os.getppid()) for pid in _linux.children(parent)):
        raise RuntimeError("a process runs")


def _runs(pid: int) -> bool:
    """Tell of a child of ours, or of the guard that adopts orphans, whether it has not ended."""
    state = _linux.stat(pid)
    return pid != os.getpid() and state is not None and state[0] != b"Z"
