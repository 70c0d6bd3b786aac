"""`rlm-host loop` on a run store that is opened here, without a host."""

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.console import Console

from rlm_protocol import loop as wire
from rlm_protocol.errors import LeaseHeld, LeaseLost, RlmError
from rlm_protocol.loop_records import StepFailed

from ..loops.kernel import LoopKernel
from ..loops.moving import export_run, import_run
from ..loops.program import LoopProgram, load_program
from ..loops.report import LoopGeneration, read_report
from ..loops.stores.base import ControlAction, RunRow, RunStore
from ..loops.stores.open import open_store
from ..loops.wire import generation_of, run_of
from . import interruptible
from .cli_client import INTERRUPTED, print_json
from .launch import say_error
from .loop_view import LoopView, head_line, print_report

PROGRAM = "rlm-host loop"
GOES_ON = "What was recorded is kept; the same command goes on with the run."
UNCHANGED = "Nothing was changed."
WAIT_S = 0.5
DAY_MS = 86_400_000
PRUNED_AT_ONCE = 100


class Asked(Protocol):
    """Who answers `loop/*` requests: a host, or a store."""

    async def request(self, method: str, params: Any) -> Any:
        """Give the result. Raises RlmError."""


class StoreRuns:
    """Answers from a store, as a host would, what needs nobody to work on a run."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def request(self, method: str, params: Any) -> Any:
        """See `Asked`."""
        answer: msgspec.Struct
        match method:
            case "loop/list":
                page = self._store.list(status=params["status"], limit=params["limit"])
                runs = tuple(map(run_of, page.runs))
                answer = wire.LoopListResult(runs=runs, next_cursor=page.cursor)
            case "loop/snapshot":
                head = self._store.head(params["runId"]).head
                answer = wire.LoopSnapshotResult(head=msgspec.to_builtins(head))
            case "loop/report":
                answer = _report(self._store, params["runId"])
            case _:
                action: ControlAction = method.removeprefix("loop/")  # type: ignore[assignment]
                reason = params["reason"] or CONTROL_REASONS[action]
                answer = wire.RunResult(
                    run=run_of(self._store.request(params["runId"], action, reason))
                )
        return msgspec.to_builtins(answer)


CONTROL_REASONS = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def _report(store: RunStore, run_id: str) -> wire.LoopReportResult:
    report = read_report(store, run_id)
    return wire.LoopReportResult(
        run=run_of(store.head(run_id)), generations=tuple(map(generation_of, report.generations))
    )


def with_store(url: str, work: Callable[[Asked], Awaitable[int]]) -> int:
    """Let `work` ask a store; give the exit code. An error is one line on stderr and code 1."""

    async def main(store: RunStore) -> int:
        return await work(StoreRuns(store))

    return _on_store(url, lambda store: asyncio.run(main(store)))


def export(options: argparse.Namespace) -> int:
    """Write a run to stdout. What was cut off is refused by `loop import`."""

    def work(store: RunStore) -> int:
        for line in export_run(store, options.run):
            sys.stdout.buffer.write(line)
        return 0

    return _on_store(options.store, work)


def take_in(options: argparse.Namespace) -> int:
    """Take a run from stdin into a store."""

    def work(store: RunStore) -> int:
        run = msgspec.to_builtins(run_of(import_run(store, sys.stdin.buffer)))
        if options.json:
            print_json(run)
        else:
            Console().print(head_line(run), soft_wrap=True)
        return 0

    return _on_store(options.store, work)


def prune(options: argparse.Namespace) -> int:
    """Delete the runs that have been over for so many days."""

    def work(store: RunStore) -> int:
        before_ms = int(time.time() * 1000 - options.older_than * DAY_MS)
        deleted = 0
        while found := store.prune(before_ms=before_ms, limit=PRUNED_AT_ONCE):
            deleted += found
        if options.json:
            print_json({"deleted": deleted})
        else:
            sys.stdout.write(f"{deleted} runs deleted\n")
        return 0

    return _on_store(options.store, work, "Runs that were not deleted are kept.")


def _on_store(url: str, work: Callable[[RunStore], int], kept: str = UNCHANGED) -> int:
    try:
        with contextlib.closing(open_store(url)) as store:
            return work(store)
    except (RlmError, OSError) as why:
        if isinstance(why, BrokenPipeError):
            raise
        say_error(PROGRAM, why, kept)
    except KeyboardInterrupt:
        return _say_interrupted()
    return 1


def _say_interrupted() -> int:
    sys.stderr.write(f"{PROGRAM}: stopped. What was done is kept.\n")
    return INTERRUPTED


# --- a run of a Python file -----------------------------------------------------------------------


def run_file(options: argparse.Namespace) -> int:
    """Work on the run of a Python file until it ends; 1 when it has failed or must be left."""
    kept, stdout = UNCHANGED, sys.stdout
    try:
        # A program's own prints must not get between the lines that another one reads.
        with contextlib.redirect_stdout(sys.stderr if options.form else stdout):
            program = load_program(Path(options.what))
            with contextlib.closing(open_store(options.store)) as store:
                run_id = LoopKernel(store, program.config).submit(options.run or program.run_id)
                kept = GOES_ON
                code = interruptible.run(_work(store, run_id, program, options))
                with contextlib.redirect_stdout(stdout):
                    shown = msgspec.to_builtins(_report(store, run_id))
                    print_report(shown["run"], shown["generations"], options.form)
                return code
    except (RlmError, OSError) as why:
        say_error(PROGRAM, why, kept)
        return 1
    except interruptible.Stopped as stopped:
        return interruptible.say_stopped(PROGRAM, stopped)
    except KeyboardInterrupt:  # before or after the work: the file is being loaded, or reported
        return _say_interrupted()


async def _work(
    store: RunStore, run_id: str, program: LoopProgram, options: argparse.Namespace
) -> int:
    with LoopView(Console(), program.config.max_generations) as view:

        def tell(row: RunRow, generation: LoopGeneration) -> None:
            view.generation(
                msgspec.to_builtins(generation_of(generation)), msgspec.to_builtins(run_of(row))
            )

        kernel = LoopKernel(
            store,
            None,
            gates=program.gates,
            on_generation=tell,
            lease_ms=round(options.lease_s * 1000),
        )
        worker = options.worker or f"{socket.gethostname()} {os.getpid()}"
        view.say(f"run {run_id}, worker {worker}")
        report = None
        said = ""
        while report is None:
            try:
                report = await kernel.arun(
                    run_id, worker, program.step, apply=program.apply, rollback=program.rollback
                )
            except (LeaseHeld, LeaseLost) as why:
                if why.message != said:
                    view.say(f"{why.message} Waiting for it.")
                said = why.message
                await asyncio.sleep(WAIT_S)
    if report.status in ("running", "failed"):
        sys.stderr.write(f"{PROGRAM}: {_failure(store, run_id)}\n")
        return 1
    return 0


def _failure(store: RunStore, run_id: str) -> str:
    """Say why a run was left, or has failed: its last events tell."""
    row = store.head(run_id)
    last = store.events(run_id, after=max(0, row.seq - 2))
    why = next((e.event for e in reversed(last) if isinstance(e.event, StepFailed)), None)
    said = f"The run has failed: {row.reason}."
    if why is not None:
        message = " ".join(why.message.split()).rstrip(".")
        said = f"{why.phase} of generation {why.generation} failed: {why.error}: {message}."
    return f"{said} {GOES_ON}" if row.status == "running" else said
