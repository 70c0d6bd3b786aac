"""Kernels that have templates, and questions to them."""

import ast
import json
import os
from pathlib import Path
from typing import Any

from rlm_host.kernels.session_kernel import SessionKernel
from rlm_host.processes import facts
from rlm_host.processes.templates import Templates
from support.processes import KernelBench, Run, until


class WarmBench(KernelBench):
    """A bench whose kernels have templates."""

    def __init__(self, tmp_path: Path, preload: tuple[str, ...] = ()) -> None:
        super().__init__(tmp_path)
        self.templates = Templates(self.processes, preload)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self.templates.aclose()

    def host(self, **changes: Any) -> Any:
        return super().host(**{"templates": self.templates, **changes})

    async def spare(self, template: int | None = None) -> int:
        """Wait until a spare waits (of another template than `template`); give its template."""
        await until(lambda: set(self.templates.pids) - {template}, "a template with a spare")
        return (set(self.templates.pids) - {template}).pop()


def origin(kernel: SessionKernel) -> int:
    """The parent of a kernel's guard: this process, or a template."""
    guard = facts.process(kernel.pid).parent
    return facts.process(guard).parent


async def ask(kernel: SessionKernel, code: str) -> Any:
    """Run a cell; give the value of its last line, or the JSON that it prints."""
    run = Run(kernel)
    outcome = await run(code, cell_id=f"ask-{os.urandom(4).hex()}")
    assert outcome.status == "ok", "".join(outcome.error.traceback)
    if outcome.result is not None:
        return ast.literal_eval(outcome.result)
    return json.loads(run.text) if run.text else None
