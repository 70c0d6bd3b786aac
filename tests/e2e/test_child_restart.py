"""A host that dies at any moment: its children are told of once, and nothing runs twice."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.kin import registry_of
from rlm_host.children.usage import own_of_tree
from rlm_host.client import HostClient
from rlm_host.sessions.files import Files
from rlm_host.sessions.session import SessionActor
from rlm_protocol import errors as e
from rlm_protocol.item import ChildMessage
from support.family import STEPS, Family, family
from support.processes import in_time, until

pytestmark = pytest.mark.anyio


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})
FAIL = play({"error": "auth", "message": "no key"})
WAIT = play({"wait_ms": 60_000}, {"text": "never"})


class Disk(Files):
    """Keeps a copy of a home as it was after each sync: what a kill at that moment leaves."""

    def __init__(self, home: Path, states: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.states = home, states
        self.taken = 0
        self._lock, self._fsync = threading.Lock(), os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: self._keep(self._fsync, fd))

    def sync(self, fd: int) -> None:
        """Sync a journal."""
        self._keep(super().sync, fd)

    def _keep(self, sync: Callable[[int], None], fd: int) -> None:
        with self._lock:  # nothing that follows from this write can reach the disk before the copy
            sync(fd)
            if self.home.exists():
                target = self.states / str(self.taken) / "home"
                # SQLite's files only make sense together; the index is a cache and is built anew.
                index = shutil.ignore_patterns("index.sqlite3*")
                shutil.copytree(self.home, target, symlinks=True, ignore=index, copy_function=_copy)
                self.taken += 1


def _copy(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # a temporary file that has just been renamed
        shutil.copy2(source, target, follow_symlinks=False)


async def story(host: Family, disk: Disk, acknowledged: list[tuple[int, str, str]]) -> str:
    def done(what: str, name: str) -> None:
        acknowledged.append((disk.taken, what, name))

    root = await host.root(model="scripted/echo")
    done("created", root.id)
    await host.spawn(root, SAY, name="kept")
    done("spawned", "kept")
    await host.spawn(root, SAY, name="gone")
    await host.spawn(root, FAIL, name="failed")
    middle = await host.spawn(root, play({"wait_ms": 2000}, {"text": "ok"}), name="middle")
    await until(lambda: any(actor.id == middle.session_id for actor in host.store.loaded()))
    await host.spawn(await host.store.get(middle.session_id), SAY, name="leaf")
    await host.noticed(root, 4)
    await host.children.delete(root, "gone")
    done("deleted", "gone")
    await host.children.send(root, "kept", SAY)
    done("sent", "kept")
    await host.noticed(root, 5)
    return root.id


async def test_a_kill_at_any_fsync_loses_nothing_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged: list[tuple[int, str, str]] = []
    (tmp_path / "live").mkdir()
    with monkeypatch.context() as patch:
        disk = Disk(tmp_path / "live" / "home", tmp_path / "states", patch)
        async with family(tmp_path / "live", files=disk) as host:
            root_id = await story(host, disk, acknowledged)
        end = disk.taken
    assert end > 40
    created = acknowledged[0][0]
    for number in range(created, end):
        state = tmp_path / "states" / str(number)
        sure = {(what, name) for taken, what, name in acknowledged if taken <= number}
        told = await check(state, root_id, sure, f"state {number} of {end}")
        if number % 5 == 0:
            async with family(state) as host:
                again = await host.store.get(root_id)
                await in_time(again.wait_idle())
                assert sorted(await notices(host, again)) == told
        shutil.rmtree(state)


async def check(
    state: Path, root_id: str, sure: set[tuple[str, str]], where: str
) -> list[tuple[str, int]]:
    """Open what a kill left; give the notices that the parent has then."""
    async with family(state) as host:
        root = await host.store.get(root_id)
        known = registry_of(root)
        await until(
            lambda: not known.busy() and not any(c.owes_notice for c in known.children.values()),
            f"{where}: the end of open tasks",
        )
        await in_time(root.wait_idle())
        told = await notices(host, root)
        closed = {
            (child.id, generation)
            for child in registry_of(root).children.values()
            for generation in range(1, child.generation + (child.outcome is not None))
        }
        assert sorted(told) == sorted(closed), where
        names = {child.name: child for child in registry_of(root).children.values()}
        assert {name for what, name in sure if what == "spawned"} <= names.keys(), where
        if ("deleted", "gone") in sure:
            assert names["gone"].status == "deleted", where
            with pytest.raises(e.SessionNotFound):
                await host.store.get(names["gone"].admitted.session_id)
        if ("sent", "kept") in sure:
            assert names["kept"].generation == 2, where
        tree = await host.children.tree(root_id)
        assert own_of_tree(tree) == tree.subtree == root.state.subtree, where
    for journal in (state / "home" / "session-artifacts").rglob("*.jsonl"):
        sent = requests(journal)
        assert len(sent) == len(set(sent)), f"{where}: {journal} sent a request twice"
    return sorted(told)


async def notices(host: Family, root: SessionActor) -> list[tuple[str, int]]:
    """`(child, generation)` of every end notice that the parent has or will be told of."""
    found = [*await host.items(root), *(one.item for one in root.state.pending.values())]
    ends = [item for item in found if isinstance(item, ChildMessage) and item.notice is not None]
    return [(item.sender_id, int(item.id.rpartition("-")[2])) for item in ends]


def requests(journal: Path) -> list[str]:
    """The digest of every provider request that a journal knows of."""
    records = [json.loads(line) for line in journal.read_bytes().splitlines()]
    return [record["sha256"] for record in records if record["type"] == "provider_intent"]


async def test_a_task_that_a_crash_cut_short_says_how_far_it_had_come(tmp_path: Path) -> None:
    """kill -9 of a real host: one child is at work, one waits for a place, one rests."""
    env = {"RLM_HOME": str(tmp_path / "home"), "RLM_KERNEL_PYTHON": sys.executable}
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "config.toml").write_text("[children]\nmax_running = 1\n")

    async def agents(client: HostClient, root: str) -> dict[str, Any]:
        listed = await client.request("agent/list", {"sessionId": root})
        return {agent["name"]: agent for agent in listed["agents"]}

    async def settled(client: HostClient, root: str, wanted: dict[str, str]) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while True:
                found = await agents(client, root)
                if {name: agent["status"] for name, agent in found.items()} == wanted:
                    return found
                await asyncio.sleep(0.05)

    async with HostClient.spawn(env=env) as client:
        created = await client.request(
            "session/create", {"cwd": str(tmp_path), "model": "scripted/echo"}
        )
        root = created["session"]["id"]

        async def spawn(name: str, prompt: str) -> None:
            options = {"model": STEPS, "name": name, "unguarded": True}
            await client.request(
                "agent/spawn", {"sessionId": root, "prompt": prompt, "options": options}
            )

        await spawn("rests", SAY)
        await settled(client, root, {"rests": "completed"})
        await spawn("works", WAIT)
        await settled(client, root, {"rests": "completed", "works": "running"})
        await spawn("waits", WAIT)
        wanted = {"rests": "completed", "works": "running", "waits": "queued"}
        before = await settled(client, root, wanted)
        os.kill(client.pid, signal.SIGKILL)
    async with HostClient.spawn(env=env) as client:
        await client.request("session/resume", {"sessionId": root})
        after = await settled(
            client, root, {"rests": "completed", "works": "error", "waits": "error"}
        )
        assert "nothing was repeated" in after["works"]["error"]
        assert before["rests"] == {
            **after["rests"],
            "activeSessionId": before["rests"]["activeSessionId"],
        }
