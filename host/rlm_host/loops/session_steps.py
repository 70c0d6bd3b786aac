"""Steps that happen in a session: a cell in its kernel, or a turn of its agent."""

import ast
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from typing import TYPE_CHECKING

import msgspec

from rlm_protocol import loop as wire
from rlm_protocol.errors import RlmError, StepFailed, TurnBusy

from ..processes import facts
from ..processes.pipes import to_the_end
from ..processes.sweep import kill_all

if TYPE_CHECKING:
    from ..sessions.session import SessionActor

Sessions = Callable[[str], Awaitable["SessionActor"]]
"""Gives a session by its id. Raises SessionNotFound."""
NANO = 1_000_000_000
SETTLE_POLL_S = 0.05
# What is read back is JSON of plain numbers, whatever the cell has bound the name to.
_READ = (
    '__import__("json").dumps({k: v if not isinstance(v, float) or v - v == 0 else str(v)'
    " for k, v in dict(observation).items()})"
)


async def run_guarded(actor: "SessionActor", prompt: str, *, message_id: str | None = None) -> None:
    """
    Run one session for one turn (seed: loop kernel), with all that it starts.

    Cancelling ends the turn and everything below it before this returns.

    Raises:
        StepFailed: the turn, or one that its children's news have started, did not complete.
        RlmError: the session is closed.
    """
    turn_id = await _start(actor, prompt, message_id)
    try:
        await _settled(actor)
    except asyncio.CancelledError:
        await to_the_end(_stop(actor))
        raise
    if actor.state.last_status != "completed":
        raise StepFailed(
            f"The session's turn has {actor.state.last_status or 'ended'}.", turn_id=turn_id
        )


async def _start(actor: "SessionActor", prompt: str, message_id: str | None) -> str:
    """Start the turn once those have ended that the session starts by itself."""
    while True:
        await _settled(actor)
        with contextlib.suppress(TurnBusy):
            return await actor.start_turn(prompt, client_message_id=message_id)


async def _settled(actor: "SessionActor") -> None:
    """Wait until no turn runs or waits, and no child of the session is still to be told of."""
    await actor.wait_idle()
    while not actor.quiet:
        await asyncio.sleep(SETTLE_POLL_S)
        await actor.wait_idle()


async def _stop(actor: "SessionActor") -> None:
    """End the session's turn, its cells, and everything below it with the kernels there."""
    with contextlib.suppress(RlmError):  # it is closed, and all below it
        await actor.interrupt(subtree=True)
    await actor.wait_idle()


class _InSession:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def spent(self, spec: wire.ReplStep | wire.AgentStep) -> float:
        """Give the metered cost of the session and everything below it so far, in USD."""
        return (await self._sessions(spec.session_id)).state.subtree.cost_nano_usd / NANO


class ReplRunner(_InSession):
    """
    Steps that are cells: `context` is bound before one, and `observation` is read after it.

    `observation` is a mapping of `reward`, `artifactId`, … A cell of an apply or rollback finds
    `action` and `observation` bound as well. What they cost is what their sessions were metered.
    """

    async def step(
        self, spec: wire.ReplStep, request: wire.LoopStepRequest
    ) -> wire.StepObservation:
        """Run the cell. See `StepRunner.step`."""
        actor = await self._sessions(spec.session_id)
        async with _attempt(actor, spec.timeout_ms):
            await _bind(actor, context=request.context)
            await _cell(actor, spec.code)
            return await _observation(actor)

    async def apply(self, spec: wire.ReplStep, request: wire.LoopApplyRequest) -> None:
        """Run the cell. See `StepRunner.apply`."""
        actor = await self._sessions(spec.session_id)
        async with _attempt(actor, spec.timeout_ms):
            await _bind_all(actor, request)
            await _cell(actor, spec.code)


class AgentRunner(_InSession):
    """
    Steps that are turns of an agent, each scored by a verifier cell as a `ReplRunner`'s.

    The agent is told its prompt and finds `context` in its kernel. What it costs is what its
    session and everything below it were metered, whatever the verifier says.
    """

    async def step(
        self, spec: wire.AgentStep, request: wire.LoopStepRequest
    ) -> wire.StepObservation:
        """Run the turn, then the verifier. See `StepRunner.step`."""
        actor, told = await self._sessions(spec.session_id), request.context
        async with _attempt(actor, spec.timeout_ms):
            await _bind(actor, context=told)
            await run_guarded(actor, spec.prompt, message_id=_message_id(told, "step"))
            await _bind(actor, context=told)
            await _cell(actor, spec.verify)
            return await _observation(actor)

    async def apply(self, spec: wire.AgentStep, request: wire.LoopApplyRequest) -> None:
        """Run the turn; the verifier fails the attempt by raising. See `StepRunner.apply`."""
        actor, told = await self._sessions(spec.session_id), request.context
        async with _attempt(actor, spec.timeout_ms):
            await _bind_all(actor, request)
            await run_guarded(actor, spec.prompt, message_id=_message_id(told, request.action))
            await _bind_all(actor, request)
            await _cell(actor, spec.verify)


