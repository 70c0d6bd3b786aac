"""The kernels of sessions over their whole life: saved unasked, forked with their names, revived."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rlm_host.sessions.session import SessionActor
from rlm_protocol import records as r
from rlm_protocol.item import ReplCell
from rlm_protocol.session import SessionForkParams
from support.family import Family, family
from support.processes import my_children, until

pytestmark = pytest.mark.anyio


def records(actor: SessionActor, kind: type[Any]) -> list[Any]:
    """What the session's journal holds of a kind of record."""
    found = map(r.decode_line, (actor.folder / f"{actor.id}.jsonl").read_bytes().splitlines())
    return [
        one.record for one in found if isinstance(one, r.Entry) and isinstance(one.record, kind)
    ]


async def shown(host: Family, actor: SessionActor, code: str) -> str:
    """Run a model's cell; give what the model sees of it."""
    await host.say(actor, f"run: {code}")
    done = [one for one in records(actor, r.ItemCompleted) if isinstance(one.item, ReplCell)]
    return str(done[-1].shown)


async def saved(actor: SessionActor) -> r.SnapshotTaken:
    """Wait for the snapshot that follows the session's last cell."""
    last = records(actor, r.CellStarted)[-1].item_id
    await until(lambda: actor.state.snapshot is not None and actor.state.snapshot.item_id == last)
    assert actor.state.snapshot is not None
    return actor.state.snapshot


async def test_a_snapshot_that_nobody_asked_for_is_recorded_with_its_cell(tmp_path: Path) -> None:
    async with family(tmp_path, snapshot_after_ms=50) as host:
        root = await host.root()
        await host.say(root, "run: import socket\nx = 1\ns = socket.socket()")
        taken = await saved(root)
        assert (taken.saved, taken.skipped) == (2, ("s",))
        assert len(taken.snapshot) == 32
        asked = await root.snapshot()
        assert records(root, r.SnapshotTaken)[-1].snapshot == asked.id
    assert not my_children()


async def test_a_fork_has_the_names_of_its_turn(tmp_path: Path) -> None:
    async with family(tmp_path, snapshot_after_ms=50) as host:
        root = await host.root()
        turns = []
        for number in (1, 2, 3):
            await host.say(root, f"run: x = {number}\nx{number} = lambda: x\ng = (i for i in 'ab')")
            turns.append(root.state.last_turn_id)
            await saved(root)
        assert await host.cell(root, "x = 'later'") == ""
        early = await host.store.fork(SessionForkParams(session_id=root.id, at_turn_id=turns[1]))
        assert early.state.opened.fork is not None
        assert early.state.opened.fork.kernel == "restored"
        told = await shown(host, early, "(x, x1(), 'x3' in globals())")
        assert "Names that came back: x, x1, x2." in told
        assert "Not restored: g (could not be saved)." in told
        assert "(2, 2, False)" in told
        assert await host.cell(early, "x = 'mine'; x") == "'mine'"
        assert await host.cell(root, "x") == "'later'"
        again = await host.store.fork(SessionForkParams(session_id=early.id))
        assert await host.cell(again, "x") == "2"
    assert not my_children()


@pytest.mark.parametrize("after_ms", [0, 50, 60_000])
async def test_a_fork_at_the_last_turn_saves_what_is_not_saved_yet(
    tmp_path: Path, after_ms: int
) -> None:
    """Also while it is being saved: with 0 that begins right behind the cell."""
    async with family(tmp_path, snapshot_after_ms=after_ms) as host:
        root = await host.root()
        await host.say(root, "run: fresh = [1, 2]")
        fork = await host.store.fork(SessionForkParams(session_id=root.id))
        assert fork.state.opened.fork is not None
        assert fork.state.opened.fork.item_id == records(root, r.CellStarted)[-1].item_id
        assert await host.cell(fork, "fresh") == "[1, 2]"


async def test_a_fork_without_a_snapshot_of_its_time_says_that_all_is_lost(tmp_path: Path) -> None:
    async with family(tmp_path, snapshot_after_ms=50) as host:
        root = await host.root()
        await host.say(root, "run: x = 1")
        first = root.state.last_turn_id
        await host.say(root, "run: x = 2")
        await saved(root)
        for path in root.artifacts_path.glob("kernel-state.*.dill"):
            path.unlink()  # as if many others had come since
        for turn_id, fate in ((first, "lost"), (root.state.last_turn_id, "restored")):
            params = SessionForkParams(session_id=root.id, at_turn_id=turn_id)
            fork = await host.store.fork(params)
            assert fork.state.opened.fork is not None
            assert fork.state.opened.fork.kernel == fate
            if fate == "lost":
                told = await shown(host, fork, "'x' in globals()")
                assert "nothing that was defined before exists any more" in told
                assert "False" in told
        talk = await host.root(model="scripted/echo")
        await host.say(talk, "hello")
        fork = await host.store.fork(SessionForkParams(session_id=talk.id))
        assert fork.state.opened.fork is not None
        assert fork.state.opened.fork.kernel == "none"


async def test_a_session_of_another_day_tells_the_model_its_names(tmp_path: Path) -> None:
    async with family(tmp_path, snapshot_after_ms=50) as host:
        root = await host.root()
        await host.say(root, "run: kept = {'a': 1}\nparts = (n for n in 'ab')")
    async with family(tmp_path, snapshot_after_ms=50) as host:
        root = await host.store.get(root.id)
        told = await shown(host, root, "kept")
        assert "(resumed). Names that came back: kept" in told
        assert "parts (could not be saved)" in told
        assert "{'a': 1}" in told
        started = records(root, r.KernelStarted)[-1]
        assert (started.incarnation, started.reason) == (2, "resumed")
        assert "kept" in started.restored
    shutil.rmtree(root.artifacts_path)
    async with family(tmp_path, snapshot_after_ms=50) as host:
        root = await host.store.get(root.id)
        assert "nothing that was defined before" in await shown(host, root, "'kept' in globals()")
