"""
Starts processes and owns them: a block that cannot be left with its process tree alive.

Rule 1: nothing else in the host starts a process. Rule 2: a child is reaped here, by its pid, never
by `waitpid(-1)`. Rule 3: a child is in the orphan ledger from its start to its end. Rule 4: the
loop's own thread spawns, because PDEATHSIG fires when the thread that forked ends.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from rlm_protocol.limits import STDERR_TAIL_BYTES

from . import facts
from .guard import GUARD_FD, GuardLink
from .handles import Handle, Spawned
from .ledger import Ledger, Started
from .pipes import PipeReader, PipeWriter, to_the_end
from .spare import Spare
from .sweep import SPAWN_TAG, adopted, kill_all, reap_adopted, tagged, tree

GUARD_ANSWER_S = 1.0
"""A guard that has not ended its tree by then is killed itself."""
UNKILLABLE_S = 5.0
"""A process that SIGKILL has not ended by then hangs in a system call: it is left to itself."""
DRAIN_S = 0.5
"""Granted for last output after the end: a grandchild may hold the pipe open."""
log = logging.getLogger(__name__)


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended. `code` is negative for a signal; `stderr_tail` its last words."""

    code: int
    stderr_tail: str
    out_of_memory: bool = False
    """Its guard ended it because its tree held too much memory."""

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that ended it."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class Child:
    """One running process. Made by `Processes.spawn`; lives no longer than its block."""

    def __init__(
        self, process: Handle, tag: str, guard: GuardLink | None, *, adopts: bool = False
    ) -> None:
        self._process = process
        self.pid = process.pid
        self.tag = tag
        self.guard = guard
        self.adopts = adopts
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        """Set once: the process is reaped and its last output has been handed over."""
        self.stdin: PipeWriter
        self._stdout: PipeReader
        self._stderr: PipeReader
        self._tail = bytearray()
        self._watch: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def stderr_tail(self) -> str:
        """The last 8 KiB of standard error."""
        return bytes(self._tail).decode(errors="replace")

    @property
    def running(self) -> bool:
        """Tell whether the process has not been reaped yet."""
        return self._process.returncode is None

    def interrupt(self) -> None:
        """Send SIGINT to the kernel alone: by its guard, never to a launcher that stands before."""
        if self.guard is not None:
            self.guard.interrupt()

    def terminate(self) -> None:
        """Ask the process and its group to end (SIGTERM)."""
        if self.guard is None or not self.guard.terminate():
            self._process.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the whole tree at once: by its guard, else the group. The block's end makes sure."""
        if self.guard is not None and self.guard.pid is None:
            # A guard that cannot hear us stands behind a launcher, whose end is its order to kill.
            self._process.signal(signal.SIGKILL, group=False)
        elif self.guard is None or not self.guard.kill():
            self._process.signal(signal.SIGKILL)

    def _serve(
        self, stdin: int, stdout: int, stderr: int, on_stdout: Callable[[bytes], None]
    ) -> None:
        loop = asyncio.get_running_loop()

        def heard(data: bytes) -> None:
            on_stdout(data)
            if not data:
                self._settle()

        self.stdin = PipeWriter(stdin)
        self._stdout = PipeReader(stdout, heard)
        self._stderr = PipeReader(stderr, self._keep_tail)
        pidfd = self._process.open_pidfd()
        if pidfd is not None:
            self._watch = (pidfd, loop)
            loop.add_reader(pidfd, self._reap)
        else:
            threading.Thread(target=self._wait_in_thread, args=(loop,), daemon=True).start()

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed under a block: nobody waits
            loop.call_soon_threadsafe(self._reap)

    def _keep_tail(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-STDERR_TAIL_BYTES]

    def _reap(self) -> None:
        if self._process.poll() is None:
            return
        if self._watch is not None:
            pidfd, loop = self._watch
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._watch = None
        self.stdin.close()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(DRAIN_S, self._close_pipes)
        self._settle()

    def _abandon(self) -> None:
        self.stdin.close()
        self._close_pipes()
        if self._watch is not None:
            pidfd, loop = self._watch
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._watch = None
        if self.guard is not None:
            self.guard.close()

    def _close_pipes(self) -> None:
        self._stderr.close()
        self._stdout.close()

    def _settle(self) -> None:
        if self.running or not self._stdout.closed or self.ended.done():
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._stderr.close()
        code = self._process.returncode
        assert code is not None
        if self.guard is not None:
            self.guard.close()
            code = self.guard.exit_code if self.guard.exit_code is not None else code
        full = self.guard is not None and self.guard.out_of_memory
        self.ended.set_result(Exit(code=code, stderr_tail=self.stderr_tail, out_of_memory=full))


