"""
A kernel's memory limit (`RLM_MEMORY_BYTES`): a MemoryError in the cell, or the end of the kernel.

The kernel limits what each of its processes may allocate (RLIMIT_DATA: private, writable memory),
so that a cell gets a MemoryError as soon as it asks for too much. The guard, which is not limited,
measures what they all hold together, shared memory included, and kills them when that is too much.
"""

import os
import resource
import time
from collections.abc import Callable

from . import _linux

MIB = 1024 * 1024
CELL_MORE, IDLE_MORE, ANSWER_MORE = 32 * MIB, 48 * MIB, 64 * MIB
"""What may be had above the limit: by a cell that finds it full, between cells, for an answer."""
ROOM = 8 * MIB
"""A cell has this much more at its beginning: the one that frees memory must be able to run."""
TOGETHER_MORE = 96 * MIB
"""What all processes may hold above the limit: a kernel that is full is not killed for it."""
SELDOM_S, OFTEN_S = 0.25, 0.05
LARGE_BYTES = 512 * 1024
"""A freed block of this size goes back to the system."""
_M_MMAP_THRESHOLD = -3
_PAGE = resource.getpagesize()


class Memory:
    """
    The limit of this process. Called by the runtime around each request.

    Rule: an answer may always take more than a cell or a thread, so that a full kernel can give
    one. Nothing is held in reserve but room below the hard limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._hard = limit_bytes + ANSWER_MORE
        # By itself malloc keeps ever larger blocks in its heap, which counts as used for good.
        _linux.call("mallopt", _M_MMAP_THRESHOLD, LARGE_BYTES)
        self.idle()

    def cell(self) -> None:
        """Limit what a cell may have."""
        wanted = max(self._limit, _data_bytes() + ROOM)
        self._set(min(wanted, self._limit + CELL_MORE))

    def answer(self) -> None:
        """Let the runtime say what became of a cell."""
        self._set(self._hard)

    def idle(self) -> None:
        """Limit what tasks and threads may have between cells."""
        self._set(self._limit + IDLE_MORE)

    def _set(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, self._hard))


def limit_from_environment() -> int | None:
    """Give the limit in bytes; None without one."""
    text = os.environ.get("RLM_MEMORY_BYTES", "")
    return int(text) if text.isdecimal() else None


def from_environment() -> Memory | None:
    """Limit this process as its environment says."""
    limit = limit_from_environment()
    return None if limit is None else Memory(limit)


def _data_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * _PAGE
    except OSError:
        return 0


# --- in the guard ---------------------------------------------------------------------------------


def watch(limit_bytes: int, over: Callable[[], None]) -> None:
    """Call `over` once the processes below this one hold too much. Runs in a thread."""
    most = limit_bytes + TOGETHER_MORE
    while True:
        held = _held_below(os.getpid(), "status", (b"RssAnon:", b"RssShmem:"))
        # What forks share is counted for each of them above; the exact figure costs more to get.
        if held > most:
            held = _held_below(os.getpid(), "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))
        if held > most:
            over()
            return
        time.sleep(OFTEN_S if held > limit_bytes // 2 else SELDOM_S)


def _held_below(root: int, file: str, fields: tuple[bytes, ...]) -> int:
    held, todo = 0, _linux.children(root)
    while todo:
        pid = todo.pop()
        todo += _linux.children(pid)
        held += _sum(f"/proc/{pid}/{file}", fields)
    return held


def _sum(path: str, fields: tuple[bytes, ...]) -> int:
    """Add up lines like `RssAnon:   1234 kB`. A process that has ended holds nothing."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(fields))
