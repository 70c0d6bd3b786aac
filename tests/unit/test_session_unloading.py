"""Sessions that nobody uses are let go, and come back; whatever would be lost stays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rlm_host.sessions.session import SessionActor
from rlm_protocol import records as r
from rlm_protocol.session import KernelRecipe, SessionCreateParams, SessionOptions
from support.processes import FakeClock
from support.sessions import Bench, bench, say, until

pytestmark = pytest.mark.anyio
AFTER_MS = 1_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def b(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Bench]:
    async with bench(tmp_path, clock=clock, unload_after_ms=AFTER_MS) as made:
        yield made


async def looked(b: Bench, clock: FakeClock, ms: int = 2 * AFTER_MS) -> None:
    """Let so much time pass, and the unloader look once more at what is there then."""
    unloader = b.store._unloader
    await until(lambda: unloader._task is not None and clock.sleepers)
    clock.advance(ms)
    await until(lambda: any(due > clock.time_ms for due, _ in clock.sleepers))


async def test_what_nobody_uses_goes_and_comes_back_as_it_was(b: Bench, clock: FakeClock) -> None:
    actor = await b.create(name="kept")
    await actor.execute_cell("say hello")
    await looked(b, clock)
    assert b.store.loaded() == ()
    assert (b.kernels[0].unloads, b.kernels[0].closed) == (1, True)
    again = await b.store.get(actor.id)
    assert again is not actor
    assert (again.state.name, again.state.seq) == ("kept", actor.state.seq)
    assert (await again.execute_cell("value 1")).result == "1"


async def test_the_record_of_the_last_snapshot_is_no_use(b: Bench, clock: FakeClock) -> None:
    actor = await b.create()

    async def unload() -> bool:
        await actor.append(r.SnapshotTaken(item_id=None, saved=1, skipped=(), size_bytes=1))
        return True

    b.kernels[0].unload = unload  # type: ignore[method-assign]
    await looked(b, clock)
    assert b.store.loaded() == ()


async def test_use_puts_it_off(b: Bench, clock: FakeClock) -> None:
    actor = await b.create()
    for _ in range(5):
        await looked(b, clock, AFTER_MS * 3 // 4)
        assert await b.store.get(actor.id) is actor
    await looked(b, clock, AFTER_MS * 3 // 4)
    await actor.execute_cell("say x")
    await looked(b, clock, AFTER_MS * 3 // 4)
    assert b.store.loaded() == (actor,)


async def test_a_session_stays_while_a_client_is_attached(b: Bench, clock: FakeClock) -> None:
    actor = await b.create()

    def hear(method: str, payload: Any) -> None:
        pass

    await actor.attach(hear)
    await looked(b, clock)
    assert b.store.loaded() == (actor,)
    assert b.kernels[0].unloads == 0
    actor.detach(hear)
    await looked(b, clock)
    assert b.store.loaded() == ()


async def test_a_session_stays_while_a_cell_or_a_turn_runs(tmp_path: Path) -> None:
    clock, go = FakeClock(), asyncio.Event()

    async def played(_: Any) -> Any:
        await go.wait()
        for event in say("done"):
            yield event

    async with bench(tmp_path, played, clock=clock, unload_after_ms=AFTER_MS) as b:
        sessions = with_cell, with_silent, with_turn = [await b.create() for _ in range(3)]
        cell = asyncio.ensure_future(with_cell.execute_cell("wait"))
        silent = asyncio.ensure_future(with_silent.execute_cell("wait", silent=True))
        await until(lambda: "CellStarted" in b.kinds(with_cell) and b.kernels[1].running)
        await with_turn.start_turn("x")
        await looked(b, clock)
        assert b.store.loaded() == tuple(sessions)
        assert [kernel.unloads for kernel in b.kernels] == [0, 0, 0]
        go.set()
        for one in (with_cell, with_silent):
            one.kernel.interrupt()
        await asyncio.gather(cell, silent)
        await with_turn.wait_idle()
        await looked(b, clock)
        assert b.store.loaded() == ()


async def test_a_session_stays_while_something_of_it_is_unsettled(
    b: Bench, clock: FakeClock
) -> None:
    """Its children and background commands, and whatever else says so by the port."""
    unsettled = [True]
    b.store._shared.ports.is_quiet.append(lambda _: not unsettled[0])
    actor = await b.create()
    await looked(b, clock)
    assert b.store.loaded() == (actor,)
    unsettled[0] = False
    await looked(b, clock)
    assert b.store.loaded() == ()


async def test_a_session_stays_with_a_kernel_that_cannot_go(b: Bench, clock: FakeClock) -> None:
    actor = await b.create()
    b.kernels[0].unloadable = False
    await looked(b, clock)
    assert b.store.loaded() == (actor,)
    assert not b.kernels[0].closed


async def test_of_a_session_that_holds_values_only_the_kernel_goes(
    b: Bench, clock: FakeClock
) -> None:
    """The values of variables are on no disk: who closes the session loses them."""
    options = SessionOptions(recipe=KernelRecipe(env={"TOKEN": "secret"}))
    actor = await b.create(options=options)
    await looked(b, clock)
    assert b.store.loaded() == (actor,)
    assert (b.kernels[0].unloads, b.kernels[0].closed) == (1, False)


async def test_an_ephemeral_session_stays(b: Bench, clock: FakeClock) -> None:
    actor = await b.create(ephemeral=True)
    await looked(b, clock)
    assert b.store.loaded() == (actor,)


async def test_a_parent_goes_after_its_children(b: Bench, clock: FakeClock) -> None:
    parent = await b.create()
    link = r.ParentLink(
        session_id=parent.id,
        root_id=parent.id,
        child_id="c1",
        directory="c1",
        depth=1,
        max_depth=2,
    )
    child = await b.store.create(SessionCreateParams(cwd=str(b.home)), parent=link)
    b.kernels[1].unloadable = False
    await looked(b, clock)
    assert b.store.loaded() == (parent, child)
    b.kernels[1].unloadable = True
    await looked(b, clock)
    assert b.store.loaded() == ()


async def test_whoever_comes_while_it_goes_waits_and_gets_it(b: Bench, clock: FakeClock) -> None:
    actor = await b.create()
    closing, go = asyncio.Event(), asyncio.Event()

    async def aclose(*, snapshot: bool = True) -> None:
        closing.set()
        await go.wait()

    b.kernels[0].aclose = aclose  # type: ignore[method-assign]
    await until(lambda: clock.sleepers)
    clock.advance(2 * AFTER_MS)
    await asyncio.wait_for(closing.wait(), 30)
    asked: list[asyncio.Task[SessionActor]] = [
        asyncio.create_task(b.store.get(actor.id)) for _ in range(3)
    ]
    await asyncio.sleep(0.05)
    waiting = [one for one in asked if not one.done()]
    go.set()
    assert waiting == asked
    got = await asyncio.wait_for(asyncio.gather(*asked), 30)
    assert len({id(one) for one in got}) == 1
    assert got[0] is not actor
    assert (await got[0].execute_cell("value 1")).result == "1"


async def test_whoever_comes_while_names_are_saved_keeps_the_session(
    b: Bench, clock: FakeClock
) -> None:
    actor = await b.create()
    saving, go = asyncio.Event(), asyncio.Event()

    async def unload() -> bool:
        saving.set()
        await go.wait()
        return True

    b.kernels[0].unload = unload  # type: ignore[method-assign]
    await until(lambda: clock.sleepers)
    clock.advance(2 * AFTER_MS)
    await asyncio.wait_for(saving.wait(), 30)
    assert await b.store.get(actor.id) is actor
    go.set()
    await until(lambda: clock.sleepers)
    assert b.store.loaded() == (actor,)
    assert (await actor.execute_cell("value 1")).result == "1"
