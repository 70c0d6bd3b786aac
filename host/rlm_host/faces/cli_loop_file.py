"""`rlm-host loop run FILE.py`: working on the run of a Python file, in this process."""

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_protocol.errors import LeaseHeld, LeaseLost, RlmError, StoreBusy
from rlm_protocol.loop_records import TERMINAL, StepFailed

from ..loops.kernel import LoopKernel
from ..loops.program import LoopProgram, load_program
from ..loops.report import LoopGeneration
from ..loops.stores.base import RunReader, RunRow, RunStore
from ..loops.stores.open import TEMPORAL, open_cluster, open_store
from ..loops.submission import submit_run
from ..loops.wire import generation_of, run_of
from ..loops.worker import Work
from . import interruptible
from .cli_loop_read import follow, whole_report
from .cli_loop_store import PROGRAM, UNCHANGED, StoreRuns, say_interrupted
from .console import Console
from .launch import say_error
from .loop_view import LoopView, print_report

if TYPE_CHECKING:
    from ..loops.temporal.runs import TemporalRuns

GOES_ON = "What was recorded is kept; the same command goes on with the run."
WAIT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One run of one file, and who works on it."""

    run_id: str
    program: LoopProgram
    folder: Path
    worker: str
    lease_ms: int


_Work = Callable[[LoopView], Coroutine[Any, Any, None]]


def run_file(options: argparse.Namespace) -> int:
    """Work on the run of a Python file until it ends; 1 when it has failed or must be left."""
    kept, stdout, file = UNCHANGED, sys.stdout, Path(options.what)
    try:
        # A program's own prints must not get between the lines that another one reads.
        with contextlib.redirect_stdout(sys.stderr if options.form else stdout):
            program = load_program(file)
            job = _Job(
                run_id=options.run or program.run_id,
                program=program,
                folder=file.resolve().parent,
                worker=options.worker or f"{socket.gethostname()} {os.getpid()}",
                lease_ms=round(options.lease_s * 1000),
            )
            store, work = _place(options.store, job)
            with contextlib.closing(store):
                submit_run(store, program.config, code=job.folder, run_id=job.run_id)
                kept = GOES_ON
                with LoopView(Console()) as view:
                    view.say(f"run {job.run_id}, worker {job.worker}")
                    interruptible.run(work(view))
                with contextlib.redirect_stdout(stdout):
                    report = asyncio.run(whole_report(StoreRuns(store), job.run_id))
                    print_report(report, options.form)
                return _exit_code(store, job.run_id)
    except (RlmError, OSError) as why:
        say_error(PROGRAM, why, kept)
        return 1
    except interruptible.Stopped as stopped:
        return interruptible.say_stopped(PROGRAM, stopped)
    except KeyboardInterrupt:  # before or after the work: the file is being loaded, or reported
        return say_interrupted(kept)


def _place(url: str, job: _Job) -> tuple[RunReader, _Work]:
    """Open where the run is kept, and give how it is worked on there."""
    if url.startswith(TEMPORAL):
        # A queue of this run's own: whoever serves a queue works on all of its runs.
        cluster = open_cluster(url, queue=f"rlm-loop-{job.run_id}")
        return cluster, lambda view: _on_cluster(cluster, job, view)
    store = open_store(url)
    return store, lambda view: _on_store(store, job, view)


async def _on_store(store: RunStore, job: _Job, view: LoopView) -> None:
    """Work on the run when no other worker has it, until it ends or must be left."""

    def tell(row: RunRow, generation: LoopGeneration) -> None:
        run = msgspec.to_builtins(run_of(row))
        view.generation(msgspec.to_builtins(generation_of(generation)), run["bestReward"])
        view.run(run)

    program = job.program
    kernel = LoopKernel(
        store,
        None,
        gates=program.gates,
        code=job.folder,
        on_generation=tell,
        lease_ms=job.lease_ms,
    )
    said = ""
    while True:
        try:
            await kernel.arun(
                job.run_id,
                job.worker,
                program.step,
                apply=program.apply,
                rollback=program.rollback,
            )
            return
        except (LeaseHeld, LeaseLost, StoreBusy) as why:
            if why.message != said:
                view.say(f"{why.message} Waiting for it.")
            said = why.message
            await asyncio.sleep(WAIT_S)


async def _on_cluster(cluster: "TemporalRuns", job: _Job, view: LoopView) -> None:
    """Be one of the run's workers until it is over or paused; Temporal shares the work out."""
    from ..loops.temporal.worker import working

    program = job.program
    async with working(
        cluster.address,
        Work(step=program.step, apply=program.apply, rollback=program.rollback),
        gates=program.gates,
        namespace=cluster.namespace,
        queue=cluster.queue,
        worker=job.worker,
        code=job.folder,
    ):
        await follow(StoreRuns(cluster), job.run_id, view, TERMINAL | {"paused"})


def _exit_code(store: RunReader, run_id: str) -> int:
    """Give 1, and say why, for a run that has failed or was left: its last events tell."""
    row = store.head(run_id)
    if row.status not in ("running", "failed"):
        return 0
    last = store.events(run_id, after=max(0, row.seq - 2))
    why = next((e.event for e in reversed(last) if isinstance(e.event, StepFailed)), None)
    said = f"The run has failed: {row.reason}."
    if why is not None:
        message = " ".join(why.message.split()).rstrip(".")
        said = f"{why.phase} of generation {why.generation} failed: {why.error}: {message}."
    goes_on = f" {GOES_ON}" if row.status == "running" else ""
    sys.stderr.write(f"{PROGRAM}: {said}{goes_on}\n")
    return 1
