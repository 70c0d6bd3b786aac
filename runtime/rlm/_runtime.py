"""
The kernel's core: which request runs, in which order, and how it is closed.

One request at a time, in order of arrival, except interrupt, host_reply, complete, inspect and
shutdown. The loop reads stdin itself; a sync cell needs no task; what a cell has left to say leaves
in one write. Requests are sorted (`_sort`) in whatever context read them (loop, signal handler,
watch) and served (`_step`) on the loop only.
"""

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from rlm_protocol import kernel as k
from rlm_protocol.errors import KernelBusy, MalformedFrame
from rlm_protocol.framing import Refused
from rlm_protocol.limits import INSPECT_MS

from . import _bridge, _capture, _cells, _frames, _protect
from ._cells import Failure
from ._guard import Channels
from ._interrupt import Interrupter, Targets, turns_the_loop
from ._page import ID_BYTES
from ._watch import Watch
from ._wire import Inbox, Wire

if TYPE_CHECKING:
    from ._limits import Memory

SHUTDOWN_S = 1.6
"""After this long a cell that does not end is left to the guard, and `done` is said without it."""
QUEUED_BYTES = 64 * 1024 * 1024
_LOOP_FAILURES = 1000
_PATIENCE_S = SHUTDOWN_S - 0.1
"""Seconds before the end of a shutdown from which on the running cell is interrupted."""
_json = msgspec.json.Encoder().encode

Serial = k.Execute | k.Snapshot | k.Restore | k.ListNames
Urgent = k.HostReply | k.Complete | k.Inspect


class _Queued(NamedTuple):
    request: Serial
    json_id: bytes
    size_bytes: int


