"""A host in one file, for tests that kill hosts: python small_host.py HOME CODE.

Runs CODE in a kernel, prints one JSON line with the pids, then holds the kernel until it is killed.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from rlm_host.clock import SystemClock
from rlm_host.kernels.environment import KernelHost
from rlm_host.kernels.recipe import Recipe
from rlm_host.kernels.session_kernel import SessionKernel
from rlm_host.processes.facts import harden_host
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.spawn import Processes


async def no_requests(*_: object) -> object:
    return None


async def main(home: Path, code: str) -> None:
    harden_host()
    host = KernelHost(
        home=home,
        environ=os.environ,
        processes=Processes(Ledger(home)),
        clock=SystemClock(),
    )
    kernel = SessionKernel(
        host=host,
        recipe=Recipe(),
        cwd=home,
        session_dir=home / "session-artifacts" / "s1",
        depth=0,
        max_depth=2,
        host_requests=no_requests,
        on_background=lambda _: None,
    )
    async with kernel:
        outcome = await kernel.execute(code, cell_id="c1", on_event=lambda _: None)
        child = kernel._slot.kernel._child
        pids = {"host": os.getpid(), "guard": child.pid, "kernel": kernel.pid}
        print(
            json.dumps({**pids, "status": outcome.status, "error": repr(outcome.error)}), flush=True
        )
        await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
