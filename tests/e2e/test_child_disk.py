"""A disk that is full when a child is spawned: nothing stays, and the error says what to do."""

import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_host import paths
from rlm_host.children.accounts import book_of
from rlm_host.children.kin import registry_of
from rlm_host.sessions.files import Files
from rlm_protocol import records as r
from rlm_protocol.errors import StoreFull, StoreUnavailable
from rlm_protocol.usage import Budget
from support.family import family

pytestmark = pytest.mark.anyio

SAY = json.dumps([{"text": "done"}])


class FullDisk(Files):
    """Writes, folders and syncs fail from the nth on, until there is `room` again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = self.nth = 0
        self.armed = False
        self.code = errno.ENOSPC
        for owner, name in ((os, "mkdir"), (os, "fsync"), (paths.Directory, "open_file")):
            original = getattr(owner, name)

            def failing(*given: Any, original: Callable[..., Any] = original, **more: Any) -> Any:
                self.point()
                return original(*given, **more)

            monkeypatch.setattr(owner, name, failing)

    def fill(self, nth: int) -> None:
        self.nth = self.left = nth
        self.armed = True

    def point(self) -> None:
        if self.armed:
            self.left -= 1
            if self.left <= 0:
                raise OSError(self.code, os.strerror(self.code))

    def write(self, fd: int, data: memoryview) -> int:
        self.point()
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.point()
        super().sync(fd)


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreUnavailable)]
)
async def test_a_spawn_on_a_full_disk_leaves_nothing_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    with monkeypatch.context() as patch:
        disk = FullDisk(patch)
        disk.code = code
        async with family(tmp_path, files=disk) as host:
            root = await host.root(budget=Budget(spawns=1))
            seq = root.state.seq
            for nth in itertools.count(1):
                disk.fill(nth)
                try:
                    agent = await host.spawn(root, SAY, name="w")
                except error as why:
                    told = str(why)
                else:
                    disk.armed = False
                    break
                disk.armed = False
                assert str(host.home) in told
                assert "What was acknowledged is kept" in told
                assert registry_of(root).children == {}
                assert not list(root.artifacts_path.glob("sub-*"))
                await root.append(r.SessionRenamed(name=f"room again {nth}"))
                assert not any(book.tokens or book.spawns for book in book_of(root).used.values())
            assert nth > 5, "every operation of an admission had its turn"
            assert root.state.seq > seq
            [ended] = await host.ended(root, agent)
            assert ended.status == "completed"
        journal = (host.home / "sessions" / f"{root.id}.jsonl").read_bytes()
    found = [r.decode_line(line) for line in journal.splitlines()]
    admitted = [
        e for e in found if isinstance(e, r.Entry) and isinstance(e.record, r.ChildAdmitted)
    ]
    assert len(admitted) == 1
