"""A host in one file, for tests that kill hosts: python small_host.py HOME CODE [warm].

Runs CODE in a kernel, prints one JSON line with the pids, then holds the kernel until it is killed.
With `warm` that is a kernel which was forked from a template; another spare waits then.
SIGUSR1 ends the kernel, and a cell that waits already has another take its place.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from rlm_host.clock import SystemClock
from rlm_host.kernels.environment import KernelHost
from rlm_host.kernels.recipe import Recipe
from rlm_host.kernels.session_kernel import SessionKernel
from rlm_host.processes.facts import harden_host
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.spawn import Processes
from rlm_host.processes.templates import Templates


async def no_requests(*_: object) -> object:
    return None


def session_kernel(host: KernelHost, name: str) -> SessionKernel:
    return SessionKernel(
        host=host,
        recipe=Recipe(),
        cwd=host.home,
        session_dir=host.home / "session-artifacts" / name,
        depth=0,
        max_depth=2,
        host_requests=no_requests,
        on_background=lambda _: None,
    )


async def spare_of(templates: Templates, host: KernelHost) -> int:
    """Start a kernel, so that there is a template; wait for its spare."""
    async with session_kernel(host, "s0") as first:
        await first.execute("1", cell_id="c0", on_event=lambda _: None)
    while not templates.pids:
        await asyncio.sleep(0.01)
    return templates.pids[0]


async def take_over(kernel: SessionKernel) -> None:
    kernel.kill()
    await kernel.execute("1", cell_id="c2", on_event=lambda _: None)


async def main(home: Path, code: str, *, warm: bool) -> None:
    harden_host()
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
    processes = Processes(Ledger(home))
    templates = Templates(processes) if warm else None
    host = KernelHost(
        home=home,
        environ=os.environ,
        processes=processes,
        clock=SystemClock(),
        templates=templates,
    )
    template = await spare_of(templates, host) if templates is not None else None
    async with session_kernel(host, "s1") as kernel:
        outcome = await kernel.execute(code, cell_id="c1", on_event=lambda _: None)
        child = kernel._slot.kernel._child
        pids = {"host": os.getpid(), "guard": child.pid, "kernel": kernel.pid}
        if templates is not None:
            while not templates.pids:
                await asyncio.sleep(0.01)
            pids["template"] = template
        print(
            json.dumps({**pids, "status": outcome.status, "error": repr(outcome.error)}), flush=True
        )
        await asked.wait()
        await take_over(kernel)
        await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1]), sys.argv[2], warm="warm" in sys.argv[3:]))
