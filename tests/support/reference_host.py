"""
A small correct host and its mutants: `reference_host.py [MUTANT]`. Linux.

It exists to test the conformance kit. One connection on stdio, sessions in JSON lines below
RLM_HOME, the reference runtime as kernel. With the name of a mutant it breaks one promise on
purpose: each `broken("...")` below is one mutant. Not a model for a real host.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import reference_sessions
from mutant import broken

from rlm_protocol import errors as e
from rlm_protocol.framing import NEED_DATA, UNDECODABLE, HeaderReceiver, Refused, encode_headers
from rlm_protocol.host import InitializeParams
from rlm_protocol.limits import CLIENT_HEADER_BYTES
from rlm_protocol.methods import METHODS, RESERVED
from rlm_protocol.rpc import (
    EMPTY,
    Answered,
    NotificationReceived,
    RequestReceived,
    RpcPeer,
    Violation,
)

MESSAGE_BYTES = 8 * 1024 * 1024
FIELD = re.compile(r"(?:unknown|required) field `([^`]*)`")
PLACE = re.compile(r" - at `([^`]*)`$")


class Host:
    """The connection: bytes to requests, each answered once, in the order of a single queue."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.dup(0), os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, broken("writes-block"))
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        limit = 1024 * 1024 if broken("large-refused") else MESSAGE_BYTES
        self.limits = {"max_frame_bytes": limit, "max_header_bytes": CLIENT_HEADER_BYTES}
        self.frames = HeaderReceiver(**self.limits)
        self.peer = RpcPeer()
        self.outbox = bytearray()
        self.initialized = self.shut_down = self.ended = False
        self.running: dict[Any, asyncio.Task[None]] = {}
        self.asked: dict[Any, asyncio.Future[Any]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.counted, self.last_body = 0, b""
        self.sessions = reference_sessions.Sessions(self, Path(os.environ["RLM_HOME"]))

    def serve(self) -> None:
        ends = {
            signal.SIGTERM: 7 if broken("sigterm-is-7") else 143,
            signal.SIGINT: 7 if broken("sigint-is-7") else 130,
            signal.SIGHUP: 7 if broken("sighup-is-7") else 129,
        }
        for number, code in ends.items():
            self.loop.add_signal_handler(number, self.end, code)
        if broken("sigpipe-kills"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        self.loop.add_reader(self.read_fd, self.readable)
        self.loop.run_forever()

    def end(self, code: int) -> None:
        """Write what goes without waiting and leave; the kernels see the end of their stdin."""
        if not self.ended:
            self.ended = True
            self.loop.remove_reader(self.read_fd)
            self.flush()
            os._exit(code)

    # --- reading ----------------------------------------------------------------------------------

    def readable(self) -> None:
        try:
            data = os.read(self.read_fd, 1 << 18)
        except BlockingIOError:
            return
        refused = (
            (broken("header-case-matters") and b"content-length" in data)
            or (broken("lf-refused") and b"\n\n" in data)
            or (broken("extra-refused") and b"X-Y" in data)
        )
        self.frames.receive_data(b"Content-Type: x\r\n\r\n" if refused else data)
        try:
            while not self.ended and (body := self.frames.next_frame()) is not NEED_DATA:
                if body is None:
                    return self.end(3 if broken("eof-ends-with-3") else 0)
                if isinstance(body, Refused):
                    self.refuse(None, body.error)
                    if broken("too-large-ends") or broken("huge-dies"):
                        os.kill(os.getpid(), signal.SIGKILL)
                    continue
                self.frame(body)
            if broken("split-lost"):
                self.frames = HeaderReceiver(**self.limits)
        except e.TruncatedFrame:
            self.end(0)
        except e.RlmError as why:
            self.refuse(None, why)
            self.end(0 if broken("bad-header-is-0") or broken("lost-sync-is-0") else 1)

    def frame(self, body: bytes) -> None:
        if broken("batch-served") and body.startswith(b"["):
            for one in json.loads(body):
                self.frame(json.dumps(one).encode())
            return
        if broken("nested-counts") and body.count(b'"jsonrpc"') > 1:
            return self.refuse(None, e.InvalidRequest())
        if broken("in-flight-runs") and (found := re.search(rb'"id":(\d+)', body)):
            self.peer._theirs.discard(int(found.group(1)))
        if broken("params-end-it") and b"params" in body:
            try:
                msgspec.json.decode(body)
            except UNDECODABLE:
                self.end(2)
        event = self.peer.receive(body)
        if broken("in-flight-silent") and body == self.last_body:
            return
        self.last_body = body
        if isinstance(event, RequestReceived):
            self.requested(event)
        elif isinstance(event, NotificationReceived):
            self.notified(event)
        elif isinstance(event, Answered):
            future = self.asked.pop(event.id, None)
            if future is not None and not future.done():
                future.set_result(None if event.result is None else decode(event.result))
        elif event.reply is not None:
            self.violated(event, body)
        elif broken("unasked-refused"):
            self.refuse(None, e.InvalidRequest())

    def violated(self, event: Violation, body: bytes) -> None:
        reply = event.reply or b""
        if broken("bad-json-is-invalid"):
            reply = reply.replace(b"-32700", b"-32600")
        if broken("invalid-is-bad-json"):
            reply = reply.replace(b"-32600", b"-32700")
        if broken("bad-id-echoed") and (found := re.search(rb'"id":([^,]+),', body)):
            reply = reply.replace(b'"id":null', b'"id":' + found.group(1))
        if broken("popups"):
            self.notify("window/showMessage", {"type": 1, "message": event.reason})
        self.write(reply)

    # --- requests ---------------------------------------------------------------------------------

    def requested(self, request: RequestReceived) -> None:
        self.counted += 1
        if broken("drops-some") and self.counted % 400 == 0:
            return
        try:
            if request.method == "initialize":
                self.answer(request.id, self.initialize(request.params))
            elif not self.initialized and not broken("serves-early"):
                raise e.NotInitialized
            elif self.shut_down and not broken("serves-late"):
                raise e.InvalidRequest
            elif request.method == "shutdown":
                self.shut_down = True
                self.answer(request.id, None)
            else:
                self.dispatch(request)
        except e.RlmError as why:
            self.fail(request.id, why)

    def dispatch(self, request: RequestReceived) -> None:
        row = METHODS.get(request.method)
        if broken("params-required") and request.params is EMPTY:
            raise e.InvalidParams(path="$")
        if broken("dollar-is-invalid") and request.method.startswith("$/"):
            raise e.InvalidRequest
        if broken("busy-refuses") and self.sessions.busy:
            raise e.Overloaded
        handler = self.handlers().get(request.method)
        declared = request.method in RESERVED or (row is not None and row.direction == "client")
        if handler is None and declared:
            raise e.MethodNotFound if broken("declared-is-unknown") else e.Unsupported
        if row is None or handler is None:
            raise e.MethodNotFound(method=request.method[:100])
        params = self.decoded(row.params, request.params)
        after: list[Callable[[], None]] = []
        if request.method.startswith("host/"):
            return self.answer(request.id, handler(params))
        task = self.start(self.run(request.id, handler, params, after))
        self.running[request.id] = task
        task.add_done_callback(lambda _: self.settled(request.id, task))

    def start(self, coroutine: Any) -> asyncio.Task[Any]:
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def run(self, id_: Any, handler: Any, params: Any, after: list[Any]) -> None:
        try:
            result = await handler(params, after)
            if broken("note-first"):
                for callback in after:
                    callback()
            self.answer(id_, result)
        except e.RlmError as why:
            self.fail(id_, why)
        for callback in after if not broken("note-first") else ():
            callback()

    def settled(self, id_: Any, task: asyncio.Task[None]) -> None:
        self.running.pop(id_, None)
        if task.cancelled() and broken("cancelled-is-ok"):
            self.answer(id_, {"cellId": "c", "status": "ok", "result": None})
        elif task.cancelled():
            self.fail(id_, e.RequestCancelled())

    def decoded(self, type_: Any, params: msgspec.Raw) -> Any:
        raw = b"{}" if bytes(params) == b"null" else params
        try:
            return msgspec.json.decode(raw, type=type_)
        except UNDECODABLE as why:
            field, place = FIELD.search(str(why)), PLACE.search(str(why))
            if broken("fields-ignored") and "unknown field" in str(why):
                known = {k: v for k, v in decode(raw).items() if k != (field and field.group(1))}
                return msgspec.convert(known, type_)
            path = (place.group(1) if place else "$") + (f".{field.group(1)}" if field else "")
            data = {} if broken("no-path") else {"path": path}
            if broken("tells-traceback"):
                data["traceback"] = "Traceback (most recent call last):"
            raise e.InvalidParams(str(why), **data) from None

    def notified(self, event: NotificationReceived) -> None:
        if event.method == "exit":
            clean = 5 if broken("exit-is-5") else 0
            self.end(clean if self.shut_down or broken("exit-is-0") else 1)
        elif event.method == "$/cancelRequest":
            self.cancel(event)
        elif broken("notes-answered") and event.method != "initialized":
            self.refuse(None, e.MethodNotFound())

    def cancel(self, event: NotificationReceived) -> None:
        try:
            id_ = msgspec.json.decode(event.params, type=dict[str, int | str])["id"]
        except (*UNDECODABLE, KeyError):
            return
        if broken("ids-shared") and id_ in self.asked:
            self.asked[id_].set_exception(e.RequestCancelled())
        if id_ in self.running and broken("cancelled-run"):
            del self.running[id_]
            self.fail(id_, e.RequestCancelled())
        elif id_ in self.running:
            self.running[id_].cancel()
        elif broken("late-cancel-refused"):
            self.refuse(None, e.InvalidRequest())
        elif broken("cancel-answers-too"):
            self.refuse(id_, e.RequestCancelled())

    # --- the handshake ----------------------------------------------------------------------------

    def initialize(self, params: msgspec.Raw) -> dict[str, Any]:
        if self.initialized and not broken("initialize-again"):
            raise e.InvalidRequest
        if broken("initialize-anything"):
            said = InitializeParams()
        else:
            said = self.decoded(InitializeParams, params)
        if broken("editor-refused") and b"fieldOfTheFuture" in bytes(params):
            raise e.InvalidParams(path="$.fieldOfTheFuture")
        self.negotiate((said.capabilities or {}).get("experimental") or {})
        self.initialized = True
        if said.process_id is not None and not broken("client-not-watched"):
            self.start(self.follow(said.process_id))
        methods = sorted({*self.handlers(), "initialize", "shutdown"})
        limits = {"maxMessageBytes": MESSAGE_BYTES, "maxInFlight": 1024}
        ours = {"protocol": {"min": 1, "max": 1}, "schemaRevision": 1, "methods": methods}
        ours |= {} if broken("no-limits") else {"limits": limits}
        return {
            "capabilities": {"experimental": {"rlm": ours}},
            "serverInfo": {"name": "reference", "version": "1"},
        }

    def negotiate(self, experimental: dict[str, Any]) -> None:
        asked = (experimental.get("rlm") or {}).get("protocol")
        if asked is None or broken("speaks-all"):
            return
        try:
            span = msgspec.convert(asked, dict[str, int])
        except msgspec.ValidationError:
            raise e.InvalidParams(path="$.capabilities.experimental.rlm.protocol") from None
        if not span["min"] <= 1 <= span["max"]:
            raise e.Unsupported

    async def follow(self, pid: int) -> None:
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC240
            await asyncio.sleep(0.05)
        self.end(0)

    def handlers(self) -> dict[str, Any]:
        own = {"host/status": self.status, "host/schema": self.schema}
        return {**own, **self.sessions.handlers()}

    def status(self, _: Any) -> dict[str, Any]:
        status = {"version": "1", "pid": os.getpid(), "uptimeMs": 1, "runs": 0, "home": ""}
        if broken("status-bare"):
            return status
        counts = {"sessions": len(self.sessions.open), "kernels": self.sessions.kernels}
        queues = {"bytes": len(self.outbox), "dropped": 0}
        return {**status, **counts, "queues": queues, "rssBytes": 1}

    def schema(self, _: Any) -> dict[str, Any]:
        if broken("prints"):
            os.write(self.write_fd, b"debug: somebody asks\n")
        names = {*self.handlers(), "initialize", "shutdown"}
        names -= {"session/create"} if broken("schema-lacks-one") else set()
        return {"openrpc": {"openrpc": "1.3.2", "methods": [{"name": name} for name in names]}}

    # --- writing ----------------------------------------------------------------------------------

    def answer(self, id_: Any, result: Any) -> None:
        body = self.peer.respond(id_, result)
        if broken("nan") and isinstance(result, dict) and "uptimeMs" in result:
            body = body.replace(b'"uptimeMs":1', b'"uptimeMs":NaN')
        if broken("result-and-error"):
            body = body.replace(b'"result":', b'"error":{"code":1,"message":""},"result":')
        self.write(body)

    def fail(self, id_: Any, why: e.RlmError) -> None:
        body = self.peer.fail(id_, why)
        if broken("id-narrow") and isinstance(id_, int) and id_ > 0xFFFFFFFF:
            body = body.replace(str(id_).encode(), str(id_ & 0xFFFFFFFF).encode())
        if broken("reserved-code"):
            body = body.replace(b"-32602", b"-32050")
        if broken("no-kind"):
            body = body.replace(b'"kind"', b'"sort"')
        for _ in range(2 if broken("answers-twice") else 1):
            self.write(body)

    def refuse(self, id_: Any, why: e.RlmError) -> None:
        message = {"jsonrpc": "2.0", "id": id_, "error": e.to_jsonrpc(why)}
        self.write(msgspec.json.encode(message))

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.write(self.peer.notify(method, params))

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        id_, body = self.peer.request(method, params)
        self.asked[id_] = self.loop.create_future()
        self.write(body)
        try:
            return await self.asked[id_]
        except asyncio.CancelledError:
            self.peer.forget(id_)
            self.notify("$/cancelRequest", {"id": id_})
            raise

    def write(self, body: bytes) -> None:
        self.outbox += encode_headers(body)
        self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.write_fd, bytes(self.outbox[: 1 << 16]))]
        except BlockingIOError:
            self.loop.add_writer(self.write_fd, self.flush)
        except OSError:
            self.outbox.clear()
            self.end(0)
        else:
            self.loop.remove_writer(self.write_fd)


def decode(raw: Any) -> Any:
    return msgspec.json.decode(raw)


if __name__ == "__main__":
    Host().serve()
