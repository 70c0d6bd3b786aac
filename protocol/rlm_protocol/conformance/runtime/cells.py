"""Promises about running cells: results, namespace, order, attribution, survival."""

import functools

from ..promise import NotSupported, Promise, expect
from .golden import golden
from .kit import RuntimeKit, probe


def _nonce(kit: RuntimeKit) -> None:
    """The driver looks at every `done`; without the feature there is nothing to look for."""
    runtime = kit.shared()
    kit.needs(runtime, "nonce")
    probe(kit, runtime)


def _fifo(kit: RuntimeKit) -> None:
    runtime, gate = kit.shared(), kit.path()
    ids = [runtime.new_id() for _ in range(4)]
    codes = [kit.code("gate", gate=gate), *[kit.code("print")] * 3]
    runtime.send(
        *(
            {"type": "execute", "id": id_, "code": code}
            for id_, code in zip(ids, codes, strict=True)
        )
    )
    runtime.text(runtime.cell(ids[0]), kit.language.field("gate", "waiting"))
    gate.touch()
    for id_ in ids:
        runtime.done(id_)
    order = [event["id"] for event in runtime.events if event.get("id") in ids]
    expect(order == sorted(order, key=ids.index), "events of waiting cells come out of order")
    probe(kit, runtime)


def _duplicate(kit: RuntimeKit) -> None:
    runtime, gate = kit.shared(), kit.path()
    heard = len(runtime.events)
    cell = runtime.execute(kit.code("gate", gate=gate))
    runtime.text(cell, kit.language.field("gate", "waiting"))
    runtime.send({"type": "execute", "id": cell.id, "code": kit.code("print")})
    runtime.wait(lambda: bool(runtime.refusals(heard)), "ProtocolError for the second request")
    gate.touch()
    runtime.done(cell.id)
    probe(kit, runtime)
    expect(cell.text() == kit.language.field("gate", "stdout"), "the first one's output changed")
    expect(len(runtime.refusals(heard)) == 1, "the second request led to several errors")


def _id_again(kit: RuntimeKit) -> None:
    """An id may be used again once its request is done."""
    runtime = kit.shared()
    cell = runtime.run(kit.code("print"))
    before = len(cell.events)
    runtime.send({"type": "execute", "id": cell.id, "code": kit.code("print")})
    runtime.wait(lambda: len(cell.events) >= 2 * before, "second run of a used id")


