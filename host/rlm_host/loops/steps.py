"""
Where the steps of a run happen when they are described instead of being a function.

Every place gets the same context and gives the same observation, and all of them are at-least-once:
what they do must be idempotent for `(run_id, generation)`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from rlm_protocol import loop as wire
from rlm_protocol.errors import StepFailed, Unsupported
from rlm_protocol.loop_records import Accepted, Steps

from ..processes.command import run_command
from ..processes.pipes import to_the_end
from ..processes.spawn import Processes
from .context import LoopContext
from .inputs import LoopObservation
from .wire import context_of, observation_of, to_wire
from .worker import Work

T = TypeVar("T")
Spec = TypeVar("Spec", contravariant=True)
CANCEL_POLL_S = 0.1
"""How soon a step notices that it is to end."""
GRACE_MS = 2_000
"""Between the wish that a command ends and its end by force."""


class StepRunner(Protocol[Spec]):
    """One place where described steps happen. Both methods end when their task is cancelled."""

    async def step(self, spec: Spec, request: wire.LoopStepRequest) -> wire.StepObservation:
        """Make and measure one candidate. Raises whatever makes it a failed attempt."""

    async def apply(self, spec: Spec, request: wire.LoopApplyRequest) -> None:
        """Make an artifact live, or take it back. Raises whatever makes it a failed attempt."""


@runtime_checkable
class Metered(Protocol[Spec]):
    """A place that knows what its steps cost, so that nobody has to believe what they say."""

    async def spent(self, spec: Spec) -> float:
        """Give what was spent there so far, in the unit of the runs' budgets."""


Runners = Mapping[type[Any], StepRunner[Any]]
"""The places that a host offers, by the type of their description."""


def check_steps(steps: Steps, runners: Runners) -> None:
    """Refuse steps that this host has no place for. Raises Unsupported."""
    for spec in (steps.step, steps.apply, steps.rollback):
        if spec is not None and type(spec) not in runners:
            kind = type(spec).__struct_config__.tag
            raise Unsupported(f"This host runs no steps of the kind {kind!r}.", step=kind)


def work_of(steps: Steps, runners: Runners) -> Work:
    """Give the functions that do what is described. Raises Unsupported."""
    check_steps(steps, runners)

    async def step(context: LoopContext) -> LoopObservation:
        runner, request = (
            runners[type(steps.step)],
            wire.LoopStepRequest(context=context_of(context)),
        )
        async with _metered(context, runner, steps.step):
            seen = await unless_cancelled(context, runner.step(steps.step, request))
        if isinstance(runner, Metered):
            seen = msgspec.structs.replace(seen, cost=context.charged)
        return observation_of(seen)

    async def carry_out(
        spec: wire.Step | None, context: LoopContext, request: wire.LoopApplyRequest
    ) -> None:
        runner = runners[type(spec)]
        async with _metered(context, runner, spec):
            await runner.apply(spec, request)

    async def apply(context: LoopContext, observation: LoopObservation) -> None:
        request = wire.LoopApplyRequest(
            context=context_of(context), observation=to_wire(observation)
        )
        await carry_out(steps.apply, context, request)

    async def rollback(context: LoopContext, accepted: Accepted | None) -> None:
        observation = wire.StepObservation(
            reward="nan" if accepted is None else accepted.reward,
            artifact_id=None if accepted is None else accepted.artifact_id,
        )
        request = wire.LoopApplyRequest(
            context=context_of(context), observation=observation, action="rollback"
        )
        await carry_out(steps.rollback, context, request)

    return Work(
        step=step,
        apply=None if steps.apply is None else apply,
        rollback=None if steps.rollback is None else rollback,
    )


@contextlib.asynccontextmanager
async def _metered(context: LoopContext, runner: StepRunner[Any], spec: Any) -> AsyncIterator[None]:
    """Charge the run what a metered place spends during the block, however the block ends."""
    if not isinstance(runner, Metered):
        yield
        return
    before = await runner.spent(spec)
    try:
        yield
    finally:
        context.charge(max(0.0, await runner.spent(spec) - before))


