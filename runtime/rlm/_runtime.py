"""
The kernel's core: which request runs, in which order, and how the kernel ends.

One request at a time, in order of arrival, except interrupt, host_reply, complete, inspect and
shutdown. The loop reads stdin itself. Requests are sorted (`_sort`) in whatever context read them
(loop, signal handler, watch) and served (`step`) on the loop only.
"""

import asyncio
import math
import os
import sys
from collections import deque
from typing import Any, NoReturn

import msgspec

from rlm_protocol import kernel as k
from rlm_protocol.errors import KernelBusy, MalformedFrame
from rlm_protocol.framing import Refused
from rlm_protocol.limits import INSPECT_MS

from . import _bridge, _capture, _clock, _frames, _loop, _protect
from ._execution import BROKEN, SERIAL, Execution, Serial
from ._guard import Channels
from ._interrupt import Interrupter, Targets, turns_the_loop
from ._names import own_imports
from ._page import ID_BYTES
from ._watch import Watch
from ._wire import Inbox, Wire

SHUTDOWN_S = 1.6
"""After this long a cell that does not end is left to the guard, and `done` is said without it."""
QUEUED_BYTES = 64 * 1024 * 1024
_SHORT_ID = ID_BYTES // 6 - 1
"""Characters of an id that is surely not too long: none takes more than six bytes in JSON."""
_LOOP_FAILURES = 1000
_PATIENCE_S = SHUTDOWN_S - 0.1
"""Seconds before the end of a shutdown from which on the running cell is interrupted."""

Question = k.Complete | k.Inspect


