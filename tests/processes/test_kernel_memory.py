"""A memory limit: MemoryError in the cell, or a kernel that is said to have died of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_host.kernels.recipe import Recipe
from rlm_host.processes import facts
from rlm_protocol.errors import KernelDied
from support.processes import KernelBench, Run, my_children
from support.sandboxes import need_sandbox

pytestmark = pytest.mark.anyio

LIMIT = 160 << 20


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[KernelBench]:
    async with KernelBench(tmp_path) as made:
        yield made
    assert not my_children()


@pytest.fixture
async def run(bench: KernelBench) -> Run:
    return Run(await bench.kernel(recipe=Recipe(memory_bytes=LIMIT)))


FULL = {
    "a list that grows": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "small objects": "x = []\nwhile True: x.append(bytes(200))",
    "one huge bytes": "x = bytes(1 << 40)",
    "one bytes that is just too large": f"x = bytearray({LIMIT})",
    "a string that doubles": "x = 'x'\nwhile True: x += x",
    "in await": "import asyncio\nawait asyncio.sleep(0)\nx = []\nwhile True: x.append(bytearray(1 << 20))",
    "a repr": "class Huge:\n def __repr__(self): return 'x' * (1 << 40)\nHuge()",
    "a long chain": "x = None\nwhile True: x = (x, bytes(500))",
}


@pytest.mark.parametrize("kind", FULL)
async def test_a_cell_that_wants_too_much_gets_a_memory_error_and_the_next_one_runs(
    run: Run, kind: str
) -> None:
    for _ in range(2):
        got = await run(FULL[kind])
        assert got.error is not None, kind
        assert got.error.ename == "MemoryError"
        assert (await run("6 * 7")).result == "42"
    await run("x = None")
    if kind != "a long chain":  # malloc keeps small blocks in its heap, for more of the same size
        assert (await run("len(bytearray(90 << 20))")).error is None, "it has room again"


async def test_a_full_kernel_answers_again_and_again_and_can_be_emptied(run: Run) -> None:
    for _ in range(12):
        got = await run("x = globals().get('x', [])\nwhile True: x.append(bytes(200))")
        assert got.error.ename == "MemoryError"
    got = await run("x.clear()")
    assert got.error is None
    assert (await run("len(bytearray(90 << 20))")).error is None


async def test_private_memory_that_is_mapped_counts(run: Run) -> None:
    flags = "flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS"
    got = await run(f"import mmap; m = mmap.mmap(-1, {LIMIT}, {flags})")
    assert got.error.ename == "OSError"
    assert "Cannot allocate memory" in got.error.evalue
    assert (await run("1 + 1")).result == "2"


async def test_a_thread_that_wants_too_much_ends_and_the_kernel_answers(
    bench: KernelBench, run: Run
) -> None:
    await run(
        "import threading\nx = []\n"
        "def grow():\n    while True: x.append(bytearray(1 << 20))\n"
        "t = threading.Thread(target=grow); t.start()"
    )
    assert (await run("t.join(); len(x) > 50")).result == "True"
    assert "MemoryError" in run.text + "".join(getattr(e, "text", "") for e in bench.background)
    assert (await run("x.clear(); 1 + 1")).result == "2"


async def test_a_child_process_has_the_same_limit(run: Run) -> None:
    code = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    got = await run(
        "import subprocess, sys\n"
        f"p = subprocess.run([sys.executable, '-c', {code!r}], stderr=subprocess.PIPE)\n"
        "b'MemoryError' in p.stderr"
    )
    assert got.result == "True"
    assert (await run("1 + 1")).result == "2"


DEADLY = {
    "shared memory": f"import mmap\nm = mmap.mmap(-1, {2 * LIMIT})\nfor at in range(0, {2 * LIMIT}, 4096): m[at] = 1",
    "many processes": f"import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = b'x' * ({LIMIT} // 2); time.sleep(60); os._exit(0)",
}


@pytest.mark.parametrize("kind", DEADLY)
async def test_what_processes_hold_together_ends_the_kernel_and_says_why(
    run: Run, kind: str
) -> None:
    await run("kept = 1")
    await run.kernel.snapshot()
    with pytest.raises(KernelDied, match="memory") as died:
        await run(DEADLY[kind] + "\nimport time; time.sleep(60)")
    assert died.value.data["reason"] == "oom"
    got = await run("kept")
    assert (got.result, got.revival.reason) == ("1", "died")


async def test_processes_that_share_what_they_hold_are_not_counted_twice(run: Run) -> None:
    got = await run(
        f"import os, time\nx = b'x' * ({LIMIT} // 2)\npids = []\n"
        "for _ in range(4):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n        time.sleep(1); os._exit(0)\n"
        "    pids.append(pid)\n"
        "[os.waitpid(pid, 0)[1] for pid in pids]"
    )
    assert got.result == "[0, 0, 0, 0]"


async def test_it_holds_in_a_sandbox(bench: KernelBench) -> None:
    need_sandbox()
    run = Run(await bench.kernel(recipe=Recipe(memory_bytes=LIMIT, sandbox="workspace")))
    assert (await run(FULL["one huge bytes"])).error.ename == "MemoryError"
    with pytest.raises(KernelDied, match="memory"):
        await run(DEADLY["shared memory"] + "\nimport time; time.sleep(60)")


async def test_the_guard_is_not_limited(run: Run) -> None:
    limits = "open(f'/proc/{os.%s()}/limits').read().split('Max data size')[1].split()[:2]"
    assert (await run(f"import os; {limits % 'getppid'}")).result == "['unlimited', 'unlimited']"
    assert (await run(limits % "getpid")).result.startswith(f"['{LIMIT}',")


async def test_a_kernel_without_a_limit_has_none(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    got = await run("import resource; resource.getrlimit(resource.RLIMIT_DATA)")
    assert got.result == "(-1, -1)"


async def test_a_killed_kernel_did_not_die_of_memory(bench: KernelBench) -> None:
    run = Run(await bench.kernel(recipe=Recipe(memory_bytes=LIMIT)))
    with pytest.raises(KernelDied) as died:
        await run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (died.value.data["signal"], died.value.data["reason"]) == ("SIGKILL", None)


async def test_the_systems_oom_killer_is_recognised_by_its_counter(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(await bench.kernel())
    await run("1")
    before = facts.oom_kills()
    monkeypatch.setattr(facts, "oom_kills", lambda: before + 1)
    with pytest.raises(KernelDied) as died:
        await run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert died.value.data["reason"] == "oom"