def _message_id(told: wire.StepContext, what: str) -> str:
    return f"{told.run_id}:{told.generation}:{told.attempt}:{what}"


async def _bind_all(actor: "SessionActor", request: wire.LoopApplyRequest) -> None:
    await _bind(
        actor, context=request.context, observation=request.observation, action=request.action
    )


async def _bind(actor: "SessionActor", **values: object) -> None:
    """Bind names in the kernel; an `observation` of an earlier step is none of this one's."""
    text = msgspec.json.encode(values).decode()
    code = (
        f'globals().pop("observation", None); globals().update(__import__("json").loads({text!r}))'
    )
    done = await actor.execute_cell(code, silent=True)
    if done.status != "ok":
        raise StepFailed("The session's kernel could not be told the context.", status=done.status)


async def _cell(actor: "SessionActor", code: str) -> None:
    """Run a cell; one that is cancelled has ended, or its kernel has, before this raises."""
    try:
        done = await actor.execute_cell(code, author="host")
    except asyncio.CancelledError:
        # It is interrupted, with more and more force; whatever comes behind it begins after it.
        await to_the_end(asyncio.ensure_future(_behind(actor)))
        raise
    if done.status != "ok":
        raise StepFailed(
            f"The step's cell has ended with status {done.status!r}.",
            error=msgspec.to_builtins(done.error),
        )


async def _behind(actor: "SessionActor") -> None:
    with contextlib.suppress(RlmError):
        await actor.execute_cell("pass", silent=True)


async def _observation(actor: "SessionActor") -> wire.StepObservation:
    done = await actor.execute_cell(_READ, author="host")
    if done.status != "ok" or done.truncated or done.result is None:
        raise StepFailed(
            "The step's cell has left no usable `observation`.",
            error=msgspec.to_builtins(done.error),
            truncated=done.truncated,
        )
    try:
        return msgspec.json.decode(ast.literal_eval(done.result), type=wire.StepObservation)
    except (msgspec.DecodeError, ValueError, SyntaxError) as why:
        raise StepFailed("What the cell has left is no observation.", detail=str(why)) from why


@contextlib.asynccontextmanager
async def _attempt(actor: "SessionActor", timeout_ms: int | None) -> AsyncIterator[None]:
    """
    Limit an attempt in time; when it is cut short, end everything that it has started.

    That is all that runs below the session too, unless its turn is still the one that ran before:
    then that one's children are somebody else's.
    """
    turn_id = _turn_of(actor)
    before = await asyncio.to_thread(_processes, actor.kernel.pid)
    seconds = None if timeout_ms is None else timeout_ms / 1000
    async with asyncio.timeout(seconds):
        try:
            yield
        except asyncio.CancelledError:
            theirs = turn_id is not None and _turn_of(actor) == turn_id
            await to_the_end(_cut_short(actor, before, stop=not theirs))
            raise


def _turn_of(actor: "SessionActor") -> str | None:
    """Give the id of the turn that runs."""
    turn = actor.state.turn
    return None if turn is None else turn.turn_id


async def _cut_short(actor: "SessionActor", spared: Container[str], *, stop: bool) -> None:
    if stop:
        await _stop(actor)
    await asyncio.to_thread(_end_processes, actor.kernel.pid, spared)


def _processes(
    kernel_pid: int | None, table: dict[int, facts.ProcessFact] | None = None
) -> dict[str, facts.ProcessFact]:
    """Give what a kernel's cells have started and is alive, daemons too: its guard adopts them."""
    kernel = None if kernel_pid is None else facts.process(kernel_pid)
    if kernel is None:
        return {}
    below = facts.descendants(kernel.parent, table)
    return {f"{fact.pid} {fact.started}": fact for fact in below if fact.pid != kernel_pid}


def _end_processes(kernel_pid: int | None, spared: Container[str]) -> None:
    def find(table: dict[int, facts.ProcessFact]) -> list[facts.ProcessFact]:
        there = _processes(kernel_pid, table)
        return [fact for name, fact in there.items() if name not in spared]

    kill_all(find)
