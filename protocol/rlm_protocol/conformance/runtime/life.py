"""Promises about names and the end of a runtime."""

from ..child import children, end_processes, wait_for
from ..promise import NotSupported, Promise, expect
from .kit import RuntimeKit, probe

SHUTDOWN_S = 2.0
ALLOWANCE_S = 3.0
"""A loaded machine may need this much longer than what is promised."""


def _list_names(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    runtime.run(kit.code("bind_names"))
    names = runtime.ask("list_names")["names"]
    wanted = kit.language.field("bind_names", "names").split()
    expect(set(wanted) <= set(names), "names of a cell are missing", names=names)
    expect(names == sorted(names), "names are not sorted", names=names)
    hidden = kit.language.field("bind_names", "hidden").split()
    expect(not set(hidden) & set(names), "private names are listed", names=names)


def _details(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    kit.needs(runtime, "detail")
    runtime.run(kit.code("bind_names"))
    rows = {row["name"]: row for row in runtime.ask("list_names", detail=True)["details"]}
    for name in kit.language.field("bind_names", "names").split():
        expect(name in rows and rows[name]["type"], "a name has no detail", name=name)


def _complete(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    kit.needs(runtime, "complete")
    runtime.run(kit.code("bind_object"))
    code = kit.language.field("bind_object", "complete")
    done = runtime.ask("complete", code=code, cursor=len(code))
    wanted = kit.language.field("bind_object", "match")
    expect(wanted in done.get("matches", ()), "a name is not completed", matches=done)
    expect(done["cursor_end"] == len(code), "the completion is not at the cursor", done=done)
    _ran_nothing(kit)


def _inspect(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    kit.needs(runtime, "inspect")
    runtime.run(kit.code("bind_object"))
    code = kit.language.field("bind_object", "inspect")
    done = runtime.ask("inspect", code=code, cursor=len(code))
    expect(done.get("found") is True, "a name is not found", done=done)
    wanted = kit.language.field("bind_object", "described")
    expect(wanted in done.get("text", ""), "the description lacks the docstring", done=done)
    code = kit.language.field("bind_object", "untouchable")
    runtime.ask("inspect", code=code, cursor=len(code))
    unknown = runtime.ask("inspect", code="no_such_name", cursor=3)
    expect(unknown.get("found") is False, "an unknown name is found", done=unknown)
    _ran_nothing(kit)


def _ran_nothing(kit: RuntimeKit) -> None:
    """Completing and inspecting an object with a watching property did not run it."""
    cell = kit.shared().run(kit.code("object_untouched"))
    wanted = kit.language.field("object_untouched", "result")
    expect(cell.result == wanted, "user code was run", touched=cell.result)


def _while_awaiting(kit: RuntimeKit) -> None:
    runtime, gate = kit.shared(), kit.path()
    kit.needs(runtime, "complete")
    runtime.run(kit.code("bind_object"))
    code = kit.language.field("bind_object", "complete")
    cell = runtime.execute(kit.code("gate", gate=gate))
    runtime.text(cell, kit.language.field("gate", "waiting"))
    runtime.ask("complete", code=code, cursor=len(code))
    expect(cell.done is None, "the completion waited for the cell")
    gate.touch()
    runtime.done(cell.id)


def _shutdown(kit: RuntimeKit) -> None:
    with kit.fresh() as runtime:
        probe(kit, runtime)
        done = runtime.ask("shutdown")
        expect(done["status"] == "ok", "the shutdown failed", done=done)
        code = runtime.gone(SHUTDOWN_S + ALLOWANCE_S)
        expect(code == 0, "the exit code is not 0", code=code)


def _shutdown_busy(kit: RuntimeKit) -> None:
    for name in ("loop", "await_long"):
        with kit.fresh() as runtime:
            cell = runtime.execute(kit.code(name))
            runtime.text(cell, kit.language.field(name, "running"))
            id_ = runtime.new_id()
            runtime.send({"type": "shutdown", "id": id_})
            code = runtime.gone(SHUTDOWN_S + ALLOWANCE_S)
            expect(code == 0, "the exit code is not 0", code=code, cell=name)
            expect(runtime.cell(id_).done, "the shutdown is not answered", cell=name)


def _shutdown_unnamed(kit: RuntimeKit) -> None:
    with kit.fresh() as runtime:
        runtime.send({"type": "shutdown"})
        code = runtime.gone(SHUTDOWN_S + ALLOWANCE_S)
        expect(code == 0, "the exit code is not 0", code=code)
        expect(runtime.events[-1]["event"] != "done", "a shutdown without id is answered")


def _eof(kit: RuntimeKit) -> None:
    for name in (None, "loop", "await_long"):
        with kit.fresh() as runtime:
            if name is not None:
                cell = runtime.execute(kit.code(name))
                runtime.text(cell, kit.language.field(name, "running"))
            runtime.child.close_stdin()
            code = runtime.gone(SHUTDOWN_S + ALLOWANCE_S)
            expect(code == 0, "the exit code is not 0", code=code, cell=name)


def _leaves_nothing(kit: RuntimeKit) -> None:
    if not kit.adopts:
        raise NotSupported("this machine cannot count the processes of a command")
    kit.discard()
    before = children()
    with kit.fresh() as runtime:
        runtime.run(kit.code("process_stays"))
        runtime.child.close_stdin()
        runtime.gone(SHUTDOWN_S + ALLOWANCE_S)
    gone = wait_for(lambda: not children() - before, SHUTDOWN_S)
    left = len(children() - before)
    end_processes(lambda: children() - before)
    expect(gone, "processes of cells are left behind", left=left)


PROMISES: tuple[Promise[RuntimeKit], ...] = (
    Promise(
        id="core.list-names",
        text="`list_names` gives the user's names, sorted; `detail` adds the type of each.",
        checks=(_list_names, _details),
        since=2,
    ),
    Promise(
        id="core.complete",
        text="`complete` finishes a name at the cursor, even while a cell awaits.",
        checks=(_complete, _while_awaiting),
    ),
    Promise(
        id="core.inspect",
        text="`inspect` describes a name at the cursor and runs no code of the user.",
        checks=(_inspect,),
    ),
    Promise(
        id="core.shutdown",
        text="`shutdown` is answered with `done`, and the process exits with 0 within 2 s.",
        checks=(_shutdown, _shutdown_unnamed),
    ),
    Promise(
        id="core.shutdown-busy",
        text="`shutdown` is answered within 2 s whatever a cell does.",
        checks=(_shutdown_busy,),
        since=3,
    ),
    Promise(
        id="core.eof",
        text="The end of stdin ends the process with 0 within 2 s, whatever a cell does.",
        checks=(_eof,),
        since=3,
    ),
    Promise(
        id="core.leaves-nothing",
        text="No process that a cell started outlives the runtime, detached ones neither.",
        checks=(_leaves_nothing,),
        since=3,
    ),
)
