"""A runtime under test: what it was asked, what it said, and what it may never say."""

import itertools
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ... import kernel
from ...framing import UNDECODABLE
from ...limits import KERNEL_FRAME_BYTES, OUTPUT_EVENT_BYTES
from ..peer import Peer
from ..promise import Broken, Violations, short

Event = dict[str, Any]
_encode = msgspec.json.Encoder().encode


class Cell:
    """What one request has led to so far, read off the events that carry its id."""

    def __init__(self, id_: str, events: list[Event]) -> None:
        self.id = id_
        self._all = events

    @property
    def events(self) -> list[Event]:
        """Every event with this id, in order."""
        return [event for event in self._all if event.get("id") == self.id]

    def text(self, stream: str = "stdout") -> str:
        """Give what it wrote to one stream."""
        return "".join(e["text"] for e in self.events if e["event"] == stream)

    def one(self, kind: str) -> Event | None:
        """Give the only event of a kind, None when there is none. Raises Broken for several."""
        found = [event for event in self.events if event["event"] == kind]
        if len(found) > 1:
            raise Broken(f"{len(found)} `{kind}` events for one request")
        return found[0] if found else None

    @property
    def result(self) -> str | None:
        """Text of its result."""
        event = self.one("result")
        return None if event is None else event["text"]

    @property
    def ename(self) -> str | None:
        """Name of the error that it ended with."""
        event = self.one("error")
        return None if event is None else event["ename"]

    @property
    def done(self) -> Event | None:
        """Its `done`."""
        return self.one("done")


