"""A session store in this process, over a kernel and models that do what a test says."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from rlm_host.clock import SystemClock
from rlm_host.kernels.cell import (
    CellOutcome,
    Completion,
    Inspection,
    KernelStatus,
    Names,
    OnEvent,
    Revival,
    SnapshotReport,
)
from rlm_host.models.catalog import ModelInfo
from rlm_host.models.provider import Done, Event, Provider, Request, Text, Usage
from rlm_host.sessions.files import Files
from rlm_host.sessions.ports import SessionPorts
from rlm_host.sessions.session import SessionActor
from rlm_host.sessions.store import SessionStore
from rlm_protocol import kernel as wire
from rlm_protocol import records as r
from rlm_protocol.errors import KernelDied, KernelUnavailable, ModelUnavailable
from rlm_protocol.repl import SnapshotInfo
from rlm_protocol.session import SessionCreateParams, SessionItemsParams

MODEL = "stub/model"
USAGE = Usage(input_tokens=10, output_tokens=2, cost_nano_usd=5)
Answer = Callable[[Request], AsyncGenerator[Event, None]]


class StubKernel:
    """
    Runs nothing: the first word of a cell says what comes of it.

    `say TEXT` prints, `value TEXT` has a result, `raise` fails, `die` kills the process, `none` has
    no kernel, `wait` goes on until it is interrupted, `hang` goes on for ever.
    """

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.cells: list[str] = []
        self.revival: Revival | None = None
        self._interrupts: dict[str, asyncio.Event] = {}
        self.closed = False
        self.running = 0
        self.unloads = 0
        self.unloadable = True
        self.bound: list[str] = []

    @property
    def status(self) -> KernelStatus:
        return KernelStatus.BUSY if self.running else KernelStatus.IDLE

    @property
    def pid(self) -> int | None:
        return None

    def rebind(self) -> None:
        self.bound.append(self.given["bootstrap"]())

    async def execute(
        self, code: str, *, cell_id: str, on_event: OnEvent, silent: bool = False
    ) -> CellOutcome:
        self.cells.append(code)
        self.running += 1
        try:
            return await self._execute(code, cell_id, on_event)
        finally:
            self.running -= 1

    async def _execute(self, code: str, cell_id: str, on_event: OnEvent) -> CellOutcome:
        word, _, text = code.partition(" ")
        interrupted = self._interrupts[cell_id] = asyncio.Event()
        await asyncio.sleep(0)
        revival, self.revival = self.revival, None
        ended = CellOutcome(cell_id=cell_id, status="ok", duration_ms=1, revival=revival)
        match word:
            case "say":
                on_event(wire.Stdout(id=cell_id, text=text))
            case "value":
                on_event(wire.Result(id=cell_id, text=text))
            case "raise":
                on_event(
                    wire.Error(id=cell_id, ename="ValueError", evalue=text, traceback=["T", text])
                )
                return msgspec.structs.replace(ended, status="error")
            case "die":
                self.revival = Revival(reason="died", restored=("a",))
                raise KernelDied(signal="SIGKILL", exit_code=None, stderr_tail="last words")
            case "none":
                raise KernelUnavailable("There is no Python.")
            case "wait":
                on_event(wire.Stdout(id=cell_id, text="begun"))
                await interrupted.wait()
                return msgspec.structs.replace(ended, status="interrupted")
            case "hang":
                on_event(wire.Stdout(id=cell_id, text="begun"))
                await hanging()
        return ended

    def interrupt(self, cell_id: str | None = None) -> bool:
        for one in self._interrupts.values() if cell_id is None else [self._interrupts[cell_id]]:
            one.set()
        return True

    async def names(self, *, detail: bool = False) -> Names:
        return Names()

    async def complete(self, code: str, cursor: int) -> Completion:
        return Completion()

    async def inspect(self, code: str, cursor: int) -> Inspection:
        return Inspection()

    async def snapshot(self, *, prune_oversized: bool = False) -> SnapshotReport:
        return SnapshotReport()

    async def save_unsaved(self) -> None:
        return None

    async def unload(self) -> bool:
        self.unloads += 1
        return self.unloadable

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return ()

    async def restore(self, snapshot_id: str | None = None) -> Revival:
        return Revival(reason="restarted")

    async def restart(self, *, restore: bool) -> Revival | None:
        return None

    async def stop(self) -> None:
        self.interrupt()

    def kill(self) -> None:
        self.interrupt()

    async def aclose(self, *, snapshot: bool = True) -> None:
        self.closed = True


async def hanging() -> None:
    """Wait for ever, whatever cancels; ends with the loop's last cancel."""
    tries = 0
    while tries < 2:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            tries += 1
    raise asyncio.CancelledError


