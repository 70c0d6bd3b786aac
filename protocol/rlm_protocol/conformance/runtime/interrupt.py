"""Promises about interrupts: who is hit, who never is, and that it always ends."""

from ..promise import Promise, expect
from .driver import Cell, Runtime
from .kit import Check, RuntimeKit, ended_by_interrupt, probe

RACES = 20


def _running(*names: str) -> Check:
    """Give the check that each of these cells ends when it is interrupted while it runs."""

    def check(kit: RuntimeKit) -> None:
        runtime = kit.shared()
        for name in names:
            cell = _started(kit, runtime, name)
            runtime.interrupt(cell.id)
            ended_by_interrupt(kit, runtime, cell, name)
            probe(kit, runtime)

    return check


def _started(kit: RuntimeKit, runtime: Runtime, name: str) -> Cell:
    cell = runtime.execute(kit.code(name))
    runtime.text(cell, kit.language.field(name, "running"))
    return cell


def _untargeted_running(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell = _started(kit, runtime, "loop")
    runtime.interrupt()
    ended_by_interrupt(kit, runtime, cell, "loop")
    probe(kit, runtime)


def _same_write(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    for named in (True, False):
        cell = runtime.expect_done(runtime.new_id())
        hit = {"id": cell.id} if named else {}
        runtime.send(
            {"type": "execute", "id": cell.id, "code": kit.code("sleep_long")},
            {"type": "interrupt", **hit},
        )
        ended_by_interrupt(kit, runtime, cell, "sleep_long")
    probe(kit, runtime)


def _queued(kit: RuntimeKit) -> None:
    """An interrupt for a waiting request hits it when its turn comes, and not the running one."""
    runtime, gate = kit.shared(), kit.path()
    first = runtime.execute(kit.code("gate", gate=gate))
    runtime.text(first, kit.language.field("gate", "waiting"))
    second = runtime.execute(kit.code("await_long"))
    third = runtime.execute(kit.code("value"))
    heard = len(runtime.events)
    runtime.send({"type": "interrupt", "id": second.id}, b"barrier")
    runtime.wait(lambda: bool(runtime.refusals(heard)), "ProtocolError for the line behind it")
    gate.touch()
    runtime.done(first.id)
    expect(first.ename is None, "an interrupt for a waiting request hit the running one")
    ended_by_interrupt(kit, runtime, second, "await_long")
    runtime.done(third.id)
    wanted = kit.language.field("value", "result")
    expect(third.result == wanted, "the request behind it was hit", error=third.one("error"))


def _consumed(kit: RuntimeKit) -> None:
    """An untargeted interrupt is spent by one request, also by one that fails to compile."""
    runtime = kit.shared()
    for first in (None, "sleep_long"):
        names = [name for name in (first, "syntax_error") if name]
        cells = [runtime.expect_done(runtime.new_id()) for _ in range(len(names) + 1)]
        codes = [kit.code(name) for name in (*names, "value")]
        requests = [
            {"type": "execute", "id": cell.id, "code": code}
            for cell, code in zip(cells, codes, strict=True)
        ]
        runtime.send(*requests[:-1], {"type": "interrupt"}, requests[-1])
        for cell in cells:
            runtime.done(cell.id)
        wanted = kit.language.field("value", "result")
        expect(cells[-1].result == wanted, "a spent interrupt hit the next request", first=first)


def _unknown(kit: RuntimeKit) -> None:
    runtime, gate = kit.shared(), kit.path()
    heard = len(runtime.events)
    runtime.interrupt("nobody")
    cell = runtime.execute(kit.code("gate", gate=gate))
    runtime.text(cell, kit.language.field("gate", "waiting"))
    runtime.send({"type": "interrupt", "id": "nobody"}, b"barrier")
    runtime.wait(lambda: bool(runtime.refusals(heard)), "ProtocolError for the line behind it")
    gate.touch()
    runtime.done(cell.id)
    expect(cell.ename is None, "an interrupt for an unknown id hit the running cell")
    expect(len(runtime.refusals(heard)) == 1, "an interrupt for an unknown id is answered")


def _idle(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    heard = len(runtime.events)
    for _ in range(RACES):
        runtime.interrupt()
        runtime.taken()
    runtime.send(b"barrier")
    runtime.wait(lambda: bool(runtime.refusals(heard)), "ProtocolError for the line behind it")
    probe(kit, runtime)
    expect(len(runtime.events) - heard <= 3, "an interrupt while idle leads to events")


def _finished(kit: RuntimeKit) -> None:
    """An interrupt for a request that is over hits nobody."""
    runtime = kit.shared()
    for _ in range(RACES):
        over = runtime.run(kit.code("value"))
        runtime.interrupt(over.id)
        probe(kit, runtime)


def _back_to_back(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    wanted = kit.language.field("value", "result")
    for _ in range(RACES):
        cell = _started(kit, runtime, "loop")
        after = runtime.expect_done(runtime.new_id())
        runtime.send(
            {"type": "interrupt", "id": cell.id},
            {"type": "execute", "id": after.id, "code": kit.code("value")},
        )
        ended_by_interrupt(kit, runtime, cell, "loop")
        runtime.done(after.id)
        expect(after.result == wanted, "the cell behind an interrupt was hit")


def _during_output(kit: RuntimeKit) -> None:
    runtime, before = kit.shared(), len(kit.violations)
    for _ in range(RACES // 4):
        cell = runtime.execute(kit.code("print_forever"))
        runtime.wait(lambda c=cell: bool(c.text()), "output")  # type: ignore[misc]
        runtime.child.reading = False
        runtime.interrupt(cell.id)
        runtime.child.pump(lambda: False, 0.1)
        runtime.child.reading = True
        ended_by_interrupt(kit, runtime, cell, "print_forever")
        expect(len(kit.violations) == before, "a frame was torn; see `core.frames`")
    probe(kit, runtime)


def _silence(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell = _started(kit, runtime, "await_loop")
    runtime.interrupt(cell.id)
    ended_by_interrupt(kit, runtime, cell, "await_loop")
    runtime.run(kit.code("await_short"))
    last = [event["event"] for event in cell.events][-1]
    expect(last == "done", "an interrupted coroutine goes on printing", last=last)


def _others_live(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    runtime.run(kit.code("task_unnamed"))
    for name in ("sleep_long", "await_long"):
        cell = _started(kit, runtime, name)
        runtime.interrupt(cell.id)
        ended_by_interrupt(kit, runtime, cell, name)
    after = runtime.run(kit.code("task_unnamed_join"))
    wanted = kit.language.field("task_unnamed_join", "result")
    expect(after.result == wanted, "a task of an earlier cell died", error=after.one("error"))


def _handler(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    runtime.run(kit.code("ignore_interrupts"))
    _running("loop", "await_long")(kit)


PROMISES: tuple[Promise[RuntimeKit], ...] = (
    Promise(
        id="interrupt.running",
        text="A cell that computes, or waits in a system call, ends with an interrupt's error.",
        checks=(_running("loop", "sleep_long"), _untargeted_running),
    ),
    Promise(
        id="interrupt.await",
        text="A cell that awaits ends with an interrupt's error.",
        checks=(_running("await_long"),),
    ),
    Promise(
        id="interrupt.starved",
        text="A cell whose loop is held by another task ends, too.",
        checks=(_running("await_starved"),),
    ),
    Promise(
        id="interrupt.subprocess",
        text="A cell that waits for its subprocess ends.",
        checks=(_running("process_long"),),
    ),
    Promise(
        id="interrupt.late",
        text="A cell is interruptible until its `done`, also while its result is made into text.",
        checks=(_running("result_slow"),),
        since=3,
    ),
    Promise(
        id="interrupt.uncatchable",
        text="A cell that catches ordinary errors does not catch its interrupt.",
        checks=(_running("catch_sleep", "catch_await"),),
    ),
    Promise(
        id="interrupt.same-write",
        text="A request and its interrupt in one write: it is interrupted.",
        checks=(_same_write,),
    ),
    Promise(
        id="interrupt.by-id",
        text="An interrupt for a waiting request waits for it and hits nobody else.",
        checks=(_queued,),
    ),
    Promise(
        id="interrupt.untargeted",
        text="An interrupt without id is spent by one request, also by one that does not compile.",
        checks=(_consumed,),
        since=3,
    ),
    Promise(
        id="interrupt.unknown-id",
        text="An interrupt for an unknown id does nothing.",
        checks=(_unknown,),
    ),
    Promise(
        id="interrupt.finished",
        text="An interrupt for a request that is over does nothing.",
        checks=(_finished,),
    ),
    Promise(
        id="interrupt.idle",
        text="An interrupt while nothing runs or waits does nothing.",
        checks=(_idle,),
    ),
    Promise(
        id="interrupt.back-to-back",
        text="An interrupt and the next cell in one write: the next cell is not hit.",
        checks=(_back_to_back,),
    ),
    Promise(
        id="interrupt.output",
        text="An interrupt during heavy output with a slow reader tears no frame.",
        checks=(_during_output,),
    ),
    Promise(
        id="interrupt.silence",
        text="An interrupted coroutine does not go on in the background.",
        checks=(_silence,),
    ),
    Promise(
        id="interrupt.others-live",
        text="Tasks of earlier cells live through an interrupt.",
        checks=(_others_live,),
    ),
    Promise(
        id="interrupt.handler",
        text="A cell that changes the signal's handling changes it for itself alone.",
        checks=(_handler,),
        since=3,
    ),
)