class Runtime(Peer):
    """
    One process of the runtime, for the length of a `with` block of its `child`.

    `events` holds every event in order; what is no event goes to `violations` and no further.
    """

    def __init__(self, command: Sequence[str], violations: Violations, *, timeout_s: float) -> None:
        super().__init__(command, violations, timeout_s=timeout_s)
        self.events: list[Event] = []
        self.ready: Event | None = None
        self._buffer = bytearray()
        self._searched = 0
        self._ids = (f"{n}-{secrets.token_hex(2)}" for n in itertools.count(1))
        self._open: set[str] = set()
        self._closed: set[str] = set()
        self.lenient: set[str] = set()

    # --- asking -----------------------------------------------------------------------------------

    def new_id(self) -> str:
        """Give an id that was not used before."""
        return next(self._ids)

    def send(self, *requests: Mapping[str, Any] | bytes) -> None:
        """Send requests (or raw lines, without LF) in one write; waits for nothing."""
        data = bytearray()
        for request in requests:
            if isinstance(request, bytes):
                data += request + b"\n"
            else:
                if isinstance(id_ := request.get("id"), str) and _is_answered(request):
                    self.expect_done(id_)
                data += _encode(request) + b"\n"
        self.child.write(bytes(data))
        self.child.pump(lambda: True, 0)

    def expect_done(self, id_: str) -> Cell:
        """Note a request that is sent as raw bytes; give what will come of it."""
        self._open.add(id_)
        self._closed.discard(id_)
        return Cell(id_, self.events)

    def execute(self, code: str, *, id_: str | None = None, **more: Any) -> Cell:
        """Send one cell; waits for nothing."""
        id_ = id_ or self.new_id()
        self.send({"type": "execute", "id": id_, "code": code, **more})
        return Cell(id_, self.events)

    def cell(self, id_: str) -> Cell:
        """Give what has come of a request."""
        return Cell(id_, self.events)

    def ask(self, type_: str, **fields: Any) -> Event:
        """Send any request while nothing else is open, wait, give its `done`."""
        cell, heard = self.cell(self.new_id()), len(self.events)
        self.send({"type": type_, "id": cell.id, **fields})
        self.wait(lambda: cell.done is not None or bool(self.refusals(heard)), "`done`")
        if cell.done is None:
            raise Broken(f"`{type_}` was refused: {self.refusals(heard)[0]['evalue']}")
        return cell.done

    def run(self, code: str, **more: Any) -> Cell:
        """Run one cell to its `done`."""
        cell = self.execute(code, **more)
        self.done(cell.id)
        return cell

    def interrupt(self, id_: str | None = None) -> None:
        """Send an interrupt."""
        self.send({"type": "interrupt"} if id_ is None else {"type": "interrupt", "id": id_})

    def reply(self, request: Event, result: Any) -> None:
        """Answer a host request with a result."""
        data = {"status": "ok", "result": result}
        self.send({"type": "host_reply", "id": request["id"], "data": data})

    # --- waiting ----------------------------------------------------------------------------------

    def done(self, id_: str) -> Event:
        """Wait for the `done` of a request."""
        cell = self.cell(id_)
        self.wait(lambda: cell.done is not None, "`done`")
        assert cell.done is not None
        return cell.done

    def text(self, cell: Cell, text: str) -> None:
        """Wait until a cell has written a text."""
        self.wait(lambda: text in cell.text(), f"output {text!r}")

    def refusals(self, since: int = 0) -> list[Event]:
        """Give the ProtocolErrors among the events from number `since` on."""
        return [
            event
            for event in self.events[since:]
            if event["event"] == "error" and event.get("id") is None
        ]

    def host_requests(self) -> list[Event]:
        """Give the requests of cells so far."""
        return [event for event in self.events if event["event"] == "host_request"]

    def features(self) -> frozenset[str]:
        """Give what `ready` announces."""
        return frozenset((self.ready or {}).get("features") or ())

    # --- listening --------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(memoryview(self._buffer)[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            self._line(line.removesuffix(b"\r"))
        self._searched = len(self._buffer)

    def _line(self, line: bytes) -> None:
        if len(line) > KERNEL_FRAME_BYTES:
            self.violations.add("core.frame-cap", f"a frame over {KERNEL_FRAME_BYTES:,} bytes")
        if b"\xe2\x80\xa8" in line or b"\xe2\x80\xa9" in line:
            self.violations.add("core.separators", "a frame with a bare U+2028 or U+2029")
        event = kernel.decode_event(line)
        if isinstance(event, kernel.BadLine):
            about = "core.no-nan" if _only_python_reads(line) else "core.frames"
            self.violations.add(about, f"no event: {short(line)} ({event.reason})")
            return
        said: Event = msgspec.json.decode(line)
        for broken, what in self._judge(said):
            self.violations.add(broken, what)
        self.events.append(said)

    def _judge(self, event: Event) -> Iterator[tuple[str, str]]:
        """Hold one event to the promises that every event must keep."""
        kind, id_ = event["event"], event.get("id")
        if kind == "ready":
            if self.ready is not None:
                yield "core.ready", "a second `ready`"
            self.ready = self.ready or event
        elif self.ready is None:
            yield "core.ready", f"`{kind}` before `ready`"
        if kind in ("stdout", "stderr") and len(event["text"]) > OUTPUT_EVENT_BYTES:
            yield "core.frame-cap", f"an output event over {OUTPUT_EVENT_BYTES:,} characters"
        if kind in ("result", "error") and id_ in self._closed:
            yield "core.done-once", f"`{kind}` after the `done` of its request"
        if kind == "done" and id_ not in self.lenient:
            yield from self._judge_done(event, id_)

    def _judge_done(self, event: Event, id_: Any) -> Iterator[tuple[str, str]]:
        if id_ in self._closed:
            yield "core.done-once", "a second `done` for one request"
        elif id_ not in self._open:
            yield "core.done-once", "a `done` for a request that was not accepted"
        self._open.discard(id_)
        self._closed.add(id_)
        nonce = (self.ready or {}).get("nonce")
        if nonce is not None and event.get("nonce") != nonce:
            yield "core.nonce", "a `done` without the nonce that `ready` announced"


def _is_answered(request: Mapping[str, Any]) -> bool:
    return request.get("type") not in ("interrupt", "host_reply")


def _only_python_reads(line: bytes) -> bool:
    """Tell whether a line is refused because of NaN or Infinity, which JSON does not have."""
    try:
        msgspec.json.decode(line)
    except UNDECODABLE:
        pass
    else:
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