def _task(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    start = runtime.run(kit.code("task_start"))
    end = runtime.run(kit.code("task_join"))
    _written_by(kit, "task_start", start.text(), end.text())


def _thread(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    for name in ("thread_start", "thread_start_context"):
        heard = len(runtime.events)
        start = runtime.run(kit.code(name))
        end = runtime.run(kit.code("thread_join"))
        nobody = "".join(
            event["text"]
            for event in runtime.events[heard:]
            if event["event"] == "stdout" and event.get("id") is None
        )
        _written_by(kit, name, nobody, start.text() + end.text())


def _written_by(kit: RuntimeKit, name: str, author: str, others: str) -> None:
    text = kit.language.field(name, "text")
    expect(text not in others, "late output carries a cell that did not write it", text=text)
    expect(text in author, "late output is not where it belongs", text=text, there=author)


def _between(kit: RuntimeKit) -> None:
    runtime, gate = kit.shared(), kit.path()
    start = runtime.run(kit.code("process_writes_later", gate=gate))
    text = kit.language.field("process_writes_later", "text")
    heard = len(runtime.events)
    gate.touch()

    def late() -> list[object]:
        return [
            event.get("id")
            for event in runtime.events[heard:]
            if event["event"] == "stdout" and text in event["text"]
        ]

    runtime.wait(lambda: bool(late()), "output of a process between cells")
    expect(late() == [None], "output between cells carries an id", id=late(), cell=start.id)


def _survives(kit: RuntimeKit) -> None:
    """What a cell does to the interpreter ends that cell, and the next one runs."""
    names = sorted(name for name in kit.language.names if name.startswith("survive_"))
    if not names:
        raise NotSupported("the language file has no cell whose name begins with `survive_`")
    kit.each((name, functools.partial(_survive, kit, name)) for name in names)
    printed = kit.shared().run(kit.code("print"))
    expect(printed.text() == kit.language.field("print", "stdout"), "a later cell cannot print")


def _survive(kit: RuntimeKit, name: str) -> None:
    runtime = kit.shared()
    cell = runtime.run(kit.code(name))
    wanted = kit.language.field(name, "ename")
    expect(wanted in ("", cell.ename), f"it did not end with {wanted}", error=cell.ename)
    probe(kit, runtime)


def _background(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    runtime.run(kit.code("task_unnamed"))
    cell = runtime.run(kit.code("task_unnamed_join"))
    wanted = kit.language.field("task_unnamed_join", "result")
    expect(cell.result == wanted, "a task that nobody holds did not run on", result=cell.result)


def _sources(kit: RuntimeKit) -> None:
    cell = kit.shared().run(kit.code("raise_deep"))
    error = cell.one("error")
    text = "".join(error["traceback"]) if error else ""
    for line in kit.language.field("raise_deep", "lines").splitlines():
        expect(line in text, "the traceback lacks a line of the cell", line=line, traceback=text)
    expect("\x1b" not in text, "the traceback is coloured", traceback=text)


PROMISES: tuple[Promise[RuntimeKit], ...] = (
    Promise(
        id="core.result",
        text="A trailing expression's text comes as `result`.",
        checks=(golden("core.result"),),
    ),
    Promise(
        id="core.no-result",
        text="None, an assignment and a statement have no `result`.",
        checks=(golden("core.no-result"),),
    ),
    Promise(
        id="core.silent",
        text="A silent cell has no `result` and leaves `_` alone; its output is shown.",
        checks=(golden("core.silent"),),
    ),
    Promise(
        id="core.last-value",
        text="`_` is the last result.",
        checks=(golden("core.last-value"),),
    ),
    Promise(
        id="core.namespace",
        text="All cells share one namespace.",
        checks=(golden("core.namespace"),),
    ),
    Promise(
        id="core.await",
        text="A cell may await at its top level.",
        checks=(golden("core.await"),),
    ),
    Promise(
        id="core.partial",
        text="Names bound before an exception stay.",
        checks=(golden("core.partial"),),
    ),
    Promise(
        id="core.error",
        text="A failing cell has one `error` with name, value and traceback, then `done` error.",
        checks=(golden("core.error"),),
    ),
    Promise(
        id="core.traceback",
        text="A traceback is plain text and shows the cell's own lines.",
        checks=(_sources,),
    ),
    Promise(
        id="core.order",
        text="A cell's output comes before its `result` or `error`, and `done` comes last.",
        checks=(golden("core.order"),),
    ),
    Promise(
        id="core.done-once",
        text="Every accepted request has exactly one `done`, after its other events.",
        checks=(golden("core.done-once"),),
    ),
    Promise(
        id="core.nonce",
        text="Every `done` carries the nonce that `ready` announced.",
        checks=(_nonce,),
    ),
    Promise(
        id="core.fifo",
        text="Requests run one at a time, in order of arrival.",
        checks=(_fifo,),
    ),
    Promise(
        id="core.duplicate-id",
        text="An id that is in flight is refused, and the first request goes on.",
        checks=(_duplicate,),
        since=3,
    ),
    Promise(
        id="core.id-again",
        text="An id may be used again after its `done`.",
        checks=(_id_again,),
    ),
    Promise(
        id="core.survives",
        text="Nothing that a cell does to the interpreter ends the runtime.",
        checks=(_survives,),
        since=3,
    ),
    Promise(
        id="core.background",
        text="Background tasks run on between cells, even when nobody holds them.",
        checks=(_background,),
    ),
    Promise(
        id="core.task-output",
        text="A background task's output carries the id of the cell that started it, for life.",
        checks=(_task,),
        since=3,
    ),
    Promise(
        id="core.thread-output",
        text="A thread's output carries no id, however it was started.",
        checks=(_thread,),
        since=3,
    ),
    Promise(
        id="core.idle-output",
        text="What arrives between cells carries no id.",
        checks=(_between,),
    ),
)
