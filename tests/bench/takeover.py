"""From SIGKILL of a session's kernel until a spare has answered its next cell, as a host does it."""

import asyncio
import os
import tempfile
from pathlib import Path

import runtime_bench as b

from rlm_host.clock import SystemClock
from rlm_host.kernels.environment import KernelHost
from rlm_host.kernels.recipe import Recipe
from rlm_host.kernels.session_kernel import SessionKernel
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.spawn import Processes
from rlm_host.processes.templates import Templates

SETTLED_S = 0.05


def takeovers(rounds: int) -> list[float]:
    """Give the seconds of each."""
    with tempfile.TemporaryDirectory() as home:
        return asyncio.run(_takeovers(Path(home), rounds))


async def _takeovers(home: Path, rounds: int) -> list[float]:
    processes = Processes(Ledger(home))
    templates = Templates(processes)
    host = KernelHost(
        home=home,
        environ={**os.environ, "RLM_KERNEL_PYTHON": b.PYTHON},
        processes=processes,
        clock=SystemClock(),
        templates=templates,
    )
    took = []
    try:
        async with _kernel(host) as kernel:
            for number in range(rounds):
                await kernel.execute("1+1", cell_id=f"a{number}", on_event=lambda _: None)
                while not templates.pids:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(SETTLED_S)
                began = b.now()
                kernel.kill()
                await kernel.execute("1+1", cell_id=f"b{number}", on_event=lambda _: None)
                took.append(b.now() - began)
    finally:
        await templates.aclose()
    return took


def _kernel(host: KernelHost) -> SessionKernel:
    async def nothing(*_: object) -> object:
        return None

    return SessionKernel(
        host=host,
        recipe=Recipe(),
        cwd=host.home,
        session_dir=host.home / "session-artifacts" / "s1",
        depth=0,
        max_depth=0,
        host_requests=nothing,
        on_background=lambda _: None,
    )
