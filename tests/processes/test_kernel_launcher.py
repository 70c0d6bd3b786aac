"""Kernels behind a launcher that passes on neither descriptors, variables nor signals, as ssh does."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_host.kernels.cell import KernelStatus
from rlm_host.kernels.client import Waits
from rlm_host.kernels.recipe import Recipe
from rlm_protocol.errors import ConfigInvalid, KernelDied
from support.processes import KernelBench, Run, my_children, running, until

pytestmark = pytest.mark.anyio

FAR = """
import os, subprocess, sys
os.closerange(3, 1024)
code = subprocess.run(sys.argv[1:], env={"PATH": os.environ["PATH"]}).returncode
sys.exit(255 if code < 0 else code)
"""
LAUNCHER = (sys.executable, "-I", "-S", "-c", FAR)
PATIENT = Waits(interrupt_again_ms=60_000, interrupt_kill_ms=60_000)
"""Escalation must not do the work of the interrupt."""
GO = "import os; _ = os.write(1, b'go')\n"
HANGING = {
    "a catastrophic re": "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')",
    "a loop": "while True: pass",
    "await": "import asyncio; await asyncio.sleep(3600)",
    "a system call": "import time; time.sleep(3600)",
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[KernelBench]:
    async with KernelBench(tmp_path) as made:
        yield made
    assert not my_children()


@pytest.fixture
async def run(bench: KernelBench) -> Run:
    return Run(await bench.kernel(recipe=Recipe(launcher=LAUNCHER), host=bench.host(waits=PATIENT)))


async def test_our_variables_arrive_and_no_others(run: Run) -> None:
    got = await run("import os; os.environ['RLM_DEPTH'], os.environ['RLM_SESSION_DIR'][-2:]")
    assert got.result == "('0', 's1')"
    assert (await run("'HOME' in os.environ")).result == "False"


@pytest.mark.parametrize("kind", HANGING)
async def test_an_interrupt_ends_the_cell_and_not_the_launcher(
    bench: KernelBench, run: Run, kind: str
) -> None:
    await run("before = 1")
    children = {fact.pid for fact in my_children()}

    def interrupt(event: object) -> None:
        if "go" in getattr(event, "text", ""):
            run.kernel.interrupt()

    got = await run(GO + HANGING[kind], on_event=interrupt)
    assert (got.status, got.kernel_killed) == ("interrupted", False)
    assert (await run("before")).result == "1"
    assert {fact.pid for fact in my_children()} == children


async def test_how_the_kernel_died_is_told_from_inside(run: Run) -> None:
    with pytest.raises(KernelDied) as died:
        await run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert died.value.data["signal"] == "SIGSEGV"


async def test_a_killed_kernel_leaves_nothing_behind_its_launcher(run: Run) -> None:
    mark = f"3600.{os.getpid()}"
    await run(
        f"import subprocess; _ = subprocess.Popen(['sleep', '{mark}'], start_new_session=True)"
    )
    # A command line can be read a moment after the program was started.
    await until(lambda: running(mark), "the process that outlives its cell")
    run.kernel.kill()
    await until(lambda: run.kernel.status is KernelStatus.ABSENT)
    await until(lambda: not running(mark), "the end of what the cell started")


async def test_a_killed_launcher_is_the_kernels_end(run: Run) -> None:
    pid = int((await run("import os; os.getpid()")).result)
    for fact in my_children():
        if fact.parent == os.getpid():
            os.kill(fact.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists(), "the kernel's end")
    await until(lambda: run.kernel.status is KernelStatus.ABSENT)
    assert (await run("1 + 1")).result == "2"


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(launcher=("env",), sandbox="workspace"),
        Recipe(network=False),
        Recipe(memory_bytes=1),
    ],
)
async def test_a_recipe_that_contradicts_itself_starts_nothing(
    bench: KernelBench, recipe: Recipe
) -> None:
    with pytest.raises(ConfigInvalid):
        await Run(await bench.kernel(recipe=recipe))("1")
