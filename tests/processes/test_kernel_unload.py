"""Ending a kernel that nobody uses: nothing may be lost by it, or it stays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_host.kernels.cell import KernelStatus, SnapshotReport
from support.processes import KernelBench, Run, in_time, my_children, until

pytestmark = pytest.mark.anyio
TASKS_END = "[t.cancel() for t in asyncio.all_tasks(asyncio.get_event_loop())]; None"
PROCESSES_END = """
import os, signal
for parent in (os.getpid(), os.getppid()):
    for task in os.listdir(f"/proc/{parent}/task"):
        try:
            listed = open(f"/proc/{parent}/task/{task}/children").read().split()
            for pid in {*map(int, listed)} - {os.getpid()}:
                os.kill(pid, signal.SIGKILL)
        except OSError:  # it has ended by itself
            pass
"""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[KernelBench]:
    async with KernelBench(tmp_path) as made:
        yield made
    assert not my_children()


async def test_a_kernel_that_rests_is_ended_and_comes_back_with_its_names(
    bench: KernelBench,
) -> None:
    run = Run(await bench.kernel())
    assert await in_time(run.kernel.unload())  # there is none yet
    await run("x = [1, 2]\nshared = x\ndef f():\n    return x[0]")
    first = run.kernel.pid
    assert await in_time(run.kernel.unload())
    assert run.kernel.status is KernelStatus.ABSENT
    assert not my_children()
    assert bench.statuses[-1] is KernelStatus.ABSENT
    outcome = await run("x.append(3)\n(f(), shared)")
    assert outcome.result == "(1, [1, 2, 3])"
    assert run.kernel.pid != first
    assert outcome.revival is not None
    assert outcome.revival.reason == "resumed"
    assert set(outcome.revival.restored) >= {"f", "shared", "x"}


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        (
            "import threading\ngo = None\n(lambda e: (globals().update(stop=e.set), "
            "threading.Thread(target=e.wait).start()))(threading.Event())",
            "stop(); del stop",
        ),
        ("import asyncio\nasyncio.ensure_future(asyncio.sleep(3600)); None", TASKS_END),
        ("import subprocess\nsubprocess.Popen(['sleep', '3600']).pid", PROCESSES_END),
        ("h = bash('sleep 3600'); del h", PROCESSES_END),
        ("import subprocess\nsubprocess.run(['sh', '-c', 'sleep 3600 &']); None", PROCESSES_END),
        ("lock = (n for n in [1])", "del lock"),
    ],
    ids=["thread", "task", "process", "bash", "orphan", "name that cannot be saved"],
)
async def test_a_kernel_in_which_something_goes_on_stays(
    bench: KernelBench, begins: str, ends: str
) -> None:
    run = Run(await bench.kernel())
    await run("kept = 1")
    assert (await run(begins)).status == "ok"
    pid = run.kernel.pid
    assert not await in_time(run.kernel.unload())
    assert (await run("kept")).result == "1"
    assert run.kernel.pid == pid
    assert (await run(ends)).status == "ok", run.text
    assert await in_time(_until_unloaded(run))


async def test_a_kernel_that_stays_is_not_saved_again_and_again(bench: KernelBench) -> None:
    saved: list[SnapshotReport] = []

    async def on_saved(report: SnapshotReport) -> None:
        saved.append(report)

    run = Run(await bench.kernel(on_saved=on_saved))
    await run("lock = (n for n in [1])")
    for _ in range(3):
        assert not await in_time(run.kernel.unload())
    assert len(saved) == 1
    assert (await run("x = 1; del lock; 1 / 0")).status == "error"
    assert await in_time(run.kernel.unload())
    assert len(saved) == 2
    assert (await run("x")).result == "1"


async def test_a_namespace_that_was_given_up_does_not_come_back(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    await run("x = 1")
    await in_time(run.kernel.snapshot())
    await in_time(run.kernel.restart(restore=False))
    assert await in_time(run.kernel.unload())
    assert (await run("x")).error.ename == "NameError"


async def test_a_kernel_that_keeps_no_snapshot_stays(bench: KernelBench) -> None:
    run = Run(await bench.kernel(persistent=False))
    await run("x = 1")
    assert not await in_time(run.kernel.unload())
    assert (await run("x")).result == "1"


async def test_a_cell_that_comes_meanwhile_finds_its_names(bench: KernelBench) -> None:
    """It waits behind the end of the process, or the process stays for it: the same to it."""
    run = Run(await bench.kernel())
    await run("x = 1")
    for n in range(5):
        ended = run.kernel.unload()

        both = await asyncio.gather(ended, run("x += 1\nx"))
        assert both[1].result == str(n + 2)


async def _until_unloaded(run: Run) -> bool:
    while not await run.kernel.unload():
        await until(lambda: True)
    return True
