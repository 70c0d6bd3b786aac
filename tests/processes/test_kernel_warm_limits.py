"""Warm starts obey the recipe: a limit on memory holds in a fork, and a sandbox is never left."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_host.kernels.recipe import Recipe
from rlm_host.processes import facts, templates
from rlm_protocol.errors import KernelDied
from support.processes import Run, my_children
from support.sandboxes import need_sandbox
from support.warm import WarmBench, ask, origin

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not facts.can_fork_guards(), reason="kernels start cold on this machine"),
]
LIMIT = 160 << 20
LIMITED = Recipe(memory_bytes=LIMIT)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WarmBench]:
    monkeypatch.setattr(templates, "SETTLE_S", 0)
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 1)
    async with WarmBench(tmp_path) as made:
        yield made
    assert not my_children()
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 0)


async def test_a_fork_of_a_template_is_limited_and_its_guard_watches(bench: WarmBench) -> None:
    first = await bench.kernel(recipe=LIMITED)
    assert await ask(first, "6 * 7") == 42
    template = await bench.spare()
    kernel = await bench.kernel(recipe=LIMITED)
    run = Run(kernel)
    assert (await run("x = bytearray(1 << 40)")).error.ename == "MemoryError"
    assert origin(kernel) == template
    shared = (
        f"import mmap\nm = mmap.mmap(-1, {2 * LIMIT})\nfor at in range(0, len(m), 4096): m[at] = 1"
    )
    with pytest.raises(KernelDied, match="memory") as died:
        await run(f"{shared}\nimport time; time.sleep(60)")
    assert died.value.data["reason"] == "oom"
    await bench.spare()
    free = await bench.kernel()
    assert await ask(free, "import resource; resource.getrlimit(resource.RLIMIT_DATA)") == (-1, -1)


async def test_a_sandboxed_kernel_is_never_forked_from_outside(bench: WarmBench) -> None:
    need_sandbox()
    await ask(await bench.kernel(), "1")
    await bench.spare()
    kernel = await bench.kernel(recipe=Recipe(sandbox="workspace"))
    inside = await ask(kernel, "import os; os.readlink('/proc/self/ns/pid')")
    assert inside != os.readlink("/proc/self/ns/pid")
    assert await ask(kernel, "import sys; 'rlm._template' in sys.modules") is False
    assert await ask(kernel, f"os.path.exists({str(bench.home / 'orphans.jsonl')!r})") is False
