"""Runs the golden vectors and the hostile lines against a runtime."""

import functools
from collections.abc import Callable
from typing import Any

from ..promise import Broken, short
from ..vectors import fits, load, to_bytes
from .driver import Event
from .kit import Check, RuntimeKit, probe

Vector = dict[str, Any]


def golden(promise: str) -> Check:
    """Give the check that runs the golden vectors of one promise."""
    return functools.partial(_all, promise, "runtime-golden", _run_golden)


def hostile(promise: str) -> Check:
    """Give the check that sends the hostile lines of one promise."""
    return functools.partial(_all, promise, "runtime-hostile", _run_hostile)


def _all(
    promise: str, file: str, run: Callable[[RuntimeKit, Vector], None], kit: RuntimeKit
) -> None:
    kit.each(
        (vector["name"], functools.partial(run, kit, vector))
        for vector in load(file)
        if vector["promise"] == promise
    )


# --- golden vectors: requests in one write, events in order ---------------------------------------


def _run_golden(kit: RuntimeKit, vector: Vector) -> None:
    runtime = kit.shared()
    if "feature" in vector:
        kit.needs(runtime, vector["feature"])
    ids: dict[str, str] = {}

    def own(value: Any) -> Any:
        """Give a value with ids made unique and `$cell.field` looked up in the language."""
        if isinstance(value, dict):
            return {
                k: ids.setdefault(v, runtime.new_id()) if k == "id" and v is not None else own(v)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [own(item) for item in value]
        if isinstance(value, str) and value.startswith("$") and "." in value:
            return kit.language.field(*value[1:].split(".", 1))
        return value

    requests = [own(request) for request in vector["send"]]
    wanted = [own(event) for event in vector["events"]]
    heard = len(runtime.events)
    runtime.send(*requests)
    for event in wanted:
        if event["event"] == "done":
            runtime.done(event["id"])
    probe(kit, runtime)
    mine = [e for e in runtime.events[heard:] if e.get("id") in ids.values()]
    seen = _merged(mine + runtime.refusals(heard))
    if len(seen) != len(wanted) or not all(map(fits, wanted, seen)):
        raise Broken(f"expected {_brief(wanted)}, seen {_brief(seen)}")


def _merged(events: list[Event]) -> list[Event]:
    """Give the events with neighbouring output of one id and stream joined."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else {}
        key = (event["event"], event.get("id"))
        if key[0] in ("stdout", "stderr") and key == (last.get("event"), last.get("id")):
            last["text"] += event["text"]
        else:
            out.append(dict(event))
    return out


def _brief(events: list[Event]) -> str:
    keys = ("text", "ename", "evalue", "status", "names")
    return short(
        "["
        + ", ".join(
            " ".join([e["event"], *(f"{k}={short(e[k], 60)}" for k in keys if k in e)])
            for e in events
        )
        + "]",
        400,
    )


# --- hostile lines --------------------------------------------------------------------------------


def _run_hostile(kit: RuntimeKit, vector: Vector) -> None:
    """
    Send one line and a simple cell behind it.

    `then` says what the line leads to: `refused` (exactly one ProtocolError with id null, and no
    `done`), `ignored` (no event), `any` (whatever, but the cell behind it runs).
    """
    runtime = kit.shared()
    runtime.lenient |= set(vector.get("closes", ()))
    heard = len(runtime.events)
    behind = runtime.new_id()
    request = {"type": "execute", "id": behind, "code": kit.code("value")}
    runtime.send(to_bytes(vector["line"]), request)
    runtime.done(behind)
    if runtime.cell(behind).result != kit.language.field("value", "result"):
        raise Broken("the cell behind it has no result")
    if vector["then"] == "any":
        return
    others = [e for e in runtime.events[heard:] if e.get("id") != behind]
    refusals = [e for e in others if e["event"] == "error" and e.get("id") is None]
    wanted = 1 if vector["then"] == "refused" else 0
    if len(refusals) != wanted or len(others) != wanted:
        raise Broken(f"expected it to be {vector['then']}, seen {_brief(others)}")
    if wanted and refusals[0]["ename"] != "ProtocolError":
        raise Broken(f"the error is called {refusals[0]['ename']}, not ProtocolError")
