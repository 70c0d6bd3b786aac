"""Promises about a session's kernel, as a client uses it through the host."""

import signal
from typing import Any

from ..child import children, end_processes, wait_for
from ..promise import NotSupported, Promise, expect
from .driver import Host, Message, notification, request
from .kit import ENDS_S, HostKit
from .session import create

QUEUED = 20
PROMPT_S = 5.0
"""What must happen at once; a loaded machine may need this long."""
FIRST_CELL_S = 120.0
"""The first cell of a home may build the environment of its kernels."""


class Repl:
    """A session whose kernel is used."""

    def __init__(self, kit: HostKit, host: Host, **options: Any) -> None:
        """Create the session and run one cell, so that its kernel is there."""
        self.kit, self.host = kit, host
        kit.needs(host, "repl/execute")
        self.id = create(kit, host, **options)["id"]
        self.heard = len(host.messages)
        id_ = self.send(kit.language.code("value"))
        host.wait(lambda: bool(host.answers(id_)), "answer of the first cell", FIRST_CELL_S)

    def params(self, code: str, **more: Any) -> Message:
        """Give the params of a cell."""
        return {"sessionId": self.id, "code": code, **more}

    def send(self, code: str, **more: Any) -> int:
        """Send a cell; waits for nothing; give the request's id."""
        id_ = self.host.new_id()
        self.host.say(request(id_, "repl/execute", self.params(code, **more)))
        return id_

    def run(self, name: str, **paths: Any) -> Message:
        """Run a cell of the language; give its result."""
        code = self.kit.language.code(name, **paths)
        outcome: Message = self.host.result("repl/execute", self.params(code))
        return outcome

    def running(self, name: str, **paths: Any) -> int:
        """Send a cell and wait until it says that it runs; give the request's id."""
        heard = len(self.host.messages)
        id_ = self.send(self.kit.language.code(name, **paths))
        text = self.kit.language.field(name, "waiting" if paths else "running")
        self.host.wait(lambda: text in self.output(heard), f"output {text!r}")
        return id_

    def output(self, since: int, channel: str = "stdout") -> str:
        """Give what came as deltas of one channel."""
        notes = self.host.notes("item/delta", since=since)
        return "".join(m["params"]["text"] for m in notes if m["params"]["channel"] == channel)

    def wanted(self, name: str, field: str) -> str:
        """Give what a cell yields."""
        return self.kit.language.field(name, field)

    def works(self, what: str = "the next cell") -> None:
        """Hold the kernel to running a cell."""
        outcome = self.run("value")
        wanted = self.wanted("value", "result")
        expect(outcome["result"] == wanted, f"{what} has no result", outcome=outcome)


