"""Promises about host requests: what a cell asks, and what its host answers."""

import json

from ..promise import Promise, expect
from .driver import Cell, Event, Runtime
from .kit import RuntimeKit, ended_by_interrupt, probe

MANY = 100
LARGE_CHARS = 5 * 1024 * 1024
TYPE = "conformance.ask"


def _asked(
    kit: RuntimeKit, runtime: Runtime, name: str, count: int = 1
) -> tuple[Cell, list[Event]]:
    """Run a cell up to its host requests; give both."""
    before = len(runtime.host_requests())
    cell = runtime.execute(kit.code(name))

    def asked() -> list[Event]:
        return runtime.host_requests()[before:]

    runtime.wait(lambda: len(asked()) >= count or cell.one("error") is not None, "`host_request`")
    expect(len(asked()) == count, "not as many host requests as asked", error=cell.one("error"))
    for request in asked():
        said = request["data"].get("type")
        expect(said == TYPE, "a host request has another type than the cell gave it", type=said)
    return cell, asked()


def _refuse(runtime: Runtime, request: Event, **error: object) -> None:
    data = {"status": "error", **error}
    runtime.send({"type": "host_reply", "id": request["id"], "data": data})


def _roundtrip(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell, (request,) = _asked(kit, runtime, "ask")
    wanted = json.loads(kit.language.field("ask", "payload"))
    expect(request["data"].get("payload") == wanted, "the payload changed", data=request["data"])
    expect(cell.done is None, "the cell did not wait for its answer")
    runtime.reply(request, 42)
    runtime.done(cell.id)
    expect(
        cell.result == kit.language.field("ask", "result"), "the answer changed", cell=cell.result
    )


def _values(kit: RuntimeKit) -> None:
    """Whatever JSON a reply holds reaches the cell as it is, envelope-like keys too."""
    runtime = kit.shared()
    value: dict[str, object] = {
        "status": "error",
        "type": "rlm.run",
        "n": [1, 2.5, None, True, "€\u2028𝄞", {}],
    }
    cell, (request,) = _asked(kit, runtime, "ask_json")
    runtime.reply(request, value)
    runtime.done(cell.id)
    seen = json.loads(cell.text() or "null")
    expect(seen == value, "the cell got another value than the host sent", seen=seen)


def _envelope(kit: RuntimeKit) -> None:
    """A payload with the keys of the envelope is not rerouted; `_asked` looks at the type."""
    runtime = kit.shared()
    cell, (request,) = _asked(kit, runtime, "ask_collision")
    runtime.reply(request, 42)
    runtime.done(cell.id)
    wanted = json.loads(kit.language.field("ask_collision", "payload"))
    expect(request["data"].get("payload") == wanted, "the payload changed", data=request["data"])


def _error(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell, (request,) = _asked(kit, runtime, "ask")
    _refuse(runtime, request, error="no such model", code=-31401, data={"kind": "x"})
    done = runtime.done(cell.id)
    error = cell.one("error")
    expect(done["status"] == "error" and error, "an error reply does not raise", done=done)
    assert error is not None
    expect("no such model" in error["evalue"], "the host's reason is lost", error=error)
    caught, (request,) = _asked(kit, runtime, "ask_caught")
    _refuse(runtime, request, error="no such model")
    runtime.done(caught.id)
    wanted = kit.language.field("ask_caught", "stdout")
    expect(caught.text() == wanted, "the error cannot be caught by its kind", error=caught.ename)


def _odd_reply(kit: RuntimeKit) -> None:
    """A reply that is neither ok nor error raises in the cell; it does not hang it."""
    runtime = kit.shared()
    for data in ({}, {"status": "maybe"}, {"status": 5}, {"status": "error"}):
        cell, (request,) = _asked(kit, runtime, "ask")
        runtime.send({"type": "host_reply", "id": request["id"], "data": data})
        done = runtime.done(cell.id)
        expect(done["status"] == "error", "an odd reply counts as an answer", data=data)


def _many(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell, requests = _asked(kit, runtime, "ask_many", MANY)
    ids = {request["id"] for request in requests}
    expect(len(ids) == MANY, "two host requests in flight share an id")
    for request in reversed(requests):
        runtime.reply(request, 2 * request["data"]["payload"]["n"])
    runtime.done(cell.id)
    wanted = kit.language.field("ask_many", "result")
    expect(cell.result == wanted, "answers went to the wrong requests", result=cell.result)


def _cancelled(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell, (request,) = _asked(kit, runtime, "ask")
    runtime.interrupt(cell.id)
    ended_by_interrupt(kit, runtime, cell, "ask")
    heard = len(runtime.events)
    runtime.reply(request, 42)
    probe(kit, runtime)
    late = [event["event"] for event in runtime.events[heard:] if event.get("id") is None]
    expect(not late, "a late answer to a cancelled request leads to events", events=late)


def _unasked(kit: RuntimeKit) -> None:
    """Answers to nothing are ignored, a second answer too."""
    runtime = kit.shared()
    heard = len(runtime.events)
    runtime.reply({"id": "nobody"}, 1)
    cell, (request,) = _asked(kit, runtime, "ask")
    runtime.reply(request, 42)
    runtime.reply(request, 43)
    runtime.done(cell.id)
    expect(cell.result == kit.language.field("ask", "result"), "a second answer counted")
    probe(kit, runtime)
    expect(not runtime.refusals(heard), "an answer to nothing is refused")


def _large(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell, (request,) = _asked(kit, runtime, "ask_length")
    runtime.reply(request, "x" * LARGE_CHARS)
    runtime.done(cell.id)
    expect(cell.result == str(LARGE_CHARS), "an answer of 5 MiB is cut", result=cell.result)


def _too_large(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    before = len(runtime.host_requests())
    cell = runtime.run(kit.code("ask_too_large"))
    wanted = kit.language.field("ask_too_large", "ename")
    expect(cell.ename == wanted, "a request over a frame does not raise", error=cell.ename)
    expect(len(runtime.host_requests()) == before, "a request over a frame was sent")


def _detached(kit: RuntimeKit) -> None:
    """A background task's request outlives the cell that started it."""
    runtime = kit.shared()
    _, (request,) = _asked(kit, runtime, "ask_detached")
    probe(kit, runtime, "a cell beside a waiting request")
    runtime.reply(request, 42)
    cell = runtime.run(kit.code("ask_detached_join"))
    expect(
        cell.result == kit.language.field("ask", "result"),
        "the task has no answer",
        cell=cell.result,
    )


def _lost(kit: RuntimeKit) -> None:
    with kit.fresh() as runtime:
        cell, _ = _asked(kit, runtime, "ask_lost")
        runtime.child.close_stdin()
        runtime.gone(5.0)
        wanted = kit.language.field("ask_lost", "stdout")
        expect(wanted in cell.text(), "the loss of the host does not raise in the cell")


PROMISES: tuple[Promise[RuntimeKit], ...] = (
    Promise(
        id="bridge.roundtrip",
        text="A cell asks its host and gets the answer; meanwhile it waits.",
        checks=(_roundtrip,),
        since=2,
    ),
    Promise(
        id="bridge.values",
        text="Any JSON value of a reply reaches the cell unchanged.",
        checks=(_values,),
        since=2,
    ),
    Promise(
        id="bridge.envelope",
        text="No key of a payload changes the request's type.",
        checks=(_envelope,),
        since=2,
    ),
    Promise(
        id="bridge.error",
        text="An error reply raises in the cell, with the host's reason.",
        checks=(_error,),
        since=2,
    ),
    Promise(
        id="bridge.odd-reply",
        text="A reply with no status that is known raises in the cell.",
        checks=(_odd_reply,),
        since=2,
    ),
    Promise(
        id="bridge.many",
        text="100 requests may be in flight; answers in any order find theirs.",
        checks=(_many,),
        since=2,
    ),
    Promise(
        id="bridge.cancelled",
        text="An interrupted cell's request is given up; its late answer does nothing.",
        checks=(_cancelled,),
        since=2,
    ),
    Promise(
        id="bridge.unasked",
        text="An answer to nothing, or a second one, does nothing.",
        checks=(_unasked,),
        since=2,
    ),
    Promise(
        id="bridge.large",
        text="An answer of 5 MiB arrives whole.",
        checks=(_large,),
        since=2,
    ),
    Promise(
        id="bridge.too-large",
        text="A request that fits into no frame raises in the cell and is not sent.",
        checks=(_too_large,),
        since=3,
    ),
    Promise(
        id="bridge.detached",
        text="A background task's request outlives its cell.",
        checks=(_detached,),
        since=2,
    ),
    Promise(
        id="bridge.lost",
        text="When the host is gone, a waiting request raises at once.",
        checks=(_lost,),
        since=2,
    ),
)
