"""
Folders that are made once, beside each other, and then only read: environments and overlays.

A folder counts when its marker is there; the marker is written last. Whoever makes one holds a lock
that ends with its process, so a host that died half-way is seen at once and its remains are made
anew. Nobody changes a folder that has its marker: a kernel may be running in it.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from rlm_protocol.errors import KernelUnavailable
from rlm_protocol.framing import UNDECODABLE

from .. import paths
from ..clock import Clock

MARKER = "rlm-kernel.json"
RETRY_MS = 50
LOCK_WAIT_MS = 900_000
"""Another host may be installing large packages over a slow line."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished folder is."""

    runtime: str
    python: str
    abi: str
    packages: tuple[str, ...] = ()
    """Requirements that were asked for."""
    kept: tuple[str, ...] = ()
    """What was added to the environment before and has been copied."""
    lost: tuple[str, ...] = ()
    """What was added to the environment before and could not be copied."""
    made_at_ms: int


def read_marker(folder: Path) -> Marker | None:
    """Give the marker of a finished folder; None for one that is missing, unfinished or damaged."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    except (FileNotFoundError, NotADirectoryError, *UNDECODABLE):
        return None


def write_marker(folder: Path, marker: Marker) -> None:
    """Declare a folder finished. Raises OSError."""
    with paths.Directory.open(folder) as directory:
        directory.write(MARKER, msgspec.json.encode(marker))


@contextlib.asynccontextmanager
async def making(folder: Path, clock: Clock, finished: Callable[[], bool]) -> AsyncIterator[bool]:
    """
    Hold the right to make `folder`, for the length of the block.

    Yields True with the folder out of the way, or False when another has `finished` it meanwhile.
    Left by an error, what has been made is removed.

    Raises:
        KernelUnavailable: the place cannot be written, or another holds the right for too long.
    """
    try:
        with paths.Directory.open(folder.parent) as directory:
            lock = directory.open_file(f"{folder.name}.lock", os.O_RDWR | os.O_CREAT)
    except OSError as why:
        raise KernelUnavailable("The place for kernels cannot be written.", why=str(why)) from why
    try:
        await _lock(lock, clock, folder)
        if finished():
            yield False
            return
        await asyncio.to_thread(shutil.rmtree, folder, True)
        try:
            yield True
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(lock)


async def _lock(fd: int, clock: Clock, folder: Path) -> None:
    deadline_ms = clock.monotonic_ms() + LOCK_WAIT_MS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if clock.monotonic_ms() > deadline_ms:
                raise KernelUnavailable(
                    "Another process has been making this environment for too long.",
                    folder=str(folder),
                ) from None
            await clock.sleep(RETRY_MS)
