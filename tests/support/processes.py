"""Kernels, processes and clocks for tests."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from rlm_host.clock import Clock, SystemClock
from rlm_host.kernels.cell import KernelStatus, OutputEvent
from rlm_host.kernels.client import Kernel, Launch, Waits
from rlm_host.kernels.environment import KernelHost
from rlm_host.kernels.interpreters import Interpreters
from rlm_host.kernels.opening import open_kernel
from rlm_host.kernels.recipe import Recipe
from rlm_host.kernels.session_kernel import SessionKernel
from rlm_host.processes import facts
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.spawn import Processes
from rlm_protocol.errors import MethodNotFound
from support.services import Server

FAKE = str(Path(__file__).with_name("fake_runtime.py"))
PATIENCE_S = 30.0
QUICK = Waits(
    ready_ms=20_000,
    interrupt_again_ms=100,
    interrupt_kill_ms=100,
    shutdown_ms=5_000,
    terminate_ms=500,
)


_KNOWN: dict[Any, Any] = {}
"""What tests have learned of interpreters: each is asked once in a run, not once in a test."""


async def no_requests(type_: str, payload: dict[str, Any], cell: str | None) -> object:
    raise MethodNotFound(method=type_)


async def until(met: Callable[[], object], what: str = "the condition") -> None:
    """Wait until `met()` is true; fail after a generous deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not met():
        assert loop.time() < deadline, f"{what} did not come to be in {PATIENCE_S} s"
        await asyncio.sleep(0.01)


async def in_time(awaitable: Awaitable[Any]) -> Any:
    """Await, for a generous time."""
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


def alive(pid: int) -> bool:
    fact = facts.process(pid)
    return fact is not None and not fact.zombie


def my_children() -> list[facts.ProcessFact]:
    """Living processes below this one, without the servers that a whole run shares."""
    table = facts.processes()
    shared = {fact.pid for pid in Server.pids for fact in facts.descendants(pid, table)}
    mine = facts.descendants(os.getpid(), table)
    return [fact for fact in mine if fact.pid not in shared | Server.pids]


def running(argument: str) -> list[int]:
    """Pids of processes with this argument in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                argv = (entry / "cmdline").read_bytes().split(b"\0")
                if argument.encode() in argv and alive(int(entry.name)):
                    found.append(int(entry.name))
    return found


class FakeClock:
    """A clock that moves only when told. `sleepers` shows who waits, in ms."""

    def __init__(self) -> None:
        self.time_ms = 1_000
        self.sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    async def sleep(self, duration_ms: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self.time_ms + duration_ms, future)
        self.sleepers.append(entry)
        try:
            await future
        finally:
            self.sleepers.remove(entry)

    def advance(self, duration_ms: int) -> None:
        self.time_ms += duration_ms
        for due_ms, future in list(self.sleepers):
            if due_ms <= self.time_ms and not future.done():
                future.set_result(None)


def fake_launch(mode: str = "", *, cwd: Path = Path("/")) -> Launch:
    return Launch(
        argv=(sys.executable, "-I", "-S", FAKE),
        env={"FAKE": mode, "PATH": os.environ["PATH"]},
        cwd=cwd,
        versions=frozenset({"dev"}),
    )


@contextlib.asynccontextmanager
async def fake_kernel(
    mode: str = "",
    *,
    host_requests: Any = no_requests,
    on_background: Callable[[OutputEvent], None] = lambda _: None,
    waits: Waits = QUICK,
    clock: Clock | None = None,
) -> AsyncIterator[Kernel]:
    async with open_kernel(
        Processes(None),
        fake_launch(mode),
        host_requests=host_requests,
        on_background=on_background,
        on_state=lambda _: None,
        clock=clock or SystemClock(),
        waits=waits,
    ) as made:
        yield made


class KernelBench:
    """Makes session kernels in a temporary home, and ends those that a test leaves."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.cwd = tmp_path / "work"
        self.session_dir = self.home / "session-artifacts" / "s1"
        self.cwd.mkdir()
        self.processes = Processes(Ledger(self.home))
        self.background: list[OutputEvent] = []
        self.statuses: list[KernelStatus] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "KernelBench":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def host(self, **changes: Any) -> KernelHost:
        known = Interpreters()
        known._known = _KNOWN
        options: dict[str, Any] = {
            "home": self.home,
            "environ": {**os.environ, "RLM_KERNEL_PYTHON": sys.executable},
            "processes": self.processes,
            "clock": SystemClock(),
            "waits": QUICK,
            "snapshot_after_ms": 60_000,
            "interpreters": known,
        }
        return KernelHost(**{**options, **changes})

    async def kernel(
        self,
        *,
        fake: bool = False,
        host: KernelHost | None = None,
        recipe: Recipe | None = None,
        **more: Any,
    ) -> SessionKernel:
        if fake:
            recipe = Recipe(launcher=(sys.executable, "-I", "-S", FAKE))
        options: dict[str, Any] = {
            "host": host or self.host(),
            "recipe": recipe or Recipe(),
            "cwd": self.cwd,
            "session_dir": self.session_dir,
            "depth": 0,
            "max_depth": 2,
            "host_requests": no_requests,
            "on_background": self.background.append,
            "on_status": self.statuses.append,
        }
        return await self._stack.enter_async_context(SessionKernel(**{**options, **more}))


class Run:
    """Cells with numbered ids; collects what they show."""

    def __init__(self, kernel: SessionKernel) -> None:
        self.kernel = kernel
        self.events: list[OutputEvent] = []
        self.count = 0

    async def __call__(self, code: str, **more: Any) -> Any:
        self.count += 1
        cell_id = more.pop("cell_id", f"cell-{self.count}")
        more.setdefault("on_event", self.events.append)
        return await in_time(self.kernel.execute(code, cell_id=cell_id, **more))

    @property
    def text(self) -> str:
        return "".join(getattr(e, "text", "") for e in self.events)
