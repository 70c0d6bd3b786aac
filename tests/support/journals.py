"""Journals for tests: a writer over files that fail on order, and what became of the disk."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlm_host.paths import Directory
from rlm_host.sessions.files import Files
from rlm_host.sessions.journal import Journal
from rlm_host.sessions.recovery import Recovered, recover
from rlm_host.sessions.scan import Found
from rlm_protocol import records as r
from rlm_protocol.item import UserMessage

NAME = "s.jsonl"


def header(**more: Any) -> r.SessionOpened:
    fields = {
        "session_id": "s",
        "name": "n",
        "cwd": "/",
        "model": "scripted/echo",
        "prompt": "be good",
        "max_depth": 2,
    }
    return r.SessionOpened(**{**fields, **more})


def said(text: str, item_id: str | None = None) -> r.ItemCompleted:
    return r.ItemCompleted(item=UserMessage(id=item_id or f"i-{text}", text=text))


def write_journal(folder: Path, records: list[r.Record], *, gen: int = 1) -> Path:
    """A journal that holds these records, numbered from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [r.encode_line(one, seq=n, gen=gen, at_ms=n) for n, one in enumerate(records, 1)]
    (folder / NAME).write_bytes(b"".join(lines))
    return folder / NAME


def opened(folder: Path, files: Files | None = None) -> Recovered:
    with Directory.open(folder) as directory:
        return recover(directory, NAME, files=files or Files(), make_folds=dict)


def texts(folder: Path) -> list[str]:
    """The texts of all user messages that can be read, in order."""
    from rlm_host.sessions.recovery import read

    with Directory.open(folder) as directory:
        return [
            str(getattr(found.entry.record.item, "text", ""))
            for found in read(directory, NAME)
            if isinstance(found.entry.record, r.ItemCompleted)
        ]


@contextlib.asynccontextmanager
async def writer(
    folder: Path,
    *,
    files: Files | None = None,
    on_durable: Callable[[list[Found]], None] = lambda _: None,
    on_failed: Callable[[], None] = lambda: None,
) -> AsyncIterator[Journal]:
    """A writer on the recovered journal of `folder`."""
    files = files or Files()
    with Directory.open(folder) as directory, ThreadPoolExecutor(1) as executor:
        found = await asyncio.get_running_loop().run_in_executor(executor, opened, folder, files)
        journal = Journal(
            directory,
            NAME,
            place=found.place,
            files=files,
            executor=executor,
            now_ms=lambda: 1,
            on_durable=on_durable,
            on_failed=on_failed,
        )
        try:
            yield journal
        finally:
            await journal.aclose()


class Crash(BaseException):
    """The process was killed. BaseException, so that no `except Exception` can survive it."""


class FaultyFiles(Files):
    """
    Files whose `nth` operation fails, once or from then on.

    `how`: `enospc`, `eio` raise; `short` writes one byte; `torn` writes half and is killed; `before`
    and `after` are killed before or after the operation. After a kill every operation is.
    """

    def __init__(self, nth: int, how: str, *, persist: bool = False) -> None:
        self.left, self.how, self.persist = nth, how, persist
        self.count = 0
        self.dead = False

    @property
    def hit(self) -> bool:
        return self.left <= 0

    def open(self, directory: Directory, name: str, flags: int) -> int:
        return self._do(lambda: super(FaultyFiles, self).open(directory, name, flags))

    def create(self, directory: Directory, name: str, data: bytes) -> None:
        self._do(lambda: super(FaultyFiles, self).create(directory, name, data))

    def write(self, fd: int, data: memoryview) -> int:
        return self._do(lambda: super(FaultyFiles, self).write(fd, data), fd, data)

    def sync(self, fd: int) -> None:
        self._do(lambda: super(FaultyFiles, self).sync(fd))

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._do(lambda: super(FaultyFiles, self).truncate(fd, size_bytes))

    def _do(self, work: Callable[[], Any], fd: int = -1, data: memoryview | None = None) -> Any:
        if self.dead:
            raise Crash
        self.count += 1
        self.left -= 1
        if self.left > 0 or (self.left < 0 and not self.persist):
            return work()
        if self.how in ("enospc", "eio"):
            code = errno.ENOSPC if self.how == "enospc" else errno.EIO
            raise OSError(code, os.strerror(code))
        if self.how == "short":
            return work() if data is None else os.write(fd, data[:1])
        self.dead = True
        if self.how == "torn" and data is not None:
            os.write(fd, data[: len(data) // 2])
        elif self.how != "before" and (given := work()) is not None and data is None:
            os.close(given)
        raise Crash


class TracedFiles(Files):
    """Files that note what they do to the one journal, for power-loss states."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trace: list[tuple[str, Any]] = []

    def write(self, fd: int, data: memoryview) -> int:
        self.trace.append(("write", bytes(data)))
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.trace.append(("sync", None))

    def truncate(self, fd: int, size_bytes: int) -> None:
        self.trace.append(("truncate", size_bytes))
        super().truncate(fd, size_bytes)


def power_losses(
    start: bytes, trace: list[tuple[str, Any]], draw: Callable[[int], int], variants: int
) -> Iterator[tuple[int, bytes]]:
    """
    Yield `(operations done, bytes on the disk)` for power lost after each operation.

    What was not synced is there, or not, or in part, by sectors of 512 bytes, holes read as zeros.
    `draw(n)` gives a number below n.
    """
    synced = start
    pending: list[tuple[str, Any]] = []
    for done, (kind, value) in enumerate([("begin", None), *trace]):
        if kind == "sync":
            for one in pending:
                synced = _applied(synced, *one)
            pending = []
        elif kind != "begin" and kind != "ack":
            pending.append((kind, value))
        yield done, synced
        whole = synced
        for one in pending:
            whole = _applied(whole, *one)
        yield done, whole
        for _ in range(variants if pending else 0):
            yield done, _torn(synced, pending, draw)


def _applied(disk: bytes, kind: str, value: Any) -> bytes:
    return disk[:value] if kind == "truncate" else disk + value


def _torn(disk: bytes, pending: list[tuple[str, Any]], draw: Callable[[int], int]) -> bytes:
    """Some of the pending bytes, by sector; the file's length may be there without its data."""
    whole = disk
    for kind, value in pending:
        whole = _applied(whole, kind, value)
    if len(whole) <= len(disk):
        return disk if draw(2) else whole
    size = len(disk) + draw(len(whole) - len(disk) + 1)
    torn = bytearray(whole[:size])
    for sector in range(len(disk) // 512, size // 512 + 1):
        if draw(3) == 0:
            begin = max(len(disk), sector * 512)
            end = min(size, (sector + 1) * 512)
            torn[begin:end] = bytes(max(0, end - begin))
    return bytes(torn)
