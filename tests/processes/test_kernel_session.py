"""A session's kernel over a scripted peer: queue, cancellation, death, revival, snapshots."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_host.kernels.cell import KernelStatus
from rlm_host.kernels.session_kernel import SessionKernel
from rlm_protocol.errors import (
    InvalidParams,
    KernelBusy,
    KernelDied,
    SessionClosed,
    SnapshotFailed,
    SnapshotUntrusted,
)
from support.processes import KernelBench, Run, in_time, my_children, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[KernelBench]:
    async with KernelBench(tmp_path) as made:
        yield made
    assert not my_children()


async def test_nothing_runs_before_the_first_cell(bench: KernelBench) -> None:
    kernel = await bench.kernel(fake=True)
    assert kernel.status is KernelStatus.ABSENT
    assert (await kernel.names()).names == ()
    assert not (await kernel.complete("ab", 2)).matches
    assert not (await kernel.inspect("ab", 2)).found
    assert not kernel.interrupt()
    assert not my_children()
    assert not bench.home.exists()


async def test_a_cell_starts_the_kernel_and_gives_its_outcome(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    outcome = await run("print hello\nvalue 42")
    assert (outcome.status, outcome.result, outcome.result_length) == ("ok", "42", 2)
    assert outcome.revival is None
    assert run.text == "hello42"
    assert bench.statuses == [
        KernelStatus.STARTING,
        KernelStatus.IDLE,
        KernelStatus.BUSY,
        KernelStatus.IDLE,
    ]
    assert (await run.kernel.complete("ab", 2)).matches == ("abc",)
    assert (await run.kernel.inspect("ab", 2)).text == "a thing"


async def test_a_cell_that_raises_is_an_outcome_not_an_exception(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    outcome = await run("raise oh")
    assert outcome.status == "error"
    assert (outcome.error.ename, outcome.error.evalue) == ("RuntimeError", "oh")


async def test_cells_of_several_callers_run_in_order_of_arrival(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    outcomes = await asyncio.gather(*(run(f"print {n}.\nvalue {n}") for n in range(20)))
    assert [o.result for o in outcomes] == [str(n) for n in range(20)]
    assert run.text == "".join(f"{n}.{n}" for n in range(20))


async def test_a_hundred_cells_may_wait_and_no_more(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    first = asyncio.create_task(run("wait", cell_id="first"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    waiting = [asyncio.create_task(run("value 1")) for _ in range(100)]
    await asyncio.sleep(0)
    with pytest.raises(KernelBusy):
        await run("value 1")
    run.kernel.interrupt("first")
    assert (await in_time(first)).status == "interrupted"
    assert {o.status for o in await asyncio.gather(*waiting)} == {"ok"}


async def test_an_id_is_used_by_one_cell_at_a_time(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    first = asyncio.create_task(run("wait", cell_id="same"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    with pytest.raises(InvalidParams):
        await run("value 1", cell_id="same")
    with pytest.raises(InvalidParams):
        await run("value 1", cell_id="../up")
    run.kernel.interrupt()
    await in_time(first)
    assert (await run("value 1", cell_id="same")).status == "ok"


async def test_a_waiting_cell_that_is_interrupted_never_starts(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    first = asyncio.create_task(run("wait", cell_id="first"))
    second = asyncio.create_task(run("print never", cell_id="second"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    assert run.kernel.interrupt("second")
    assert (await in_time(second)).status == "interrupted"
    assert not first.done()
    run.kernel.interrupt("first")
    await in_time(first)
    assert "never" not in run.text


async def test_giving_up_a_call_interrupts_its_cell_and_the_next_call_works(
    bench: KernelBench,
) -> None:
    run = Run(await bench.kernel(fake=True))
    call = asyncio.create_task(run("wait"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    assert (await run("value 2")).result == "2"
    assert not run.kernel._cells


async def test_giving_up_while_the_kernel_starts_leaves_a_usable_kernel(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    call = asyncio.create_task(run("print never"))
    await until(lambda: run.kernel.status is KernelStatus.STARTING)
    call.cancel()
    await asyncio.wait({call})
    assert (await run("value 2")).result == "2"
    assert "never" not in run.text


async def test_an_interrupt_while_the_kernel_starts_does_not_wait_for_it(
    bench: KernelBench,
) -> None:
    run = Run(await bench.kernel(fake=True))
    call = asyncio.create_task(run("print never", cell_id="early"))
    await until(lambda: run.kernel.status is KernelStatus.STARTING)
    assert run.kernel.interrupt("early")
    assert (await in_time(call)).status == "interrupted"
    assert run.kernel.status is KernelStatus.STARTING
    assert (await run("value 2", cell_id="early")).result == "2"
    assert "never" not in run.text


async def test_a_cell_that_does_not_yield_is_killed_and_the_caller_told(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    await run("set a 1")
    await run.kernel.snapshot()
    await run("set b 2")
    call = asyncio.create_task(run("stubborn", cell_id="bad"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    run.kernel.interrupt("bad")
    outcome = await in_time(call)
    assert (outcome.status, outcome.kernel_killed) == ("interrupted", True)
    after = await run("get a")
    assert after.result == "1"
    assert (after.revival.reason, after.revival.restored) == ("killed", ("a",))
    assert (await run("value 1")).revival is None
    assert run.kernel.revival is after.revival


async def test_death_in_a_cell_fails_it_once_and_the_next_call_revives(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    await run("set a 1")
    await run.kernel.snapshot()
    waiting = asyncio.create_task(run("die"))
    behind = asyncio.create_task(run("get a"))
    with pytest.raises(KernelDied) as died:
        await in_time(waiting)
    assert died.value.data["signal"] == "SIGKILL"
    assert "last words" in died.value.data["stderr_tail"]
    assert "next cell" in died.value.message
    outcome = await in_time(behind)
    assert outcome.result == "1"
    assert (outcome.revival.reason, outcome.revival.restored) == ("died", ("a",))


async def test_death_between_cells_is_noticed_and_told(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    with pytest.raises(KernelDied):
        await run("exit 0")
    await until(lambda: run.kernel.status is KernelStatus.ABSENT)
    outcome = await run("value 1")
    assert (outcome.revival.reason, outcome.revival.restored) == ("died", ())
    assert outcome.revival.refused == "There is no snapshot of this session."


async def test_a_session_of_another_day_comes_back_with_its_names(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    await run("set a 1")
    await run("set b 2")
    await run.kernel.aclose()  # saves what is newer than its snapshot
    again = Run(await bench.kernel(fake=True))
    outcome = await again("get b")
    assert outcome.result == "2"
    assert (outcome.revival.reason, outcome.revival.restored) == ("resumed", ("a", "b"))


async def test_the_namespace_is_saved_when_it_has_been_quiet(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True, host=bench.host(snapshot_after_ms=50)))
    await run("set a 1")
    payload = bench.session_dir / "kernel-state.dill"
    await until(lambda: payload.exists() and not run.kernel._saving._unsaved)
    saved_ns = payload.stat().st_mtime_ns
    run.kernel.kill()
    assert (await run("get a")).result == "1"
    await run("raise oh")
    assert payload.stat().st_mtime_ns >= saved_ns


async def test_an_ephemeral_session_writes_nothing(bench: KernelBench) -> None:
    kernel = await bench.kernel(fake=True, persistent=False)
    run = Run(kernel)
    await run("set a 1")
    with pytest.raises(SnapshotFailed):
        await kernel.snapshot()
    await kernel.aclose()
    assert not bench.session_dir.exists()


async def test_restart_ends_what_runs_and_waits(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    await run("set a 1")
    await run.kernel.snapshot()
    first, second = (asyncio.create_task(run(code)) for code in ("stubborn", "print never"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    revival = await in_time(run.kernel.restart(restore=True))
    assert (revival.reason, revival.restored) == ("restarted", ("a",))
    assert {(await in_time(c)).status for c in (first, second)} == {"interrupted"}
    assert (await run("get a")).result == "1"
    fresh = await in_time(run.kernel.restart(restore=False))
    assert (fresh.reason, fresh.restored, fresh.refused) == ("restarted", (), None)
    assert (await run("get a")).status == "error"


async def test_a_kernel_that_cannot_load_its_snapshot_starts_without_and_keeps_it(
    bench: KernelBench,
) -> None:
    for word, refused in (("sour", "sour"), ("poison", "died")):
        run = Run(await bench.kernel(fake=True, session_dir=bench.home / word))
        await run(f"set {word} 1")
        await run.kernel.aclose()
        payload = bench.home / word / "kernel-state.dill"
        saved = payload.read_bytes()
        again = Run(await bench.kernel(fake=True, session_dir=bench.home / word))
        outcome = await again("value 1")
        assert refused in outcome.revival.refused
        assert again.kernel.snapshot_blocked
        with pytest.raises(SnapshotFailed, match="drop it"):
            await again.kernel.snapshot()
        await again.kernel.aclose()
        assert payload.read_bytes() == saved
        last = Run(await bench.kernel(fake=True, session_dir=bench.home / word))
        await last("set b 1")
        await last.kernel.drop_snapshot()
        assert (await last.kernel.snapshot()).saved == ("b",)


async def test_a_snapshot_that_another_wrote_is_refused_and_kept(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    await run("set a 1")
    await run.kernel.aclose()
    payload = bench.session_dir / "kernel-state.dill"
    payload.write_text('{"a": "evil"}')
    again = Run(await bench.kernel(fake=True))
    outcome = await again("value 1")
    assert "not signed" in outcome.revival.refused
    with pytest.raises(SnapshotUntrusted):
        await again.kernel.restore()
    await again.kernel.aclose()
    assert payload.read_text() == '{"a": "evil"}'


async def test_restore_loads_over_a_live_namespace(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    with pytest.raises(SnapshotFailed, match="no snapshot"):
        await run.kernel.restore()
    await run("set a 1")
    await run.kernel.snapshot()
    await run("set a 2")
    assert (await in_time(run.kernel.restore())).restored == ("a",)
    assert (await run("get a")).result == "1"


async def test_closing_ends_what_runs_and_refuses_what_comes(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    running, waiting = (asyncio.create_task(run(code)) for code in ("wait", "print never"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    await in_time(run.kernel.aclose())
    assert (await in_time(running)).status == "interrupted"
    with pytest.raises(SessionClosed):
        await in_time(waiting)
    with pytest.raises(SessionClosed):
        await run("value 1")
    assert not my_children()
    await run.kernel.aclose()


async def test_closing_kills_a_cell_that_does_not_yield(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlm_host.kernels.session_kernel.YIELD_MS", 50)
    run = Run(await bench.kernel(fake=True, host=bench.host()))
    running = asyncio.create_task(run("stubborn"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    await in_time(run.kernel.aclose())
    outcome = await in_time(running)
    assert (outcome.status, outcome.kernel_killed) == ("interrupted", True)
    assert not my_children()
    assert run.kernel.status is KernelStatus.ABSENT


async def test_closing_while_it_starts_leaves_nothing(bench: KernelBench) -> None:
    run = Run(await bench.kernel(fake=True))
    call = asyncio.create_task(run("print never"))
    await until(lambda: run.kernel.status is KernelStatus.STARTING)
    await in_time(run.kernel.aclose())
    await asyncio.wait({call})
    assert not my_children()


async def test_closing_survives_being_cancelled(bench: KernelBench) -> None:
    kernel: SessionKernel = await bench.kernel(fake=True)
    await Run(kernel)("set a 1")
    closing = asyncio.create_task(kernel.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert not my_children()
    assert (bench.session_dir / "kernel-state.dill").exists()
