"""What the host asks before it ends a kernel that nobody uses: would anything end with it?"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from . import _verify


def check() -> None:
    """
    Return when nothing of the cells goes on: no thread of theirs, no task, no process.

    Raises RuntimeError, which says what goes on; as well where processes cannot be seen (no /proc).
    """
    if _verify.foreign_threads():
        raise RuntimeError("a thread runs")
    if asyncio.all_tasks(asyncio.get_event_loop()):
        raise RuntimeError("a task runs")
    if any(map(_runs, _processes())):
        raise RuntimeError("a process runs")


def _processes() -> Iterator[int]:
    """Yield what the cells started: our children, and our parent's, a guard that adopts orphans."""
    for parent in filter(None, (os.getpid(), os.getppid())):
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                yield from map(int, (task / "children").read_text().split())
        except OSError as why:
            raise RuntimeError(f"processes cannot be seen: {why}") from why


def _runs(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
