"""
One request after the other, in the namespace: opened, run, closed with what it has to say.

A cell that does not await needs no task. What is left to say of it (output, result or error,
`done`) leaves in one write, once every byte that it has captured has left.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from rlm_protocol import kernel as k

from . import _capture, _cells, _frames, _protect
from ._cells import Failure
from ._names import own_imports

if TYPE_CHECKING:
    from ._limits import Memory
    from ._runtime import Runtime

BROKEN = 70
"""The exit code of a kernel in which cells have broken what the runtime stands on."""

Serial = k.Execute | k.Snapshot | k.Restore | k.ListNames
"""What waits its turn."""
SERIAL = (k.Execute, k.Snapshot, k.Restore, k.ListNames)


class Execution:
    """Runs requests for a runtime, and holds what lasts from cell to cell."""

    def __init__(self, runtime: "Runtime") -> None:
        self.main = _cells.new_main()
        self.namespace: dict[str, Any] = self.main.__dict__
        self.context = copy_context()
        """Of all cells, so that a context variable set by one is seen by the next."""
        self.memory = _memory_limit()
        self.forked = False
        self._runtime = runtime
        self._watch = runtime.watch
        self._pipes = runtime.channels.pipes
        self._streams = runtime.streams
        self._wire = runtime.wire
        self._outbox = runtime.outbox
        self._interrupter = runtime.interrupter
        self._ok = b',"status":"ok","nonce":"%b"}\n' % runtime.nonce.encode()
        self._failed = b',"status":"error","nonce":"%b"}\n' % runtime.nonce.encode()
        self._sources = _cells.Sources()
        self._cells = 0
        self._id = ""
        self._json_id = b"null"
        self._after: list[Callable[[], None]] = []

    def inherit(self, origin: "Execution") -> None:
        """Go on with the names of another kernel's, of which this process is a fork."""
        self.namespace, self.context = origin.namespace, origin.context.copy()
        self._sources, self._cells = origin._sources, origin._cells
        self.main = sys.modules["__main__"] = origin.main

    def after_cell(self, hook: Callable[[], None]) -> None:
        """Have `hook` called after each `done`."""
        self._after.append(hook)

    def begin(self, request: Serial, json_id: bytes) -> None:
        """Run a request to its `done`; a cell that awaits goes on as a task."""
        if not self._watch.awake:
            self._watch.wake()
        self._id, self._json_id = request.id, json_id
        parked = self._interrupter.begin(request.id)
        try:
            if self.memory is not None:
                self.memory.cell()
            self._streams.install()
            if _protect.maybe_lost:
                _protect.mend(self._pipes)
            self._wire.page.set_author(json_id)  # what is captured from now on is this request's
            if isinstance(request, k.Execute):
                self.context.run(self._execute, request, parked)
            else:
                self.context.run(self._serve, request, parked)
        except BaseException as error:
            self._answer_all_the_same(error)

    def _serve(self, request: k.Snapshot | k.Restore | k.ListNames, parked: bool) -> None:
        _capture.cell_id.set(request.id)
        try:
            if parked:
                raise KeyboardInterrupt
            with own_imports():
                from . import _serial
            done = _serial.serve(request, self.namespace)
        except BaseException as error:
            self._finish(Failure(error), b"")
        else:
            self._finish(None, b"", msgspec.structs.replace(done, nonce=self._runtime.nonce))

    def _execute(self, request: k.Execute, parked: bool) -> None:
        _capture.cell_id.set(request.id)
        self._cells += 1
        name = f"<cell-{self._cells}>"
        self._sources.add(name, request.code)
        parts: _cells.Parts = (None, None, False)
        value: Any
        try:
            if parked:
                raise KeyboardInterrupt
            parts = _cells.compile_cell(request.code, name)
            if _cells.awaits(parts):
                self._start(request, name, parts)
                return
            value = _cells.run_sync(parts[0], parts[1], self.namespace)
        except BaseException as error:
            value = Failure(error)
        self._executed(request, name, parts, value)

    def _start(self, request: k.Execute, name: str, parts: _cells.Parts) -> None:
        running = _cells.run_async(parts[0], parts[1], self.namespace)
        # Not by the loop's factory, which keeps track of the tasks that cells leave behind.
        task = asyncio.Task(running, loop=self._runtime.loop, context=self.context)
        self._interrupter.task = task

        def ended(task: asyncio.Task[Any]) -> None:
            try:
                value = task.result()
            except BaseException as error:  # cancelled before its first step
                value = Failure(error)
            del task
            self._interrupter.task = None
            try:
                self.context.run(self._executed, request, name, parts, value)
            except BaseException as error:
                self._answer_all_the_same(error)
            finally:
                self._runtime.step()

        task.add_done_callback(ended)

    def _executed(self, request: k.Execute, name: str, parts: _cells.Parts, value: Any) -> None:
        if self.forked:
            _end_fork(value)
        frame = b""
        failure: Failure | None = None
        if type(value) is Failure:  # isinstance would ask the value for its `__class__`
            failure = value
            if self._interrupter.cancelled == request.id:
                failure.cancelled_by_interrupt()
        elif value is not None and not request.silent:
            self.namespace["_"] = value
            try:
                frame = _frames.result(request.id, self._json_id, _cells.text_of(value))
            except BaseException as error:
                failure = Failure(error)
        self._finish(failure, frame)
        value = None
        self._sources.settle(name, parts)

    def _finish(self, failure: Failure | None, frame: bytes, done: k.Done | None = None) -> None:
        """
        Close the active request: what it wrote, then its result or error, then `done`.

        A `done` that is given reports what has been done already; an interrupt comes too late.
        """
        if self.memory is not None:
            self.memory.answer()
        if failure is not None:
            last = self._error(*self._described(failure))
        elif done is None:
            last = frame + b'{"event":"done","id":' + self._json_id + self._ok
        else:
            last = _frames.done(done)
        written = self._outbox.take() if self._outbox.items else b""
        self._wire.fence()
        # The pipes are empty and the lock is held: this is the last moment to be interrupted.
        if self._interrupter.end() and failure is None and done is None:
            last = self._error("KeyboardInterrupt", "", [])
        self._wire.finish(self._json_id, written + last)
        for hook in self._after:
            hook()
        if self.memory is not None:
            self.memory.idle()

    def _answer_all_the_same(self, error: BaseException) -> None:
        """
        Answer a request although a cell has broken what the runtime stands on.

        Where even that fails, and where `done` may be out by half, the process ends: the host then
        starts another, and never waits for one that lives on deaf.
        """
        if self._runtime.targets.active is None:
            raise error  # it has been answered
        try:
            if self.forked or _went_through(error, self._finish):
                raise error
            self._finish(Failure(error), b"")
        except BaseException:
            os._exit(1 if self.forked else BROKEN)

    def _error(self, ename: str, evalue: str, traceback: list[str]) -> bytes:
        frame = _frames.error(self._id, ename, evalue, traceback)
        return frame + b'{"event":"done","id":' + self._json_id + self._failed

    def _described(self, failure: Failure) -> _cells.Described:
        error, failure.error = failure.error, None  # the traceback holds frames, and they us
        try:
            assert error is not None
            return _cells.describe(error)
        finally:
            del error


def _went_through(error: BaseException, method: Callable[..., Any]) -> bool:
    code = method.__func__.__code__  # type: ignore[attr-defined]
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code is code:
            return True
        at = at.tb_next
    return False


def _memory_limit() -> "Memory | None":
    if "RLM_MEMORY_BYTES" not in os.environ:
        return None
    from . import _limits

    return _limits.from_environment()


def _end_fork(value: Any) -> NoReturn:
    """End a child of a cell as a program ends: it may not speak the protocol."""
    if type(value) is Failure and value.error is not None:
        if isinstance(value.error, SystemExit):
            code = value.error.code
            os._exit(code if isinstance(code, int) else int(code is not None))
        os.write(2, "".join(_cells.describe(value.error)[2]).encode("utf-8", "replace"))
        os._exit(1)
    os._exit(0)
