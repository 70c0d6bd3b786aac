"""A process that carries out runs of a Temporal cluster."""

import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
from temporalio.worker import Worker

from rlm_protocol import loop_temporal as wire
from rlm_protocol.errors import Unsupported
from rlm_protocol.loop import Provenance

from ..audit import DecisionLog
from ..compute import ComputeController
from ..kernel import named
from ..provenance import provenance_of
from ..steps import Runners, work_of
from ..worker import Work
from .activities import LoopActivities
from .runs import QUEUE, TemporalRuns, connect
from .workflow import LoopWorkflow

STICKY = timedelta(seconds=2)
"""How long the runs of a worker that has died wait for it before another replays them."""


@contextlib.asynccontextmanager
async def working(
    address: str,
    work: Work | None = None,
    *,
    runners: Runners | None = None,
    gates: Sequence[Callable[..., Any]] = (),
    namespace: str = "default",
    queue: str = QUEUE,
    decision_log: DecisionLog | None = None,
    compute: ComputeController | None = None,
    worker: str | None = None,
    code: Path | None = None,
) -> AsyncIterator[None]:
    """
    Carry out the runs of a queue for the length of the block.

    At its end, steps that are at work are ended, and Temporal gives them to another worker.

    Args:
        work: the functions of every run; None takes them from what each run was submitted with.
        runners: the places where described steps can happen, for `work=None`.
        worker: its name for people; host and process if None.
        code: the folder whose state in Git is recorded as part of the worker's identity, beside
            each activity that it carries out; the working folder if None.

    Raises:
        StoreUnavailable: nobody answers there.
    """

    def work_for(told: wire.Told) -> Work:
        if work is not None:
            return work
        if told.submitted.steps is None:
            raise Unsupported("Only the program that submitted this run can go on with it.")
        return work_of(told.submitted.steps, runners or {})

    provenance = await anyio.to_thread.run_sync(provenance_of, (code or Path()).absolute())
    client = await connect(address, namespace, identity_of(worker, provenance))
    runs = await anyio.to_thread.run_sync(
        lambda: TemporalRuns(address, namespace=namespace, queue=queue)
    )
    try:
        activities = LoopActivities(
            work_for, named(gates), runs, decision_log=decision_log, compute=compute
        )
        async with Worker(
            client,
            task_queue=queue,
            workflows=[LoopWorkflow],
            activities=activities.all(),
            build_id=build_of(provenance),
            sticky_queue_schedule_to_start_timeout=STICKY,
        ):
            yield
    finally:
        await anyio.to_thread.run_sync(runs.close)


def identity_of(worker: str | None, provenance: Provenance) -> str:
    """Give what a history says of who carried out its activities."""
    parts = [
        worker or f"{os.getpid()}@{socket.gethostname()}",
        f"commit {provenance.commit or 'unknown'}",
        f"changed {provenance.dirty_digest}" if provenance.dirty_digest else "",
        provenance.interpreter,
        f"packages {provenance.packages_digest}",
    ]
    return ", ".join(filter(None, parts))


def build_of(provenance: Provenance) -> str:
    """Give one digest of a worker's code. Temporal's own compiles every loaded module for it."""
    said = msgspec.json.encode(provenance)
    return hashlib.blake2b(said, digest_size=16).hexdigest()
