"""
Runs of the conformance kits for tests, a few at a time: most of a run is waiting.

Each worker is a process of its own (`python -m support.kit_runs`, in tests/), because the kit counts
the processes that its command leaves behind as its own children. It reads one `Job` a line and
answers with one line of outcomes.
"""

import contextlib
import queue
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

from rlm_protocol.conformance import host, runner, runtime
from rlm_protocol.conformance.child import no_orphans
from rlm_protocol.conformance.host.kit import HostKit
from rlm_protocol.conformance.language import Language
from rlm_protocol.conformance.promise import Outcome
from rlm_protocol.conformance.runtime.kit import RuntimeKit

AT_ONCE = 3
TESTS = Path(__file__).parents[1]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One command, held to some promises, in this order. No promise named: to all."""

    kind: str
    """`host` or `runtime`."""
    command: tuple[str, ...]
    promises: tuple[str, ...] = ()
    timeout_s: float = 30
    """Of a single wait."""
    budget_s: float = 240
    """Of the whole run."""


Found = dict[str, Outcome]
Runs = Callable[[Job], Found]
"""Gives what a job has found, and waits for it."""


def not_kept(found: Found) -> dict[str, tuple[str, ...]]:
    """Give what was found against each promise that is not kept."""
    return {o.id: o.reasons for o in found.values() if o.verdict != "passed"}


def outcomes(job: Job) -> list[Outcome]:
    """Run one job here. The caller has one thread and no child."""
    ranks = {id_: rank for rank, id_ in enumerate(job.promises)}
    kits = {"host": (HostKit, host.PROMISES), "runtime": (RuntimeKit, runtime.PROMISES)}
    make, promises = kits[job.kind]
    chosen = sorted(runner.select(promises, only=job.promises), key=lambda p: ranks.get(p.id, 0))
    with tempfile.TemporaryDirectory() as folder, no_orphans() as adopts:
        command, directory = list(job.command), Path(folder)
        kit = make(command, Language(), directory, timeout_s=job.timeout_s, adopts=adopts)
        with kit:
            return runner.run(kit, chosen, budget_s=job.budget_s)


@contextlib.contextmanager
def runs(jobs: Sequence[Job]) -> Iterator[Runs]:
    """Own the workers that run these jobs, in this order, for the length of the block."""
    with contextlib.ExitStack() as stack:
        workers: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(min(AT_ONCE, len(jobs))):
            workers.put(stack.enter_context(_Worker()))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)

        def run(job: Job) -> Found:
            worker = workers.get()
            try:
                return worker.run(job)
            finally:
                workers.put(worker)

        found: dict[Job, Future[Found]] = {
            job: pool.submit(run, job) for job in dict.fromkeys(jobs)
        }
        yield lambda job: found[job].result()


class _Worker:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.kit_runs"],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # the end of its stdin ends it
            self._pipes()[0].close()

    def run(self, job: Job) -> Found:
        stdin, stdout = self._pipes()
        stdin.write(msgspec.json.encode(job) + b"\n")
        stdin.flush()
        found = msgspec.json.decode(stdout.readline(), type=list[Outcome])
        return {outcome.id: outcome for outcome in found}

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        answer = outcomes(msgspec.json.decode(line, type=Job))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