class Runtime:
    """One kernel. `serve` does not return; the process ends with code 0 after shutdown or EOF."""

    def __init__(self, channels: Channels, *, doorbell: bool, nonce: str) -> None:
        self.nonce = nonce
        self.channels = channels
        self.targets = Targets()
        self.wire = Wire(channels.events, channels.page, channels.captured)
        self.inbox = _inbox(channels.requests)
        self.interrupter = Interrupter(self.targets, self._intake_aside, doorbell=doorbell)
        self._queue: deque[tuple[Serial, bytes, int]] = deque()  # with its id as JSON, its size
        self._queued_bytes = 0
        self._replies: deque[k.HostReply] = deque()
        self._questions: deque[tuple[float, Question]] = deque()  # since when each one waits
        self._bad: deque[str] = deque()
        self._waiting = (self._queue, self._replies, self._questions, self._bad)
        self._reads_seen = 0
        self._failures = 0
        self._closing: float | None = None
        self._farewell: k.Done | None = None
        self.watch = Watch(self._look)
        self._flusher = Watch(self._ship)
        self.outbox = _capture.Outbox(self.wire, self._flusher)
        self.streams = _capture.Streams(self.outbox, self.interrupter)
        self.execution = Execution(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tasks_most = 0
        self.bridge = _bridge.Bridge()
        due = (self.bridge.frames, self._tasks)
        selector = _loop.Selector(self.inbox, self._readable, self._end_turn, due)
        self.loop, loop_fds = _loop.new(selector, self.inbox)
        self.bridge.loop = self.loop
        self.loop.set_task_factory(self._make_task)
        self.interrupter.loop = self.loop
        self.interrupter.install()
        _protect.protect([*self.wire.own_fds, *self.inbox.own_fds, *loop_fds])
        _protect.protect([*channels.captured, *channels.pipes])
        for watch in (self.watch, self._flusher):
            watch.wake()  # later a full kernel, or a broken one, could not start them
        self._use()
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def namespace(self) -> dict[str, Any]:
        """What cells bind their names in."""
        return self.execution.namespace

    def _use(self) -> None:
        global _current
        _current = self
        _bridge.use(self.bridge)

    # --- the loop ---------------------------------------------------------------------------------

    @turns_the_loop
    def serve(self) -> NoReturn:
        """Serve until shutdown or end of stdin."""
        while self._failures < _LOOP_FAILURES:
            try:
                self.loop.run_forever()
            except BaseException:  # a task's SystemExit or KeyboardInterrupt; the task has it too
                self._failures += 1
            if self.execution.forked:
                os._exit(1)
        os._exit(BROKEN)  # a cell broke the loop itself: nothing can be served any more

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        self._tasks.add(task)  # the loop itself keeps only weak references
        return task

    def cancel_tasks(self) -> None:
        """Cancel every task that cells left behind."""
        for task in tuple(self._tasks):
            task.cancel()

    def _readable(self, seen_after: int) -> None:
        """Serve what has come, right where the loop waits for it."""
        self._failures = 0
        lines = self.inbox.take(seen_after)
        if lines is not None:
            alone = None
            try:
                if len(lines) == 1 and not any(self._waiting):
                    alone = self._alone(lines[0])
                if alone is None:
                    self._sort(lines)
            finally:
                if self.inbox.release():
                    self._intake_aside()
            if isinstance(alone, k.Execute):
                self.execution.begin(alone, _frames.encode_text(alone.id))
                return
            if alone is not None:
                self.bridge.reply(alone.id, alone.data)
                return
        if self.interrupter.wanted is not None:
            self.interrupter.deliver(sys._getframe())
        self.step()

    def _alone(self, line: bytes | Refused) -> k.Execute | k.HostReply | None:
        """Decode what came alone while nothing waits. None: it is sorted, and may have to wait."""
        if self.inbox.ended or self._closing is not None or isinstance(line, Refused):
            return None
        try:
            request = k.decode_request(line)
        except MalformedFrame:
            return None
        if isinstance(request, k.Execute) and len(request.id) <= _SHORT_ID:
            free = self.targets.active is None
            return request if free and self.targets.admit(request.id) else None
        return request if isinstance(request, k.HostReply) else None

    def _end_turn(self, idle: bool) -> None:
        """Send what cells have asked their host in this turn; forget tasks that have ended."""
        if self.bridge.frames:
            self.wire.put(self.outbox.take() + self.bridge.take())
        if self._tasks and (idle or len(self._tasks) > self._tasks_most):
            self._tasks.difference_update([t for t in tuple(self._tasks) if t.done()])
            self._tasks_most = 2 * len(self._tasks) + 64  # so that looking costs little per task

    # --- intake: any context, writes nothing, runs nothing ----------------------------------------

    def _intake_aside(self) -> None:
        """Read for the loop, where it cannot: in a signal handler or the watch, say."""
        self._intake()
        if any(self._waiting) or self._closing is not None:
            self.loop.call_soon_threadsafe(self.step)

    def _intake(self) -> None:
        """
        Sort what has come. Who reads also sorts before another may read.

        So an interrupt never overtakes its request.
        """
        again = True
        while again and (lines := self.inbox.take()) is not None:
            try:
                self._sort(lines)
            finally:
                again = self.inbox.release()

    def _sort(self, lines: list[bytes | Refused]) -> None:
        for line in lines:
            self._sort_one(line)
        if self.inbox.ended and self._closing is None:
            self._close(None)

    def _sort_one(self, line: bytes | Refused) -> None:
        if isinstance(line, Refused):
            self._bad.append(str(line.error))
            return
        try:
            request = k.decode_request(line)
        except MalformedFrame as why:
            if line.strip():  # a blank line is ignored
                self._bad.append(str(why))
            return
        if isinstance(request, SERIAL):
            self._enqueue(request, len(line))
        elif isinstance(request, k.HostReply):
            self._replies.append(request)
        elif isinstance(request, k.Interrupt):
            self.interrupter.aim(request.id)
        elif isinstance(request, k.Shutdown):
            self._close(request.id)
        else:
            self._questions.append((_clock.monotonic(), request))
            self._flusher.wake()

    def _enqueue(self, request: Serial, size_bytes: int) -> None:
        json_id = _frames.encode_text(request.id)
        if len(json_id) > ID_BYTES:
            self._bad.append(f"an id may take {ID_BYTES} bytes")
        elif self._queued_bytes > QUEUED_BYTES:
            self._bad.append(f"more than {QUEUED_BYTES} bytes of requests wait")
        elif not self.targets.admit(request.id):
            self._bad.append(f"the id {request.id!r:.80} is in flight; the first request goes on")
        else:
            self._queued_bytes += size_bytes
            self._queue.append((request, json_id, size_bytes))

    def _close(self, id_: str | None) -> None:
        """Begin to end: the running cell is soon interrupted, nothing new is begun."""
        if self._closing is None:
            self._closing = _clock.monotonic() + SHUTDOWN_S
        if id_ is not None:
            self._farewell = k.Done(id=id_, status="ok", nonce=self.nonce)
        self.watch.wake()
        self._flusher.wake()

    # --- the two watching threads -----------------------------------------------------------------

    def _look(self) -> bool:
        """One tick of the watch. Never writes, so that it never waits for the host."""
        if self.inbox.reads == self._reads_seen and self.inbox.waiting():
            self._intake_aside()
        self._reads_seen = self.inbox.reads
        self.interrupter.maybe_blocked = True
        active = self.targets.active
        # A cell that waits for its host is told of the loss first, and may end by itself.
        if self._closing is not None and _clock.monotonic() > self._closing - _PATIENCE_S:
            self.interrupter.aim(active)
        if active is not None and self.interrupter.wanted == active:
            self.interrupter.ring()
        return active is not None or self._closing is not None

    def _ship(self) -> bool:
        """One tick of the flusher. May wait for the host."""
        busy = bool(self.outbox)
        if busy:
            self.outbox.ship()
        if self._questions:
            self._refuse_questions(waiting_since=_clock.monotonic() - INSPECT_MS / 1000)
        if self._closing is not None and _clock.monotonic() > self._closing:
            self._leave()
        return busy or bool(self._questions) or self._closing is not None

    def _refuse_questions(self, *, waiting_since: float) -> None:
        """Answer what the busy main thread cannot."""
        while question := self._next_question(waiting_since):
            done = k.Done(id=question.id, status="error", nonce=self.nonce, reason=KernelBusy.kind)
            self.wire.put(_frames.done(done))

    def _next_question(self, waiting_since: float = math.inf) -> Question | None:
        """Take the first question that has waited since then; of two threads, one gets it."""
        try:
            first = self._questions.popleft()
        except IndexError:
            return None
        if first[0] <= waiting_since:
            return first[1]
        self._questions.appendleft(first)
        return None

    # --- serving: on the loop only ----------------------------------------------------------------

    def step(self) -> None:
        """Serve what has come, until there is nothing or a cell awaits."""
        while True:
            if self._bad or self._replies or self._questions:
                self._serve_at_once()
            if self._closing is not None:
                self._end_if_free()
                return
            if not self._queue or self.targets.active is not None:
                return
            request, json_id, size_bytes = self._queue.popleft()
            self._queued_bytes -= size_bytes
            self.execution.begin(request, json_id)

    def _serve_at_once(self) -> None:
        """Serve what does not wait its turn."""
        while self._bad:
            self.wire.put(_frames.error(None, "ProtocolError", self._bad.popleft(), []))
        while self._replies:
            reply = self._replies.popleft()
            self.bridge.reply(reply.id, reply.data)
        while self._questions and (question := self._next_question()):
            self._answer(question)

    def _answer(self, question: Question) -> None:
        try:
            with own_imports():
                from . import _inspect

            done = _inspect.answer(question, self.namespace)
        except Exception as why:  # a cell broke what it needs: imports, builtins, …
            done = k.Done(id=question.id, status="error", reason=f"{type(why).__name__}: {why}")
        self.wire.put(_frames.done(msgspec.structs.replace(done, nonce=self.nonce)))

    # --- branches ---------------------------------------------------------------------------------

    def stop_threads(self) -> None:
        """Come down to one thread; ours start again when there is something to watch."""
        self.watch.stop()
        self._flusher.stop()

    # --- the end ----------------------------------------------------------------------------------

    def _end_if_free(self) -> None:
        self.bridge.lose()
        if self.targets.active is not None:
            return  # the watch interrupts it; when its task has ended, we come back here
        while self._queue:
            id_ = self._queue.popleft()[0].id
            stopped = k.Done(id=id_, status="error", nonce=self.nonce, reason="shutdown")
            self.wire.put(_frames.done(stopped))
        self._leave()

    def _leave(self) -> NoReturn:
        """Say farewell and end. What the kernel started is swept by its guard."""
        self.outbox.ship()
        if self._farewell is not None:
            self.wire.put(_frames.done(self._farewell))
        os._exit(0)

    def _after_fork(self) -> None:
        """A cell forked: the child never speaks the protocol, and ends when its cell ends."""
        self.execution.forked = True
        self.wire.silent = True
        self.streams.after_fork()
        _protect.unprotect()
        _bridge.use(None)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (self.wire.fd, self.inbox.fd):
            os.dup2(null, fd, inheritable=False)
        os.close(null)
        self.watch.forget()
        self._flusher.forget()
        selector = getattr(self.loop, "_selector", None)
        if selector is not None:
            selector.close()  # the parent's epoll is shared by fork; a child must not touch it
        import signal

        signal.signal(signal.SIGINT, signal.default_int_handler)


_current: Runtime | None = None


def current() -> Runtime:
    """Give this process's runtime. Raises RuntimeError outside of a kernel."""
    if _current is None:
        raise RuntimeError("this is not a kernel: it was not started as `python -m rlm.repl`")
    return _current


def _inbox(fd: int) -> Inbox:
    try:
        return Inbox(fd)
    except PermissionError:  # a regular file cannot be polled, so a thread makes it a pipe
        return Inbox(_as_pipe(fd))


def _as_pipe(fd: int) -> int:
    import threading

    read_end, write_end = os.pipe()

    def copy() -> None:
        while data := os.read(fd, 65536):
            view = memoryview(data)
            while view:
                view = view[os.write(write_end, view) :]
        os.close(write_end)

    threading.Thread(target=copy, name="rlm-stdin", daemon=True).start()
    return read_end