class StubModels:
    """One model, answered by a function. `requests` is what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Request] = []

    def resolve(self, selector: str) -> ModelInfo:
        if not selector.startswith("stub/"):
            raise ModelUnavailable(selector=selector)
        return ModelInfo(provider="stub", name=selector[5:], thinking=("low", "high"))

    def default(self, chosen: str | None = None) -> ModelInfo:
        return self.resolve(chosen or MODEL)

    def provider_for(self, selector: str) -> tuple[ModelInfo, Provider]:
        return self.resolve(selector), self

    async def warm_up(self, provider: str) -> None:
        return None

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        return self.answer(request)


def say(text: str, **done: Any) -> list[Event]:
    return [Text(delta=text), Done(stop="end", usage=USAGE, **done)]


def answers(*scripts: list[Any]) -> Answer:
    """Answer the n-th request with the n-th script: events, errors to raise, or things to await."""
    queue = list(scripts)

    async def played(script: list[Any]) -> AsyncGenerator[Event, None]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            if callable(step):
                await step()
                continue
            yield step

    return lambda request: played(queue.pop(0) if queue else say("out of script"))


class Person:
    """A client that can be asked: `answer(method, params)` gives its answer, None never comes."""

    def __init__(self, answer: Callable[[str, Any], Any] = lambda *_: None, name: str = "") -> None:
        self.answer = answer
        self.client_id = name or f"person-{id(self)}"
        self.asked: list[Any] = []
        self.cancelled: list[Any] = []
        self.heard: list[tuple[str, Any]] = []

    def __call__(self, method: str, payload: Any) -> None:
        self.heard.append((method, payload))

    async def ask(self, method: str, params: Any) -> msgspec.Raw:
        self.asked.append(params)
        answer = self.answer(method, params)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.append(params)
        return msgspec.Raw(msgspec.json.encode(answer))

    def told(self, method: str) -> list[Any]:
        return [params for name, params in self.heard if name == method]

    def resolved(self) -> list[str]:
        return [params.decision for params in self.told("approval/resolved")]


def deciding(decision: str, name: str = "") -> Person:
    """A person who decides at once."""
    return Person(lambda *_: {"decision": decision, "reason": "Because."}, name)


class Bench:
    """A store and what tests ask of it."""

    def __init__(self, store: SessionStore, home: Path, kernels: list[StubKernel]) -> None:
        self.store, self.home, self.kernels = store, home, kernels
        self.heard: list[tuple[str, Any]] = []

    async def create(self, **more: Any) -> SessionActor:
        return await self.store.create(SessionCreateParams(cwd=str(self.home), **more))

    async def listen(self, actor: SessionActor) -> None:
        await actor.attach(lambda method, payload: self.heard.append((method, payload)))

    async def items(self, actor: SessionActor) -> list[Any]:
        return list((await self.store.items(SessionItemsParams(session_id=actor.id))).items)

    def records(self, actor: SessionActor) -> list[r.Record]:
        """What the journal holds now."""
        path = self.home / "rlm" / "sessions" / f"{actor.id}.jsonl"
        found = [r.decode_line(line) for line in path.read_bytes().splitlines()]
        return [one.record for one in found if isinstance(one, r.Entry)]

    def kinds(self, actor: SessionActor) -> list[str]:
        return [type(one).__name__ for one in self.records(actor)]


@contextlib.asynccontextmanager
async def bench(
    home: Path,
    answer: Answer | None = None,
    *,
    models: Any = None,
    clock: Any = None,
    ports: SessionPorts | None = None,
    files: Files | None = None,
    unload_after_ms: int = 0,
    bugs: bool = False,
) -> AsyncIterator[Bench]:
    """Own a store for the length of the block; one of our bugs that it logs fails the test."""
    noticed = _Bugs(logging.ERROR)
    logging.getLogger("rlm_host").addHandler(noticed)
    kernels: list[StubKernel] = []

    def make_kernel(**given: Any) -> StubKernel:
        kernels.append(StubKernel(**given))
        return kernels[-1]

    async with SessionStore(
        home=home / "rlm",
        ephemeral_home=home / "tmp",
        clock=clock or SystemClock(),
        kernels=make_kernel,
        models=models or StubModels(answer or answers()),
        ports=ports or SessionPorts(),
        files=files,
        unload_after_ms=unload_after_ms,
    ) as store:
        try:
            yield Bench(store, home, kernels)
        finally:
            await store.aclose()
            logging.getLogger("rlm_host").removeHandler(noticed)
    assert bugs or not noticed.found, noticed.found


class _Bugs(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.getMessage()} {record.exc_info}")


async def until(met: Callable[[], Any], what: str = "the condition") -> None:
    """Wait until `met()` is true; fail after a generous deadline."""
    async with asyncio.timeout(30):
        while not met():
            await asyncio.sleep(0.005)


async def finished(actor: SessionActor, start: Awaitable[Any] | None = None) -> None:
    """Wait for the turn that `start` starts, and for everything it leads to."""
    if start is not None:
        await start
    async with asyncio.timeout(30):
        await actor.wait_idle()
