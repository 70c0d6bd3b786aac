"""
A small correct runtime and its mutants: `reference_runtime.py [MUTANT]`. Linux.

It exists to test the conformance kit. It keeps every promise in the plainest way, whatever that
costs: files behind fds 1 and 2, a frame per write, one lock. With the name of a mutant it breaks
one promise on purpose: each `broken("...")` below is one mutant. Not a model for a real runtime.
"""

import ast
import asyncio
import contextvars
import ctypes
import inspect
import linecache
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
import types
from collections import deque
from typing import Any

import msgspec
import reference_snapshot
from mutant import broken
from reference_streams import TEXT_CHARS, Capture, Stream, Wire

from rlm_protocol import kernel
from rlm_protocol.conformance.child import children, end_processes
from rlm_protocol.errors import MalformedFrame
from rlm_protocol.framing import NEED_DATA, LineReceiver, Refused
from rlm_protocol.limits import KERNEL_FRAME_BYTES, KERNEL_REQUEST_BYTES, RESULT_REPR_CHARS

NONCE, FEATURES = "0f1e2d", ["silent", "complete", "inspect", "detail", "length", "nonce"]
TEXT_CAP = 30_000
PARSE_ONLY, AWAIT = ast.PyCF_ONLY_AST, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
PR_SET_CHILD_SUBREAPER = 36
author: contextvars.ContextVar[str | None] = contextvars.ContextVar("author", default=None)


