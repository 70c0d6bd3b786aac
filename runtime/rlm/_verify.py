"""
Would the stream come back? Tried in a forked child before anything is written.

The child forgets cloudpickle's table of known classes and gets a fresh `__main__`: with the
parent's it would find every class alive and be blind. Not tried while threads of the cells run: a
fork then copies whatever lock they hold.
"""

import gc
import mmap
import os
import select
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import cloudpickle.cloudpickle as internals  # type: ignore[import-untyped]
import msgspec

from . import _cells, _clock, _pickling, _unpickling
from ._pickling import Caps, Saved

LIMIT_S = 2.0
_PASSES = 16
_OWN_THREADS = "rlm-"


def verified(saved: Saved, namespace: dict[str, Any], caps: Caps) -> tuple[Saved, bool]:
    """
    Leave out what would not come back.

    Returns:
        The saved names that do, and False when that could not be found out in time.
    """
    if not saved.stream.needs_check:
        return saved, True
    deadline = _clock.monotonic() + LIMIT_S
    for _ in range(_PASSES):
        if foreign_threads():
            return saved, False
        failed = _cells.call(_try, saved, namespace, caps, deadline)
        if failed is None:
            return saved, False
        if not failed:
            return saved, True
        excluded = {**saved.skipped, **failed}
        again = _cells.call(_pickling.dump, namespace, excluded, caps)
        saved = Saved(again.stream, again.skipped, [*saved.oversized, *again.oversized])
    return saved, False


def foreign_threads() -> bool:
    """Tell whether threads of the cells run."""
    main = threading.main_thread()
    return any(
        thread is not main and not thread.name.startswith(_OWN_THREADS)
        for thread in threading.enumerate()
    )


class _Progress:
    """Which name the child is at, readable after its death."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    def at(self, index: int) -> None:
        """Note that name `index` is being loaded."""
        self._shared[:] = index.to_bytes(8, "little")

    def last(self) -> int:
        """Give the index that was noted last."""
        return int.from_bytes(self._shared[:], "little")


def _try(
    saved: Saved, namespace: dict[str, Any], caps: Caps, deadline: float
) -> dict[str, str] | None:
    """Load in a child. Gives the names that fail; None when time is over."""
    progress = _Progress()
    with _keeping_children(), _child(saved, namespace, caps, progress) as report:
        data = b""
        while (left := deadline - _clock.monotonic()) > 0:
            if not select.select([report], [], [], left)[0]:
                return None
            more = os.read(report, 1 << 20)
            data += more
            if more:
                continue
            if data:
                failed: dict[str, str] = msgspec.json.decode(data)
                return failed
            # It ended without a verdict: the name it was at has ended it.
            names = saved.stream.names[progress.last() :]
            return {names[0]: "loading it ends the process"} if names else None
        return None


@contextmanager
def _keeping_children() -> Iterator[None]:
    """Have children stay until we wait for them, whatever a cell has made of SIGCHLD."""
    theirs = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if theirs is not None:  # None: it was not installed from Python
            signal.signal(signal.SIGCHLD, theirs)


@contextmanager
def _child(
    saved: Saved, namespace: dict[str, Any], caps: Caps, progress: _Progress
) -> Iterator[int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _load_and_report(saved, namespace, caps, progress, write_end)
    os.close(write_end)
    try:
        yield read_end
    finally:
        os.close(read_end)
        try:
            os.kill(pid, signal.SIGKILL)
        finally:
            os.waitpid(pid, 0)


def _load_and_report(
    saved: Saved, namespace: dict[str, Any], caps: Caps, progress: _Progress, fd: int
) -> NoReturn:
    """The child's part. Leaves by `os._exit` whatever the pickles do."""
    try:
        signal.alarm(int(LIMIT_S) + 1)
        gc.disable()
        kept: list[Any] = []  # no finaliser may run here: it would delete the parent's files
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        stream = saved.stream
        fresh = _forget_classes()
        _, failures = _unpickling.load(
            stream.data, list(stream.buffers), stream.names, stream.ends, fresh, kept, progress.at
        )
        failed = {}
        for row in failures:  # what leans on a failed name fails with it; alone it may come back
            progress.at(stream.names.index(row.name))
            if not _loads_alone(row.name, namespace, caps, kept):
                failed[row.name] = row.reason
        failed = failed or {row.name: row.reason for row in failures}
        progress.at(len(stream.names))
        data = memoryview(msgspec.json.encode(failed))
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os._exit(0)


def _loads_alone(name: str, namespace: dict[str, Any], caps: Caps, kept: list[Any]) -> bool:
    others = dict.fromkeys(namespace.keys() - {name}, "")
    alone = _pickling.dump(namespace, others, caps).stream
    fresh = _forget_classes()
    _, failed = _unpickling.load(
        alone.data, list(alone.buffers), alone.names, alone.ends, fresh, kept
    )
    return not failed


def _forget_classes() -> dict[str, Any]:
    """Be as a kernel that has just been started; give its namespace."""
    internals._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    internals._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    sys.modules["__main__"] = types.ModuleType("__main__")
    return vars(sys.modules["__main__"])