class Processes:
    """All processes of one host. Built once, by app.py."""

    def __init__(self, ledger: Ledger | None) -> None:
        """`ledger` None: nothing is recorded, for tests and for hosts without a home."""
        self._ledger = ledger
        self._children: dict[int, Child] = {}
        self._spares: dict[int, Spare] = {}
        self._starting = threading.Lock()
        """Held from the fork of a child until it is known: a sweep must not take it for a stray."""

    @property
    def running(self) -> int:
        """Number of processes that live, not counting what they have started."""
        return len(self._children)

    @contextlib.asynccontextmanager
    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        on_stdout: Callable[[bytes], None],
        guarded: bool,
        adopts: bool = False,
        hand_over: Mapping[str, socket.socket] = MappingProxyType({}),
        label: str | None = None,
    ) -> AsyncIterator[Child]:
        """
        Own a process, in a session of its own, for the length of the block.

        Leaving the block by any way (end, error, cancellation) ends the process and everything it
        started: its guard is asked to kill the tree, and killed itself if it has not done so in
        1 s; then what it left is swept. Leaving takes 2 s at most, and about 10 ms as a rule.

        Args:
            argv: program and arguments; the program is looked up in `env`'s PATH.
            env: the whole environment; nothing of the host's is added but our two marks.
            cwd: working directory.
            on_stdout: called in the loop with each chunk, then once with b""; must not block.
            guarded: hand over RLM_GUARD_FD. Only for programs that are, or start with, a guard.
            adopts: the program adopts what its descendants orphan, and ends it. What it has not
                ended when it ends itself is swept; what lives under a child of ours is not.
            hand_over: sockets to pass on and close here, by the variable that tells the number.
            label: what people call it; the program's name by default.

        Raises:
            OSError: the program cannot be started. Nothing is left behind.
        """
        tag = secrets.token_hex(8)
        guard = GuardLink(lambda _: None) if guarded else None
        sockets = {**hand_over, **({GUARD_FD: guard.theirs} if guard is not None else {})}
        try:
            with self._starting:
                process, pipes = _start(argv, {**env, SPAWN_TAG: tag}, cwd, sockets)
                child = Child(process, tag, guard, adopts=adopts)
                self._children[child.pid] = child
        except BaseException:
            if guard is not None:
                guard.close()
            raise
        finally:
            for theirs in sockets.values():
                theirs.close()
        async with self._own(child, pipes, on_stdout, label or Path(argv[0]).name):
            yield child

    @contextlib.asynccontextmanager
    async def take(
        self,
        spare: Spare,
        *,
        env: Mapping[str, str],
        cwd: Path,
        on_stdout: Callable[[bytes], None],
        label: str,
    ) -> AsyncIterator[Child]:
        """
        Let a spare live, and own it for the length of the block. All else as `spawn`.

        Raises:
            OSError: it is gone, or cannot have this environment or folder. It has been ended.
        """
        tag = secrets.token_hex(8)
        try:
            spare.live({**env, SPAWN_TAG: tag}, cwd)
        except BaseException:
            await to_the_end(self.discard(spare))
            raise
        child = Child(spare.process, tag, spare.guard)
        self._children[child.pid] = child
        del self._spares[child.pid]
        async with self._own(child, spare.release(), on_stdout, label):
            yield child

    def keep(self, spare: Spare) -> None:
        """Own a spare until it is taken or discarded."""
        self._spares[spare.process.pid] = spare

    async def discard(self, spare: Spare) -> None:
        """End a spare that nobody has taken."""
        await spare.aclose()
        del self._spares[spare.process.pid]

    @contextlib.asynccontextmanager
    async def _own(
        self,
        child: Child,
        pipes: tuple[int, int, int],
        on_stdout: Callable[[bytes], None],
        label: str,
    ) -> AsyncIterator[None]:
        child._serve(*pipes, on_stdout)
        try:
            await self._record(child, label)
            yield
        finally:
            await to_the_end(self._end(child))

    async def _record(self, child: Child, label: str) -> None:
        if self._ledger is None:
            return
        fact = facts.process(child.pid)
        if fact is None:  # it has ended already; its block will say so
            return
        record = Started(
            tag=child.tag,
            pid=child.pid,
            started=fact.started,
            label=label,
            owner=self._ledger.owner,
        )
        await self._write(self._ledger.add, record)

    async def _write(self, write: Callable[..., None], *args: object) -> None:
        # A process without its record is still guarded: a full disk must not stop the work.
        try:
            await to_the_end(asyncio.to_thread(write, *args))
        except OSError as why:
            log.warning("the orphan ledger cannot be written: %s", why)

    async def _end(self, child: Child) -> None:
        if child.running:
            child.kill()
            await asyncio.wait({child.ended}, timeout=GUARD_ANSWER_S)
        if child.running and not child.adopts:
            await asyncio.to_thread(kill_all, lambda table: tree(child.pid, table))
        await asyncio.wait({child.ended}, timeout=UNKILLABLE_S)
        if not child.ended.done():
            child._abandon()
            child._process.close()
            log.error("process %d did not end by SIGKILL; it is left to the next start", child.pid)
            return
        self._children.pop(child.pid)
        if child.guard is None or child.guard.exit_code is None:
            await child._process.swept(GUARD_ANSWER_S)
            await asyncio.to_thread(self._sweep_after, child)
        child._process.close()
        if self._ledger is not None:
            await self._write(self._ledger.remove, child.tag)

    def _sweep_after(self, child: Child) -> None:
        """End what a child without a guard, or with a broken one, has left."""

        def left(table: dict[int, facts.ProcessFact]) -> list[facts.ProcessFact]:
            with self._starting:
                living = list(self._children.values())
                own = {*self._children, *self._spares}
            # Without a mark it may belong to a living child that has no guard to keep it.
            orderly = all(c.guard is not None or c.adopts for c in living)
            orphans = [
                f
                for f in adopted(own, table)
                if orderly and not any(facts.has_variable(f.pid, SPAWN_TAG, c.tag) for c in living)
            ]
            # The mark of one that adopts is also on what it has forked for others.
            return orphans if child.adopts else [*tagged(child.tag, table), *orphans]

        kill_all(left)
        reap_adopted({*self._children, *self._spares})


def _start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    sockets: Mapping[str, socket.socket],
) -> tuple[Spawned, tuple[int, int, int]]:
    """Start a program. Gives our ends of its stdin, stdout and stderr. Raises OSError."""
    numbers = {name: theirs.fileno() for name, theirs in sockets.items()}
    pipes = [os.pipe() for _ in range(3)]
    (stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr) = pipes
    try:
        popen = subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**env, **{name: str(number) for name, number in numbers.items()}},
            cwd=cwd,
            start_new_session=True,
            pass_fds=tuple(numbers.values()),
        )
    except BaseException:
        for fd in (our_stdin, our_stdout, our_stderr):
            os.close(fd)
        raise
    finally:
        for fd in (stdin, stdout, stderr):
            os.close(fd)
    return Spawned(popen), (our_stdin, our_stdout, our_stderr)