def _execute(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    for name, status in (("value", "ok"), ("none", "ok"), ("raise", "error"), ("partial", "error")):
        outcome = repl.run(name)
        expect(outcome["status"] == status, f"`{name}` is not {status}", outcome=outcome)
        if status == "error":
            wanted = repl.wanted(name, "ename")
            expect((outcome["error"] or {}).get("ename") == wanted, "the error is lost", o=outcome)
    expect(repl.run("none")["result"] is None, "None has a result")
    repl.works()


def _namespace(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    repl.run("assign")
    outcome = repl.run("read_assigned")
    expect(outcome["result"] == repl.wanted("read_assigned", "result"), "a name is lost")
    kit.needs(repl.host, "repl/names")
    names = repl.host.result("repl/names", {"sessionId": repl.id})["names"]
    expect("assigned" in names, "a name is not listed", names=names)
    other = Repl(kit, repl.host)
    names = repl.host.result("repl/names", {"sessionId": other.id})["names"]
    expect("assigned" not in names, "two sessions share a namespace", names=names)


def _order(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    repl.run("count_start")
    ids = [repl.host.new_id() for _ in range(QUEUED)]
    params = repl.params(kit.language.code("count"))
    repl.host.say(*(request(id_, "repl/execute", params) for id_ in ids))
    results = [(repl.host.answer(id_).get("result") or {}).get("result") for id_ in ids]
    expect(results == [str(n + 1) for n in range(QUEUED)], "cells ran out of order", seen=results)


def _output(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    heard = len(repl.host.messages)
    cell = repl.run("print_both")["cellId"]

    def whole() -> list[Message]:
        notes = repl.host.notes("item/completed", since=heard)
        return [m["params"]["item"] for m in notes if m["params"]["item"]["id"] == cell]

    repl.host.wait(lambda: bool(whole()), "item/completed of the cell")
    for stream in ("stdout", "stderr"):
        wanted = repl.wanted("print_both", stream)
        expect(whole()[0][stream] == wanted, f"the item's {stream} is not whole", item=whole()[0])
        seen = repl.output(heard, stream)
        expect(seen == wanted, f"the deltas are not the {stream}", seen=seen)


def _stray(kit: HostKit) -> None:
    """Whatever a cell writes, wherever: it is output, never a byte of the protocol."""
    repl = Repl(kit, kit.shared())
    before = len(kit.violations)
    for name in (
        "print_both",
        "process_prints",
        "raw_split",
        "native_write",
        "process_reads_stdin",
    ):
        outcome = repl.run(name)
        expect(outcome["status"] == "ok", f"`{name}` failed", outcome=outcome)
    repl.host.alive()
    expect(len(kit.violations) == before, "a cell's bytes reached the client; see `base.frames`")


def _interrupt(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    kit.needs(repl.host, "repl/interrupt")
    idle = repl.host.result("repl/interrupt", {"sessionId": repl.id})
    expect(idle["interrupted"] is False, "an idle kernel was interrupted", said=idle)
    for name in ("loop", "await_long"):
        id_ = repl.running(name)
        said = repl.host.result("repl/interrupt", {"sessionId": repl.id})
        expect(said["interrupted"] is True, "there was something to interrupt", said=said)
        repl.host.wait(lambda i=id_: bool(repl.host.answers(i)), "answer", PROMPT_S)  # type: ignore[misc]
        outcome = repl.host.answer(id_).get("result") or {}
        expect(outcome.get("status") == "interrupted", "it is not interrupted", outcome=outcome)
        repl.works()


def _cancel(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    for name in ("loop", "await_long"):
        id_ = repl.running(name)
        repl.host.tell("$/cancelRequest", {"id": id_})
        repl.host.wait(lambda i=id_: bool(repl.host.answers(i)), "answer", PROMPT_S)  # type: ignore[misc]
        answer = repl.host.answer(id_)
        code = (answer.get("error") or {}).get("code")
        status = (answer.get("result") or {}).get("status")
        expect(code == -32800 or status == "interrupted", "it is not cancelled", answer=answer)
        repl.works("a cell behind a cancelled one")


def _cancel_queued(kit: HostKit) -> None:
    """Requests that are known to be cancelled are answered at once, and never run."""
    repl, gate = Repl(kit, kit.shared()), kit.path()
    repl.run("count_start")
    first = repl.running("gate", gate=gate)
    ids = [repl.send(kit.language.code("count")) for _ in range(QUEUED)]
    repl.host.say(*(notification("$/cancelRequest", {"id": id_}) for id_ in ids))
    repl.host.wait(lambda: all(repl.host.answers(i) for i in ids), "answer to each", PROMPT_S)
    expect(not repl.host.answers(first), "the running cell ended with them")
    gate.touch()
    repl.host.answer(first)
    counted = repl.run("count")["result"]
    expect(counted == "1", "cancelled cells ran", counted=counted)


def _in_flight(kit: HostKit) -> None:
    repl, gate = Repl(kit, kit.shared()), kit.path()
    id_ = repl.running("gate", gate=gate)
    repl.host.say(request(id_, "repl/execute", repl.params(kit.language.code("value"))))
    code = (repl.host.answer(id_).get("error") or {}).get("code")
    expect(code == -32600, "an id in flight is not refused", answer=repl.host.answer(id_))
    gate.touch()
    outcome = repl.host.answer(id_, 1).get("result") or {}
    expect(outcome.get("status") == "ok", "the first request suffered", outcome=outcome)


def _responsive(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    id_ = repl.running("loop")
    for _ in range(10):
        repl.host.alive()
    expect(not repl.host.answers(id_), "the cell ended by itself")
    repl.host.tell("$/cancelRequest", {"id": id_})
    repl.host.answer(id_)


def _death(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    params = repl.params(kit.language.code("die"))
    error = repl.host.refusal("repl/execute", params, "kernelDied")
    code = str((error.get("data") or {}).get("exitCode"))
    expect(code == repl.wanted("die", "exit"), "the exit code is not told", error=error)
    repl.works("a cell after the kernel's death")


def _restart(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    kit.needs(repl.host, "repl/restart", "repl/names")
    repl.run("assign")
    repl.host.result("repl/restart", {"sessionId": repl.id})
    names = repl.host.result("repl/names", {"sessionId": repl.id})["names"]
    expect("assigned" not in names, "a restarted kernel has old names", names=names)
    repl.works()


def _complete(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    kit.needs(repl.host, "repl/complete", "repl/inspect")
    repl.run("bind_object")
    code = repl.wanted("bind_object", "complete")
    params = repl.params(code, cursor=len(code))
    found = repl.host.result("repl/complete", params)
    wanted = repl.wanted("bind_object", "match")
    expect(wanted in found["matches"], "a name is not completed", found=found)
    code = repl.wanted("bind_object", "inspect")
    found = repl.host.result("repl/inspect", repl.params(code, cursor=len(code)))
    expect(repl.wanted("bind_object", "described") in found["text"], "no docstring", found=found)


def _large(kit: HostKit) -> None:
    repl = Repl(kit, kit.shared())
    kit.needs(repl.host, "artifact/read")
    outcome = repl.run("print_long")
    wanted = int(repl.wanted("print_long", "chars"))
    expect(outcome["truncated"] and outcome["artifact"], "it is not said to be cut", said=outcome)
    read, offset = 0, 0
    while offset is not None:
        this = {"sessionId": repl.id, "id": outcome["artifact"], "offset": offset}
        page = repl.host.result("artifact/read", {**this, "limit": 1024 * 1024})
        read += len(page["text"])
        offset = page["nextOffset"]
    expect(read == wanted, "the artifact is not the whole output", chars=read)


def _ends(kit: HostKit) -> None:
    """Nothing of a kernel outlives its host, however that ends."""
    if not kit.adopts:
        raise NotSupported("this machine cannot count the processes of a command")
    kit.discard()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        before = children()
        with kit.fresh() as host:
            repl = Repl(kit, host)
            repl.run("process_stays")
            repl.running("loop")
            if number is None:
                host.child.close_stdin()
            else:
                host.child.signal(number)
            host.gone(ENDS_S)
        gone = wait_for(lambda b=before: not children() - b, PROMPT_S)  # type: ignore[misc]
        left = len(children() - before)
        end_processes(lambda b=before: children() - b)  # type: ignore[misc]
        expect(gone, "processes outlive their host", how=number or "end of stdin", left=left)


PROMISES: tuple[Promise[HostKit], ...] = (
    Promise(
        id="repl.execute",
        text="`repl/execute` is answered with the cell's result or its error.",
        checks=(_execute,),
    ),
    Promise(
        id="repl.namespace",
        text="Cells of a session share names; sessions do not.",
        checks=(_namespace,),
    ),
    Promise(
        id="repl.order",
        text="Cells run in the order of their requests.",
        checks=(_order,),
    ),
    Promise(
        id="repl.output",
        text="A cell's output comes in deltas, and whole in its item.",
        checks=(_output,),
    ),
    Promise(
        id="repl.stray",
        text="Nothing that a cell or its processes write reaches the protocol.",
        checks=(_stray,),
    ),
    Promise(
        id="repl.interrupt",
        text="`repl/interrupt` ends the running cell, and the kernel works on.",
        checks=(_interrupt,),
    ),
    Promise(
        id="repl.cancel",
        text="A cancelled cell is answered once, at once, and the kernel works on.",
        checks=(_cancel,),
    ),
    Promise(
        id="repl.cancel-queued",
        text="Cancelled cells that wait are answered at once, and never run.",
        checks=(_cancel_queued,),
    ),
    Promise(
        id="repl.id-in-flight",
        text="An id in flight is refused with -32600, and the first request goes on.",
        checks=(_in_flight,),
    ),
    Promise(
        id="repl.responsive",
        text="The host answers while a cell computes.",
        checks=(_responsive,),
    ),
    Promise(
        id="repl.death",
        text="A kernel's death is kernelDied with its exit code; the next cell runs.",
        checks=(_death,),
    ),
    Promise(
        id="repl.restart",
        text="`repl/restart` gives an empty namespace.",
        checks=(_restart,),
    ),
    Promise(
        id="repl.complete",
        text="`repl/complete` and `repl/inspect` know live objects.",
        checks=(_complete,),
    ),
    Promise(
        id="repl.large",
        text="Long output is cut, said to be cut, and whole in its artifact.",
        checks=(_large,),
    ),
    Promise(
        id="repl.leaves-nothing",
        text="No process of a kernel outlives its host, SIGKILL included.",
        checks=(_ends,),
    ),
)