async def unless_cancelled(context: LoopContext, work: Coroutine[Any, Any, T]) -> T:
    """
    Await some work, and end it when the attempt is to end.

    Raises:
        InterruptedError: the attempt was cancelled; the work has ended.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=CANCEL_POLL_S))[0]:
            if context.cancelled:
                raise InterruptedError("the attempt was cancelled")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await to_the_end(asyncio.wait({task}))
            task.cancelled() or task.exception()  # seen: what it says now is nobody's


class CommandRunner:
    """
    Steps that are external commands: JSON on stdin, an observation as the last line of stdout.

    A step is given the context, an apply or rollback the whole request. Any other exit code than 0
    is a failed attempt. However one ends, its whole process tree is gone.

    Args:
        processes: owner of the processes.
        env: what every command's environment begins with.
        cwd: the folder they run in, and to which a description's own is relative.
    """

    def __init__(self, processes: Processes, *, env: Mapping[str, str], cwd: Path) -> None:
        self._processes = processes
        self._env = env
        self._cwd = cwd

    async def step(
        self, spec: wire.CommandStep, request: wire.LoopStepRequest
    ) -> wire.StepObservation:
        """Run the command on the context. See `StepRunner.step`."""
        lines = (await self._run(spec, request.context)).split(b"\n")
        last = next((line for line in reversed(lines) if line.strip()), b"")
        try:
            return msgspec.json.decode(last, type=wire.StepObservation)
        except msgspec.DecodeError as why:
            raise StepFailed(
                "The last line of the command's output is no observation.",
                line=last[:200].decode(errors="replace"),
                detail=str(why),
            ) from why

    async def apply(self, spec: wire.CommandStep, request: wire.LoopApplyRequest) -> None:
        """Run the command on the request. See `StepRunner.apply`."""
        await self._run(spec, request)

    async def _run(self, spec: wire.CommandStep, told: msgspec.Struct) -> bytes:
        try:
            done = await run_command(
                self._processes,
                spec.argv,
                env={**self._env, **(spec.env or {})},
                cwd=self._cwd / (spec.cwd or "."),
                input=msgspec.json.encode(told) + b"\n",
                timeout_ms=spec.timeout_ms,
                grace_ms=GRACE_MS,
            )
        except TimeoutError as why:
            raise StepFailed(f"The command ran longer than {spec.timeout_ms} ms.") from why
        if done.exit_code != 0:
            raise StepFailed(
                f"The command ended with exit code {done.exit_code}.",
                exit_code=done.exit_code,
                stderr_tail=done.stderr_tail,
            )
        if done.dropped_bytes:
            raise StepFailed("The command wrote too much.", dropped_bytes=done.dropped_bytes)
        return done.stdout


class ClientPort(Protocol):
    """The attached client, which may come back after it was gone: then it is asked again."""

    async def step(self, request: wire.LoopStepRequest) -> wire.StepObservation:
        """Ask for one step. Raises RlmError."""

    async def apply(self, request: wire.LoopApplyRequest) -> None:
        """Ask for an apply or rollback. Raises RlmError."""


class ClientRunner:
    """Steps that the attached client makes."""

    def __init__(self, port: ClientPort) -> None:
        self._port = port

    async def step(
        self, spec: wire.ClientStep, request: wire.LoopStepRequest
    ) -> wire.StepObservation:
        """Ask the client. See `StepRunner.step`."""
        async with asyncio.timeout(_seconds(spec.timeout_ms)):
            return await self._port.step(request)

    async def apply(self, spec: wire.ClientStep, request: wire.LoopApplyRequest) -> None:
        """Ask the client. See `StepRunner.apply`."""
        async with asyncio.timeout(_seconds(spec.timeout_ms)):
            await self._port.apply(request)


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None else timeout_ms / 1000
