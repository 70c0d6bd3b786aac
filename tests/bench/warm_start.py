"""P1w: warm start. From the decision to start a kernel until its `ready`, its guard included."""

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator
from pathlib import Path

import runtime_bench as b

from rlm_host.processes.spare import Spare
from rlm_host.processes.spawn import Processes
from rlm_host.processes.templates import Template, key_of, open_template

PRELOADED = ("numpy", "pandas")
AT_ONCE = 16
SETTLED_S = 0.02
"""After a fork a spare still runs for a moment; one that is taken has long been waiting."""


class Starts:
    """Starts kernels from one template; they end with the block that starts them."""

    def __init__(self, processes: Processes, template: Template) -> None:
        self._processes, self._template = processes, template

    @contextlib.asynccontextmanager
    async def ready(self, spare: Spare | None = None) -> AsyncIterator[float]:
        """Own a kernel, of a spare or of a fork made now. Gives when it was ready."""
        heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def on_stdout(data: bytes) -> None:
            if b"\n" in data and not heard.done():
                heard.set_result(b.now())

        block = self._processes.take(
            spare or await self._template.fork(),
            env=dict(os.environ),
            cwd=Path.cwd(),
            on_stdout=on_stdout,
            label="kernel",
        )
        async with block:
            yield await heard

    async def forked(self) -> float:
        began = b.now()
        async with self.ready() as at:
            return at - began

    async def spare(self) -> float:
        spare = await self._template.fork()
        await asyncio.sleep(SETTLED_S)
        began = b.now()
        async with self.ready(spare) as at:
            return at - began

    async def many(self) -> float:
        began = b.now()
        async with contextlib.AsyncExitStack() as stack:
            blocks = (stack.enter_async_context(self.ready()) for _ in range(AT_ONCE))
            return max(await asyncio.gather(*blocks)) - began


def bare() -> float:
    return b.run_once(b.PYTHON, "-c", "pass")


async def measured(report: b.Report, rounds: int) -> None:
    processes = Processes(None)
    key = key_of(b.RUNTIME, os.environ, Path.cwd())
    forked, spare, many, floor = [], [], [], []
    async with open_template(processes, key) as template:
        starts = Starts(processes, template)
        for _ in range(rounds):
            floor.append(bare())
            forked.append(await starts.forked())
            spare.append(await starts.spare())
            many.append(await starts.many())
    report.ratio("fork of a template", forked, floor, 0.6)
    report.ratio("spare", spare, floor, 0.3)
    report.ratio(f"{AT_ONCE} at once", many, floor, 5.0)
    if missing := [name for name in PRELOADED if importlib.util.find_spec(name) is None]:
        print(f"P1w  preloaded: not measured, no {', '.join(missing)} (uv sync --group bench)")
        return
    key = key_of(b.RUNTIME, os.environ, Path.cwd(), PRELOADED)
    async with open_template(processes, key) as template:
        starts = Starts(processes, template)
        pairs = [(bare(), await starts.forked()) for _ in range(rounds)]
    floor, preloaded = map(list, zip(*pairs, strict=True))
    report.ratio("numpy and pandas preloaded", preloaded, floor, 0.9)


def measure(report: b.Report, rounds: int) -> None:
    asyncio.run(measured(report, rounds))


if __name__ == "__main__":
    b.main("P1w", measure, rounds=40, short=8)