class Runtime:
    """The loop on the main thread, the reader on another, one request at a time."""

    def __init__(self) -> None:
        self.requests_fd = os.dup(0)
        self.wire = Wire(os.dup(1))
        with tempfile.TemporaryFile() as nothing:
            nothing.write(b"42\n" if broken("stdin-speaks") else b"")
            nothing.seek(0)
            os.dup2(nothing.fileno(), 0)
        sys.stdin = os.fdopen(0, closefd=False)
        self.main = types.ModuleType("__main__")
        self.main.__dict__["__builtins__"] = __builtins__
        self.pid, self.closing, self.farewell = os.getpid(), False, None
        self.active: str | None = None
        self.last: str | None = None
        self.task: asyncio.Task[Any] | None = None
        self.queue: deque[Any] = deque()
        self.turn = threading.Lock()
        self.wake = asyncio.Event()
        self.parked: set[str] = set()
        self.hit: str | None = None
        self.forced = self.begun = False
        self.used: set[str] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.pending: dict[str, asyncio.Future[Any]] = {}
        self.asked_by: dict[str, str | None] = {}
        self.given_up: set[str] = set()
        self.lost, self.cells, self.asked, self.held = False, 0, 0, []
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._new_task)
        self.idle = threading.Event()
        self._install_modules()

    # --- telling ----------------------------------------------------------------------------------

    def author(self) -> str | None:
        if threading.current_thread() is not threading.main_thread():
            return self.active if broken("thread-as-active") else None
        return self.active if broken("task-as-active") else author.get()

    def raw_author(self) -> str | None:
        return self.active or self.last if broken("idle-as-last") else self.active

    def tell(self, stream: str, id_: str | None, text: str) -> None:
        if broken("flood-cut"):
            text = text[:1_000_000]
        if broken("stderr-mixed"):
            stream = "stdout"
        for at in range(0, len(text), TEXT_CHARS):
            event = {"event": stream, "id": id_, "text": text[at : at + TEXT_CHARS]}
            if broken("buffered") or (broken("result-first") and id_):
                self.held.append(event)
            else:
                self.wire.send(event)

    def refuse(self, why: str) -> None:
        error = {"event": "error", "id": None, "ename": "ProtocolError", "evalue": why}
        self.wire.send({**error, "traceback": []})

    def done(self, id_: str, status: str, **fields: Any) -> None:
        event = {"event": "done", "id": id_, "status": status, "nonce": NONCE, **fields}
        if broken("nonce-missing"):
            del event["nonce"]
        for _ in range(2 if broken("done-twice") else 1):
            self.wire.send(event)

    # --- reading ----------------------------------------------------------------------------------

    def read(self) -> None:
        """Take lines until the end of the stream; on a thread of its own."""
        limit = 1024 * 1024 if broken("large-refused") else KERNEL_REQUEST_BYTES
        lines = LineReceiver(max_frame_bytes=limit)
        while data := os.read(self.requests_fd, 1 << 16):
            if broken("utf8-per-read"):
                data = data.decode("utf-8", "replace").encode()
            lines.receive_data(data)
            while (line := lines.next_frame()) is not NEED_DATA:
                if isinstance(line, Refused):
                    for _ in range(2 if broken("oversized-twice") else 1):
                        self.refuse(str(line.error))
                elif line.strip() or broken("blank-refused"):
                    self.line(line)
        self.close(None)

    def line(self, line: bytes) -> None:
        if broken("id-coerced"):
            line = re.sub(rb'"id":\s*([\d.]+)', rb'"id":"\1"', line)
        try:
            request = kernel.decode_request(line)
        except MalformedFrame as why:
            if broken("unknown-ignored") and b'"type":"' in line:
                return
            if not broken("malformed-silent"):
                self.refuse(str(why))
            return
        if isinstance(request, kernel.Interrupt):
            self.interrupt(request.id)
        elif isinstance(request, kernel.HostReply):
            self.loop.call_soon_threadsafe(self.replied, request)
        elif isinstance(request, kernel.Complete | kernel.Inspect):
            self.loop.call_soon_threadsafe(self.look_up, request)
        elif isinstance(request, kernel.Shutdown):
            self.close(request.id)
        elif self.in_flight(request.id) and not broken("duplicate-runs"):
            self.refuse(f"the id {request.id!r} is in flight")
        else:
            self.used.add(request.id)
            with self.turn:
                add = self.queue.appendleft if broken("overtakes") else self.queue.append
                add(request)
            self.loop.call_soon_threadsafe(self.wake.set)

    def in_flight(self, id_: str) -> bool:
        if broken("id-once"):
            return id_ in self.used
        return id_ == self.active or any(request.id == id_ for request in self.queue)

    # --- interrupts -------------------------------------------------------------------------------

    def interrupt(self, id_: str | None) -> None:
        with self.turn:
            self._interrupt(id_)

    def _interrupt(self, id_: str | None) -> None:
        waiting = [request.id for request in self.queue]
        target = id_ or self.active or next(iter(waiting), None)
        if broken("unknown-hits") and id_ not in (*waiting, *self.used, None):
            target = self.active
        if broken("by-id-hits-running") and target in waiting:
            target = self.active
        if target is not None and target == self.active:
            self.ring()
        elif target in waiting and not broken("not-parked"):
            self.parked.add(target if id_ or not broken("untargeted-stays") else "")
        elif (broken("idle-parks") and id_ is None) or (
            broken("finished-parks") and id_ in self.used
        ):
            self.parked.add("")

    def ring(self) -> None:
        self.hit = self.active
        self.knock()

    def knock(self) -> None:
        """Have the main thread look at `hit`; repeated until it could deliver it."""
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def on_signal(self, _number: int, frame: types.FrameType | None) -> None:
        """Hit the active cell: raise in its code, else cancel its wait."""
        if self.hit is None or self.hit != self.active or not self.begun:
            return
        if broken("frames-torn"):
            self.hit = None
            raise KeyboardInterrupt
        inside = frame
        while inside is not None and not inside.f_code.co_filename.startswith("<cell-"):
            inside = None if broken("own-frames-only") else inside.f_back
        if inside is None and asyncio.current_task(self.loop) is self.task:
            return  # our own code: the next knock finds the cell's, or `cell` looks at its end
        if inside is not None and asyncio.current_task(self.loop) is self.task:
            self.hit = None
            self.parked |= {""} if broken("lingers") else set()
            raise self.interruption()
        self.forced = True
        self.hit = None
        doomed = asyncio.all_tasks(self.loop) if broken("cancels-all") else {self.task}
        for task in doomed if not broken("goes-on") else ():
            self.loop.call_soon_threadsafe(task.cancel)
        if broken("goes-on"):
            self.loop.call_soon_threadsafe(self.given.set_result, None)
        if inside is not None and not broken("starved"):
            raise KeyboardInterrupt

    def interruption(self) -> BaseException:
        if broken("catchable"):
            return type("KeyboardInterrupt", (Exception,), {})()
        return RuntimeError("stop") if broken("interrupt-renamed") else KeyboardInterrupt()

    # --- serving ----------------------------------------------------------------------------------

    def serve(self) -> None:
        ready = {"event": "ready", "protocol": 7 if broken("announces-7") else 3}
        ready |= {"python": sys.version.split()[0], "nonce": NONCE, "features": FEATURES}
        for _ in range(2 if broken("ready-twice") else 1):
            self.wire.send(ready)
        self.capture = Capture(self)
        ctypes.CDLL(None).prctl(
            PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
        )  # leftovers of cells become our children
        threading.Thread(target=self.read, daemon=True).start()
        asyncio.set_event_loop(self.loop)
        self.loop.create_task(self._serve())
        while True:  # a cell may stop the loop, and a task may throw through it
            try:
                self.loop.run_forever()
            except BaseException:
                if broken("exit-leaves"):
                    raise

    async def _serve(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.queue and not self.closing:
                await self.request(self.queue[0])
            self.idle.set()

    async def request(self, request: Any) -> None:
        if not broken("handler-kept") or self.cells == 0:
            signal.signal(signal.SIGINT, self.on_signal)
        self.hit, self.forced, self.begun = None, False, False
        self.given = self.loop.create_future()
        context = contextvars.copy_context()
        context.run(author.set, request.id)
        self.idle.clear()
        work = self.cell if isinstance(request, kernel.Execute) else self.other
        with self.turn:  # to the reader, a request waits or it is active, never neither
            self.task = self.loop.create_task(work(request), context=context)
            self.active = self.last = self.queue.popleft().id
        if self.parked & {request.id, ""}:
            if not (broken("untargeted-stays") and "def broken" in getattr(request, "code", "")):
                self.parked -= {request.id, ""}
            self.ring()
        await asyncio.wait({self.task, self.given}, return_when=asyncio.FIRST_COMPLETED)
        events, status, fields = (
            ([self.interrupted()], "error", {})
            if self.given.done() or self.task.cancelled()
            else self.task.result()
        )
        for event in events if broken("result-first") else ():
            self.wire.send(event)
        with self.capture.lock:
            if not broken("no-fence"):
                self.capture.drain(final=True)
            self.active = None
        for event in self.held + ([] if broken("result-first") else events):
            self.wire.send(event)
        self.held.clear()
        if broken("detached-lost"):
            for id_, future in self.pending.items():
                if self.asked_by[id_] == request.id and not future.done():
                    future.set_exception(RuntimeError("the cell is over"))
        self.done(request.id, status, **fields)

    def interrupted(self) -> dict[str, Any]:
        return self.error_event(asyncio.CancelledError() if broken("cancelled") else None)

    async def cell(self, request: kernel.Execute) -> tuple[list[Any], str, dict[str, Any]]:
        """Run code; give the events that end it. Nothing that the code does gets past here."""
        self.begun = True
        self.cells += 1
        sys.stdout, sys.stderr = Stream(self, "stdout", 1), Stream(self, "stderr", 2)
        name = f"<cell-{self.cells}>"
        namespace = dict(vars(self.main)) if broken("fresh-names") else vars(self.main)
        if broken("partial-lost"):
            namespace = dict(namespace)
        events: list[Any] = []
        status = "ok"
        try:
            value = await self.run(request.code, name, namespace)
            if broken("partial-lost"):
                vars(self.main).update(namespace)
            if (value is not None or broken("none-shown")) and (
                not request.silent or broken("silent-speaks")
            ):
                if not broken("semicolon-hides") or not request.code.rstrip().endswith(";"):
                    events = [self.result_event(request.id, value)]
                if not broken("last-unbound"):
                    vars(self.main)["_"] = value
            if self.hit == request.id:
                raise KeyboardInterrupt
        except BaseException as error:
            if broken("exit-leaves") and isinstance(error, SystemExit):
                os._exit(3)
            forced = self.forced and isinstance(error, asyncio.CancelledError)
            keep = error if broken("cancelled") or not forced else None
            events, status = [self.error_event(keep)], "error"
        if os.getpid() != self.pid:
            os._exit(1)
        self.hit = None
        return events, status, {}

    async def run(self, code: str, name: str, namespace: dict[str, Any]) -> Any:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = compile(code, name, "exec", PARSE_ONLY | AWAIT, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        flags = 0 if broken("await-refused") else AWAIT
        value = await maybe(eval(compile(tree, name, "exec", flags, dont_inherit=True), namespace))
        if last is not None:
            tail = compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True)
            value = await maybe(eval(tail, namespace))
        return value

    def result_event(self, id_: str, value: Any) -> dict[str, Any]:
        if broken("late-deaf"):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        text = repr(value)
        event = {"event": "result", "id": id_, "text": text}
        if len(text) > RESULT_REPR_CHARS and not broken("result-whole"):
            event |= {"text": text[:RESULT_REPR_CHARS], "length": len(text)}
        return event

    def error_event(self, error: BaseException | None) -> dict[str, Any]:
        """Give the event of an error; None is an interrupt that was delivered as a cancellation."""
        error = KeyboardInterrupt() if error is None else error
        try:
            value = str(error)
        except BaseException:
            value = "<no text>"
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell-"):
            trace = trace.tb_next
        try:
            parts = traceback.format_exception(type(error), error, trace)
        except BaseException:
            parts = [type(error).__name__]
        text = "".join(parts)
        text = text if len(text) < TEXT_CAP else text[: TEXT_CAP // 2] + text[-TEXT_CAP // 2 :]
        return {
            "event": "error",
            "id": self.active,
            "ename": type(error).__name__,
            "evalue": ""
            if broken("error-empty")
            else value[: None if broken("evalue-whole") else TEXT_CAP],
            "traceback": [f"\x1b[31m{text}" if broken("coloured") else text],
        }

    async def other(self, request: Any) -> tuple[list[Any], str, dict[str, Any]]:
        if isinstance(request, kernel.ListNames):
            names = user_names(vars(self.main))
            names = names[::-1] if broken("names-unsorted") else names
            rows = [
                {"name": name, "type": type(vars(self.main)[name]).__name__, "preview": ""}
                for name in names
            ]
            return [], "ok", {"names": names, **({"details": rows} if request.detail else {})}
        work = reference_snapshot.restore
        if isinstance(request, kernel.Snapshot):
            work = reference_snapshot.save
        status, fields = work(request, vars(self.main), broken)
        return [], status, fields

    def _new_task(self, loop: Any, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        if not broken("tasks-weak"):
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return task

    # --- host requests ----------------------------------------------------------------------------

    async def ask(self, type_: str, payload: dict[str, Any] | None = None) -> Any:
        if self.lost:
            raise RuntimeError("the host is gone")
        self.asked += 1
        id_ = f"ask-{self.asked}"
        data = {"type": type_, "payload": payload or {}}
        if broken("payload-flat"):
            data = {**(payload or {}), "type": type_}
        if broken("payload-reroutes"):
            data["type"] = (payload or {}).get("type", type_)
        event = {"event": "host_request", "id": id_, "data": data}
        too_large = len(msgspec.json.encode(event)) > KERNEL_FRAME_BYTES
        if too_large and not broken("too-large-sent"):
            raise ValueError("the request is larger than a frame")
        future = self.pending[id_] = self.loop.create_future()
        self.asked_by[id_] = author.get()
        try:
            self.wire.send(event)  # an interrupt may come as soon as it is out
            return await future
        except BaseException:
            self.given_up.add(id_)
            raise
        finally:
            self.pending.pop(id_, None)

    def replied(self, reply: kernel.HostReply) -> None:
        id_ = reply.id
        if broken("in-order") and self.pending:
            id_ = next(iter(self.pending))
        future = self.pending.get(id_)
        if future is None or future.done():
            if broken("late-reply-told") and id_ in self.given_up:
                self.refuse("a late reply")
            if broken("unknown-reply-told") and id_ not in self.given_up:
                self.refuse("a reply to nothing")
            return
        status, result = reply.data.get("status"), reply.data.get("result")
        if status == "ok" or (broken("odd-is-ok") and status != "error"):
            if broken("reply-as-text") and isinstance(result, dict):
                result = str(result)
            future.set_result(result[: 1 << 20] if broken("reply-cut") else result)
        elif broken("error-returned"):
            future.set_result(reply.data.get("error"))
        else:
            future.set_exception(RuntimeError(str(reply.data.get("error", "no such status"))))

    def lose(self) -> None:
        self.lost = True
        for future in tuple(self.pending.values()) if not broken("lost-silently") else ():
            if not future.done():
                future.set_exception(RuntimeError("the host is gone"))

    # --- names ------------------------------------------------------------------------------------

    def look_up(self, request: kernel.Complete | kernel.Inspect) -> None:
        found = re.search(r"[\w.]*$", request.code[: request.cursor])
        path = (found.group() if found else "").split(".")
        value: Any = types.SimpleNamespace()
        vars(value).update(vars(self.main))
        missing = object()
        for part in path[:-1]:
            value = inspect.getattr_static(value, part, missing)
        if isinstance(request, kernel.Complete):
            classes = type(value).__mro__
            names = {n for c in classes for n in vars(c)} | set(getattr(value, "__dict__", ()))
            if broken("complete-runs"):
                names = {n for n in names | {"ghost"} if hasattr(value, n)}
            matches = sorted(n for n in names if n.startswith(path[-1]))
            start = request.cursor - len(path[-1])
            span = {"cursor_start": start, "cursor_end": request.cursor}
            return self.done(request.id, "ok", matches=matches, **span)
        value = inspect.getattr_static(value, path[-1], missing)
        if broken("inspect-runs") and len(path) > 1:
            getattr(vars(self.main)[path[0]], path[-1], None)
        text = "" if value is missing else str(inspect.getdoc(value))
        self.done(request.id, "ok", found=value is not missing, text=text)

    # --- the end ----------------------------------------------------------------------------------

    def close(self, id_: str | None) -> None:
        """Fail what waits for the host, give the cell a moment, interrupt it, leave. Reader."""
        self.closing = True
        self.loop.call_soon_threadsafe(self.lose)
        self.loop.call_soon_threadsafe(self.wake.set)
        busy = self.active is not None
        if not self.idle.wait(0.2):
            self.ring()
            self.idle.wait(1.0)
        if not broken("leaves-children"):
            end_processes(children)
        if id_ is not None and not (busy and broken("busy-shutdown-silent")):
            self.done(id_, "ok")
        eof_code = 1 if broken("eof-code-1") else 0
        os._exit(3 if broken("shutdown-code-3") and id_ else eof_code if id_ is None else 0)

    def _install_modules(self) -> None:
        rlm, repl = types.ModuleType("rlm"), types.ModuleType("rlm.repl")
        rlm.host_request = self.ask  # type: ignore[attr-defined]

        def emit(data: dict[str, Any]) -> None:
            data = {k: str(v) for k, v in data.items()} if broken("display-as-text") else data
            self.wire.send({"event": "display", "id": self.author(), "data": data})

        repl.emit = emit  # type: ignore[attr-defined]
        sys.modules.update({"rlm": rlm, "rlm.repl": repl, "__main__": self.main})


async def maybe(value: Any) -> Any:
    return await value if inspect.iscoroutine(value) else value


def user_names(namespace: dict[Any, Any]) -> list[str]:
    return sorted(n for n in namespace if isinstance(n, str) and not n.startswith("_"))


if __name__ == "__main__":
    Runtime().serve()
