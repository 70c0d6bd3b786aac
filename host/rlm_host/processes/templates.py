"""
Templates: processes from which kernels are forked instead of started.

One template for each set of what acts at a Python's start; each keeps a spare ready. All of it is
an optimisation: whoever finds no template, or a broken one, starts cold. Rule 1: two starts share a
template only if a cold start could not tell them apart (`TemplateKey`). Rule 2: a template is made
in the background, after a start that went well; nobody waits for it. Rule 3: whatever is wrong with
it ends it, and one that goes wrong again is not made any more.
"""

import asyncio
import contextlib
import functools
import logging
import os
import re
import resource
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from rlm_protocol import warm
from rlm_protocol.framing import UNDECODABLE

from . import facts
from .handles import Forked
from .pipes import to_the_end
from .spare import Spare
from .spawn import Child, Processes

SETTLE_S = 0.25
"""A host that ends sooner after its first start has made no template for nothing."""
PREPARE_S = 60.0
"""Large modules may be loaded before the template is ready."""
ANSWER_S = 2.0
"""A template that has not forked by then is ended."""
END_S = 1.0
KEPT = 4
"""Templates at once; the one that was used longest ago goes."""
FAILURES = 2
_ACTS = re.compile(
    r"PYTHON.*|LC_.*|LANG|LANGUAGE|TZ|TZDIR|LD_.*|MALLOC_.*|GLIBC_TUNABLES|HOME"
    r"|(OMP|OPENBLAS|GOTO|MKL|BLIS|KMP|NUMEXPR)_.*"
)
"""Variables that a Python, its loader or its numeric libraries read before any code runs."""
_OF_ONE_START = re.compile(r"RLM_.*")
_MESSAGE_BYTES = 64 * 1024
log = logging.getLogger(__name__)


class TemplateKey(msgspec.Struct, frozen=True, kw_only=True):
    """All that acts at a start and cannot be changed after it."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: Path
    """The start's folder where a variable may hold a path relative to it, else the root."""
    preload: tuple[str, ...]
    program: tuple[int, int] | None
    """Inode and time of change of the interpreter."""
    inherited: tuple[object, ...]
    """What a child inherits from this process: umask and resource limits."""


class TemplateLost(Exception):
    """The template is gone, or does not do what it is for."""


_Answer = tuple[warm.Told, list[int]]
T = TypeVar("T")


def key_of(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, preload: Sequence[str] = ()
) -> TemplateKey:
    """
    Say which template serves a start.

    With `preload` all variables count: a module that is loaded early may read any of them.
    """
    acting = {
        name: value
        for name, value in env.items()
        if _ACTS.fullmatch(name) or (preload and not _OF_ONE_START.fullmatch(name))
    }
    relative = any(name.startswith(("PYTHON", "LD_")) for name in acting)
    return TemplateKey(
        argv=tuple(argv),
        env=tuple(sorted(acting.items())),
        cwd=cwd if relative or preload else Path("/"),
        preload=tuple(preload),
        program=_program(argv[0]),
        inherited=(facts.umask(), *(resource.getrlimit(limit) for limit in _LIMITS)),
    )