class Runtime:
    """One kernel. `serve` does not return; the process ends with code 0 after shutdown or EOF."""

    def __init__(self, channels: Channels, *, doorbell: bool, nonce: str) -> None:
        self.nonce = nonce
        self._sign = b'"nonce":%b' % _json(nonce)
        self._json_id = b"null"
        self.channels = channels
        self.targets = Targets()
        self.wire = Wire(channels.events, channels.page, channels.captured)
        self.inbox = Inbox(channels.requests)
        self.interrupter = Interrupter(self.targets, self._intake_aside, doorbell=doorbell)
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._urgent: deque[tuple[float, Urgent]] = deque()
        self._bad: deque[str] = deque()
        self._reads_seen = 0
        self._cells = 0
        self._forked = False
        self._failures = 0
        self._closing: float | None = None
        self._farewell: k.Done | None = None
        self._after_cell: list[Callable[[], None]] = []
        self._watch = Watch(self._look)
        self._flusher = Watch(self._ship)
        self.outbox = _capture.Outbox(self.wire, self._flusher.wake)
        self.streams = _capture.Streams(self.outbox, self.interrupter)
        self.sources = _cells.Sources()
        self.main = _cells.new_main()
        self.namespace: dict[str, Any] = self.main.__dict__
        self.context = copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._memory = _memory_limit()
        self.loop = self.interrupter.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._make_task)
        asyncio.set_event_loop(self.loop)
        self.bridge = _bridge.Bridge(self.loop, self.wire.put)
        self.interrupter.install()
        if self._memory is not None:
            for watch in (self._watch, self._flusher):
                watch.wake()  # a full kernel could not start their threads
        self._use()
        os.register_at_fork(after_in_child=self._after_fork)

    def _use(self) -> None:
        global _current
        _current = self
        _bridge.use(self.bridge)

    # --- the loop ---------------------------------------------------------------------------------

    @turns_the_loop
    def serve(self) -> NoReturn:
        """Serve until shutdown or end of stdin."""
        self._listen()
        while self._failures < _LOOP_FAILURES:
            try:
                self.loop.run_forever()
            except BaseException:  # a task's SystemExit or KeyboardInterrupt; the task has it too
                self._failures += 1
            if self._forked:
                os._exit(1)
        os._exit(70)  # a cell broke the loop itself: nothing can be served any more

    def _listen(self) -> None:
        try:
            self.loop.add_reader(self.inbox.fd, self._readable)
        except PermissionError:  # a regular file cannot be polled, so a thread makes it a pipe
            self.inbox = Inbox(_as_pipe(self.inbox.fd))
            self.loop.add_reader(self.inbox.fd, self._readable)
        own = [self.wire.fd, self.inbox.fd]
        own += [*self.channels.captured, *self.channels.pipes, *_loop_fds(self.loop)]
        _protect.protect(own)

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel_tasks(self) -> None:
        """Cancel every task that cells left behind."""
        for task in tuple(self._tasks):
            task.cancel()

    def _readable(self) -> None:
        self._failures = 0
        self._intake()
        if self.interrupter.wanted is not None:
            self.interrupter.deliver(sys._getframe())
        self._step()

    # --- intake: any context, writes nothing, runs nothing ----------------------------------------

    def _intake(self) -> None:
        for line in self.inbox.take():
            self._sort(line)
        if self.inbox.ended and self._closing is None:
            self._close(None)

    def _intake_aside(self) -> None:
        """Read for the loop, from a signal handler or the watch."""
        self._intake()
        if self._queue or self._urgent or self._bad or self._closing is not None:
            self.loop.call_soon_threadsafe(self._step)

    def _sort(self, line: bytes | Refused) -> None:
        if isinstance(line, Refused):
            self._bad.append(str(line.error))
            return
        try:
            request = k.decode_request(line)
        except MalformedFrame as why:
            if line.strip():  # a blank line is ignored
                self._bad.append(str(why))
            return
        if isinstance(request, k.Interrupt):
            self.interrupter.aim(request.id)
            return
        if isinstance(request, k.Shutdown):
            self._close(request.id)
            return
        json_id = _json(request.id)
        if len(json_id) > ID_BYTES:
            self._bad.append(f"an id may take {ID_BYTES} bytes")
        elif isinstance(request, (k.HostReply, k.Complete, k.Inspect)):
            self._urgent.append((time.monotonic(), request))
            self._flusher.wake()
        elif self._queued_bytes > QUEUED_BYTES:
            self._bad.append(f"more than {QUEUED_BYTES} bytes of requests wait")
        elif not self.targets.admit(request.id):
            self._bad.append(f"the id {request.id!r:.80} is in flight; the first request goes on")
        else:
            self._queued_bytes += len(line)
            self._queue.append(_Queued(request, json_id, len(line)))

    def _close(self, id_: str | None) -> None:
        """Begin to end: the running cell is soon interrupted, nothing new is begun."""
        if self._closing is None:
            self._closing = time.monotonic() + SHUTDOWN_S
        if id_ is not None:
            self._farewell = k.Done(id=id_, status="ok", nonce=self.nonce)
        self._watch.wake()
        self._flusher.wake()

    # --- the two watching threads -----------------------------------------------------------------

    def _look(self) -> bool:
        """One tick of the watch. Never writes, so that it never waits for the host."""
        if self.inbox.reads == self._reads_seen and self.inbox.waiting():
            self._intake_aside()
        self._reads_seen = self.inbox.reads
        active = self.targets.active
        # A cell that waits for its host is told of the loss first, and may end by itself.
        if self._closing is not None and time.monotonic() > self._closing - _PATIENCE_S:
            self.interrupter.aim(active)
        if active is not None and self.interrupter.wanted == active:
            self.interrupter.ring()
        return active is not None or self._closing is not None

    def _ship(self) -> bool:
        """One tick of the flusher. May wait for the host."""
        busy = bool(self.outbox)
        if busy:
            self.outbox.ship()
        if self._urgent and self._urgent[0][0] + INSPECT_MS / 1000 < time.monotonic():
            self._refuse_urgent()
        if self._closing is not None and time.monotonic() > self._closing:
            self._leave()
        return busy or bool(self._urgent) or self._closing is not None

    def _refuse_urgent(self) -> None:
        """Answer what the busy main thread cannot."""
        kept = []
        while self._urgent:
            since, request = self._urgent.popleft()
            if isinstance(request, k.HostReply):
                kept.append((since, request))
                continue
            done = k.Done(id=request.id, status="error", nonce=self.nonce, reason=KernelBusy.kind)
            self.wire.put(_frames.done(done))
        self._urgent.extendleft(reversed(kept))

    # --- serving: on the loop only ----------------------------------------------------------------

    def _step(self) -> None:
        while True:
            while self._bad:
                self.wire.put(_frames.error(None, "ProtocolError", self._bad.popleft(), []))
            while self._urgent:
                self._serve_urgent(self._urgent.popleft()[1])
            if self._closing is not None:
                self._end_if_free()
                return
            if not self._queue or self.targets.active is not None:
                return
            queued = self._queue.popleft()
            self._queued_bytes -= queued.size_bytes
            self._begin(queued.request, queued.json_id)

    def _serve_urgent(self, request: Urgent) -> None:
        if isinstance(request, k.HostReply):
            self.bridge.reply(request.id, request.data)
            return
        from . import _inspect

        done = _inspect.answer(request, self.namespace)
        self.wire.put(_frames.done(msgspec.structs.replace(done, nonce=self.nonce)))

    def _begin(self, request: Serial, json_id: bytes) -> None:
        id_ = request.id
        self._json_id = json_id
        if self._memory is not None:
            self._memory.cell()
        parked = self.interrupter.begin(id_)
        self.interrupter.install()
        self.streams.install()
        _protect.mend(self.channels.pipes)
        self.wire.page.set_author(json_id)  # what is captured from now on is this request's
        self.context.run(_capture.cell_id.set, id_)
        self._watch.wake()
        if isinstance(request, k.Execute):
            self._execute(request, parked=parked)
            return
        from . import _serial

        try:
            if parked:
                raise KeyboardInterrupt
            done = self.context.run(_serial.serve, request, self)
        except BaseException as error:
            self._finish(id_, Failure(error), b"")
        else:
            self._finish(id_, None, b"", done)

    def _execute(self, request: k.Execute, *, parked: bool) -> None:
        self._cells += 1
        name = f"<cell-{self._cells}>"
        self.sources.add(name, request.code)
        parts: _cells.Parts = (None, None, False)
        value: Any
        try:
            if parked:
                raise KeyboardInterrupt
            parts = _cells.compile_cell(request.code, name)
        except BaseException as error:
            value = Failure(error)
        else:
            if _cells.awaits(parts):
                self._start(request, name, parts)
                return
            try:
                value = self.context.run(_cells.run_sync, parts[0], parts[1], self.namespace)
                if not parts[2]:
                    value = None
            except BaseException as error:
                value = Failure(error)
        self._executed(request, name, parts, value)

    def _start(self, request: k.Execute, name: str, parts: _cells.Parts) -> None:
        running = _cells.run_async(parts[0], parts[1], self.namespace)
        task = self.loop.create_task(running, context=self.context)
        self.interrupter.task = task

        def ended(task: asyncio.Task[Any]) -> None:
            try:
                value = task.result()
            except BaseException as error:  # cancelled before its first step
                value = Failure(error)
            if not parts[2] and type(value) is not Failure:
                value = None
            del task
            self._executed(request, name, parts, value)
            self._step()

        task.add_done_callback(ended)

    def _executed(self, request: k.Execute, name: str, parts: _cells.Parts, value: Any) -> None:
        id_ = request.id
        self.interrupter.task = None
        if self._forked:
            _end_fork(value)
        frame = b""
        if type(value) is Failure:  # isinstance would ask the value for its `__class__`
            if self.interrupter.cancelled == id_:
                value.cancelled_by_interrupt()
        elif value is not None and not request.silent:
            self.namespace["_"] = value
            try:
                text = _cells.exact(self.context.run(_cells.call, repr, value))
                frame = _frames.result(id_, self._json_id, text)
                del text
            except BaseException as error:
                value = Failure(error)
        self._finish(id_, value if type(value) is Failure else None, frame)
        value = None
        self.sources.settle(name, parts)

    def _finish(
        self, id_: str, failure: Failure | None, frame: bytes, done: k.Done | None = None
    ) -> None:
        """
        Close the active request: what it wrote, then its result or error, then `done`.

        A `done` that is given reports what has been done already; an interrupt comes too late.
        """
        if self._memory is not None:
            self._memory.answer()
        if failure is not None:
            last = _frames.error(id_, *self._describe(failure)) + self._done(b"error")
        elif done is None:
            last = frame + self._done(b"ok")
        else:
            last = _frames.done(msgspec.structs.replace(done, nonce=self.nonce))

        def close() -> bytes:
            # The pipes are empty and the lock is held: this is the last moment to be interrupted.
            nonlocal last
            if self.interrupter.pending(id_) and failure is None and done is None:
                last = _frames.error(id_, "KeyboardInterrupt", "", []) + self._done(b"error")
            self.targets.end()
            return last

        self.wire.end(id_, self.outbox.take(), close)
        for hook in self._after_cell:
            hook()
        if self._memory is not None:
            self._memory.idle()

    def _done(self, status: bytes) -> bytes:
        return b'{"event":"done","id":%b,"status":"%b",%b}\n' % (self._json_id, status, self._sign)

    def _describe(self, failure: Failure) -> _cells.Described:
        error, failure.error = failure.error, None  # the traceback holds frames, and they us
        try:
            assert error is not None
            return self.context.run(_cells.describe, error)
        finally:
            del error

    def after_cell(self, hook: Callable[[], None]) -> None:
        """Have `hook` called after each `done`."""
        self._after_cell.append(hook)

    # --- branches ---------------------------------------------------------------------------------

    def stop_threads(self) -> None:
        """Come down to one thread; ours start again when there is something to watch."""
        self._watch.stop()
        self._flusher.stop()

    def inherit(self, origin: "Runtime") -> None:
        """Go on with the names of another runtime, of which this process is a fork."""
        self.namespace, self.context = origin.namespace, origin.context.copy()
        self.sources, self._cells = origin.sources, origin._cells
        self.main = sys.modules["__main__"] = origin.main

    # --- the end ----------------------------------------------------------------------------------

    def _end_if_free(self) -> None:
        self.bridge.lose()
        if self.targets.active is not None:
            return  # the watch interrupts it; when its task has ended, we come back here
        while self._queue:
            id_ = self._queue.popleft().request.id
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
        self._forked = True
        self.wire.silent = True
        self.streams.after_fork()
        _protect.unprotect()
        _bridge.use(None)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (self.wire.fd, self.inbox.fd):
            os.dup2(null, fd, inheritable=False)
        os.close(null)
        self._watch.forget()
        self._flusher.forget()
        selector = getattr(self.loop, "_selector", None)
        if selector is not None:
            selector.close()  # the parent's epoll is shared by fork; a child must not touch it
        import signal

        signal.signal(signal.SIGINT, signal.default_int_handler)


def _memory_limit() -> "Memory | None":
    if "RLM_MEMORY_BYTES" not in os.environ:
        return None
    from . import _limits

    return _limits.from_environment()


_current: Runtime | None = None


def current() -> Runtime:
    """Give this process's runtime. Raises RuntimeError outside of a kernel."""
    if _current is None:
        raise RuntimeError("this is not a kernel: it was not started as `python -m rlm.repl`")
    return _current


def _end_fork(value: Any) -> NoReturn:
    if type(value) is Failure and value.error is not None:
        if isinstance(value.error, SystemExit):
            code = value.error.code
            os._exit(code if isinstance(code, int) else int(code is not None))
        os.write(2, "".join(_cells.describe(value.error)[2]).encode("utf-8", "replace"))
        os._exit(1)
    os._exit(0)


def _loop_fds(loop: asyncio.AbstractEventLoop) -> list[int]:
    holders = [getattr(loop, name, None) for name in ("_selector", "_ssock", "_csock")]
    return [holder.fileno() for holder in holders if holder is not None]


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