_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def _program(path: str) -> tuple[int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


@contextlib.asynccontextmanager
async def open_template(processes: Processes, key: TemplateKey) -> AsyncIterator["Template"]:
    """
    Own a template for the length of the block; it is ready when the block begins.

    Leaving ends it; what it has forked lives on, and is ours then.

    Raises:
        TemplateLost: it cannot be made, or does not get ready.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = Template(ours, processes)
    try:
        async with processes.spawn(
            key.argv,
            env=dict(key.env),
            cwd=key.cwd,
            on_stdout=lambda _: None,
            guarded=False,
            adopts=True,
            hand_over={warm.TEMPLATE_FD: theirs},
            label="kernel template",
        ) as child:
            try:
                await made._prepare(child, key.preload)
                yield made
            finally:
                made.close()
                await to_the_end(asyncio.wait({child.ended}, timeout=END_S))
    except OSError as why:
        raise TemplateLost(str(why)) from why
    finally:
        made.close()


class Template:
    """Our end of one template. Made by `open_template`."""

    def __init__(self, link: socket.socket, processes: Processes) -> None:
        """Own `link`."""
        self._link = link
        self._processes = processes
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._answers: deque[asyncio.Future[_Answer]] = deque()
        self._ends: dict[int, asyncio.Event] = {}
        self.on_lost: Callable[[], None] = lambda: None
        """Called when it can fork no more."""
        link.setblocking(False)
        self._loop.add_reader(link, self._readable)

    @property
    def pid(self) -> int:
        """The template's pid."""
        assert self._child is not None
        return self._child.pid

    @property
    def lost(self) -> bool:
        """Tell whether it can fork no more."""
        return self._link.fileno() == -1

    async def fork(self) -> Spare:
        """Have a guard and a kernel forked that wait for an environment. Raises TemplateLost."""
        try:
            spare = Spare()
        except OSError as why:
            raise TemplateLost(str(why)) from why
        sent: asyncio.Future[_Answer] | None = None
        try:
            with spare.theirs:
                sent = self._send(warm.Fork(), spare.to_send)
            born, (pidfd,) = await self._answer(sent, warm.Born, ANSWER_S)
            swept = self._ends[born.pid]
        except (TemplateLost, asyncio.CancelledError, ValueError, KeyError) as why:
            spare.close()  # a guard that holds the other ends goes with them
            if sent is not None:
                _let_go(sent)
            if isinstance(why, TemplateLost | asyncio.CancelledError):
                raise
            raise TemplateLost("what it forked is gone already, or cannot be held") from why
        spare.process = Forked(born.pid, pidfd, swept)
        self._processes.keep(spare)
        return spare

    def close(self) -> None:
        """Let go of it: it ends without those that it has forked."""
        if self.lost:
            return
        with contextlib.suppress(OSError):
            self._link.send(warm.encode(warm.Retire()))
        self._loop.remove_reader(self._link)
        self._link.close()
        for swept in self._ends.values():
            swept.set()
        for waiting in self._answers:
            if not waiting.done():
                waiting.set_exception(TemplateLost(f"the template is gone. {self._last_words()}"))
        self.on_lost()

    def _last_words(self) -> str:
        return self._child.stderr_tail if self._child is not None else ""

    async def _prepare(self, child: Child, preload: Sequence[str]) -> None:
        self._child = child
        child.stdin.close()
        sent = self._send(warm.Prepare(preload=tuple(preload)), ())
        await self._answer(sent, warm.Ready, PREPARE_S)

    def _send(self, order: warm.Order, fds: Sequence[int]) -> "asyncio.Future[_Answer]":
        try:
            socket.send_fds(self._link, [warm.encode(order)], fds)
        except OSError as why:
            raise TemplateLost(str(why)) from why
        waiting: asyncio.Future[_Answer] = self._loop.create_future()
        self._answers.append(waiting)
        return waiting

    async def _answer(
        self, sent: "asyncio.Future[_Answer]", wanted: type[T], limit_s: float
    ) -> tuple[T, list[int]]:
        try:
            async with asyncio.timeout(limit_s):
                told, fds = await sent
        except TimeoutError:
            if self._child is not None:
                self._child.kill()
            self.close()
            raise TemplateLost("the template does not answer") from None
        if isinstance(told, wanted):
            return told, fds
        raise TemplateLost(told.reason if isinstance(told, warm.Refused) else "a wrong answer")

    def _readable(self) -> None:
        while not self.lost:
            try:
                data, fds, _, _ = socket.recv_fds(self._link, _MESSAGE_BYTES, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, fds = b"", []
            try:
                told = warm.decode_told(data) if data else None
            except UNDECODABLE:
                told = None
            if told is None:
                self.close()
            elif isinstance(told, warm.Gone):
                if (swept := self._ends.pop(told.pid, None)) is not None:
                    swept.set()
            elif self._answers:
                if isinstance(told, warm.Born):
                    self._ends[told.pid] = asyncio.Event()
                if not (waiting := self._answers.popleft()).done():
                    waiting.set_result((told, fds))
                    continue
            for fd in fds:  # nobody waits for it any more: its guard sees that by itself
                os.close(fd)


def _let_go(sent: "asyncio.Future[_Answer]") -> None:
    """Close what came with an answer that nobody takes."""
    if sent.done() and not sent.cancelled() and sent.exception() is None:
        for fd in sent.result()[1]:
            os.close(fd)


class Templates:
    """All templates of one host. Starts nothing by itself. `aclose` ends them."""

    def __init__(self, processes: Processes, preload: Sequence[str] = ()) -> None:
        """`preload` names modules that templates load for their kernels."""
        self.preload = tuple(preload)
        self._processes = processes
        self._keepers: dict[TemplateKey, _Keeper] = {}  # the least recently used first
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: Counter[TemplateKey] = Counter()
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Name the templates that are ready: each has a spare that waits."""
        return tuple(pid for keeper in self._keepers.values() if (pid := keeper.ready_pid))

    async def take(self, key: TemplateKey) -> Spare | None:
        """Give a spare for this start; None: there is no template, start cold."""
        keeper = self._keepers.get(key)
        if keeper is None:
            return None
        try:
            return await keeper.take()
        except TemplateLost as why:
            log.info("a kernel starts cold: %s", why)
            return None

    def worked(self, key: TemplateKey) -> None:
        """Note that a start from a spare went well."""
        self._failures.pop(key, None)

    def failed(self, key: TemplateKey, why: object) -> None:
        """Note that a start from a spare went wrong: this template starts nothing any more."""
        log.warning("a kernel could not be started from its template: %s", why)
        self._failures[key] += 1
        self.drop(key)

    def drop(self, key: TemplateKey) -> None:
        """End the template for these starts: it is out of date."""
        if (keeper := self._keepers.pop(key, None)) is not None:
            keeper.task.cancel()

    def want(self, key: TemplateKey) -> None:
        """Have a template with a spare soon, unless it has gone wrong before. Waits for nothing."""
        keeper = self._keepers.pop(key, None)
        if keeper is None or keeper.over:
            if self._closed or self._failures[key] >= FAILURES:
                return
            keeper = _Keeper(self._processes, key)
            self._tasks.add(keeper.task)
            keeper.task.add_done_callback(functools.partial(self._ended, key))
        self._keepers[key] = keeper
        keeper.refill()
        if len(self._keepers) > KEPT:
            self._keepers.pop(next(iter(self._keepers))).task.cancel()

    async def aclose(self) -> None:
        """End all, for good. Kernels that were started from them are not touched."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _ended(self, key: TemplateKey, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        self._failures[key] += 1
        why = task.exception()
        expected = isinstance(why, TemplateLost)
        log.warning("a template of kernels ended: %s", why, exc_info=None if expected else why)


class _Keeper:
    """Keeps one template alive, and one spare of it."""

    def __init__(self, processes: Processes, key: TemplateKey) -> None:
        self._processes = processes
        self._template: Template | None = None
        self._spare: Spare | None = None
        self._over = False
        self._stir = asyncio.Event()
        self.task = asyncio.create_task(self._keep(key))

    @property
    def over(self) -> bool:
        """Tell whether its template is gone, or will not come."""
        return self._over or self.task.done()

    @property
    def ready_pid(self) -> int | None:
        """Pid of the template, while a spare of it waits."""
        return self._template.pid if self._template is not None and self._spare else None

    def refill(self) -> None:
        """Have a new spare forked if the last one was taken."""
        self._stir.set()

    async def take(self) -> Spare:
        """Give the spare, or one that is forked now. Raises TemplateLost."""
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.alive:
                return spare
            await to_the_end(self._processes.discard(spare))
        if self._template is None:
            raise TemplateLost("its template is not ready yet")
        return await self._template.fork()

    async def _keep(self, key: TemplateKey) -> None:
        await asyncio.sleep(SETTLE_S)
        async with open_template(self._processes, key) as template:
            template.on_lost = self._stir.set
            self._template = template
            try:
                while not template.lost:
                    self._stir.clear()
                    if self._spare is None:
                        self._spare = await template.fork()
                    await self._stir.wait()
                raise TemplateLost("it was lost")
            finally:
                self._over, self._template = True, None
                spare, self._spare = self._spare, None
                if spare is not None:
                    await to_the_end(self._processes.discard(spare))
