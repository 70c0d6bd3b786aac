"""Promises about output: whole, bounded, in time, whoever writes it."""

from ...limits import RESULT_REPR_CHARS
from ..promise import Promise, expect
from .driver import Cell
from .kit import RuntimeKit, probe

FLOOD_CHARS = 8 * 1024 * 1024


def _printed(kit: RuntimeKit, name: str) -> Cell:
    """Run a cell and hold it to everything that its snippet says it writes."""
    cell = kit.shared().run(kit.code(name))
    status = cell.done and cell.done["status"]
    expect(status == "ok", "the cell failed", error=cell.one("error"))
    for stream in ("stdout", "stderr"):
        wanted = kit.language.field(name, stream)
        expect(cell.text(stream) == wanted, f"its {stream} is not whole", seen=cell.text(stream))
    return cell


def _streams(kit: RuntimeKit) -> None:
    _printed(kit, "print_both")


def _flood(kit: RuntimeKit) -> None:
    cell = kit.shared().run(kit.code("flood"))
    expect(len(cell.text()) == FLOOD_CHARS, "output is lost or doubled", chars=len(cell.text()))
    expect(cell.text().strip("x") == "", "output is changed")


def _long_texts(kit: RuntimeKit) -> None:
    """Long reprs, values and tracebacks still fit into a frame; the driver looks at each."""
    runtime = kit.shared()
    runtime.run(kit.code("long_result"))
    for name in ("raise_long", "raise_wide"):
        cell = runtime.run(kit.code(name))
        expect(cell.ename == kit.language.field(name, "ename"), "a long error has another name")
    probe(kit, runtime)


def _result_cap(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell = runtime.run(kit.code("long_result"))
    event = cell.one("result")
    expect(event, "a long result is missing")
    assert event is not None
    chars, true = len(event["text"]), int(kit.language.field("long_result", "chars"))
    expect(chars <= RESULT_REPR_CHARS, "a result is not cut", chars=chars)
    if "length" in runtime.features():
        expect(event.get("length") == true, "the true length is not told", said=event.get("length"))


def _while_running(kit: RuntimeKit) -> None:
    runtime, gate = kit.shared(), kit.path()
    cell = runtime.execute(kit.code("gate_busy", gate=gate))
    runtime.text(cell, kit.language.field("gate_busy", "waiting"))
    expect(cell.done is None, "the cell ended before its gate was open")
    gate.touch()
    runtime.done(cell.id)


def _subprocess(kit: RuntimeKit) -> None:
    _printed(kit, "process_prints")


def _subprocess_flood(kit: RuntimeKit) -> None:
    cell = kit.shared().run(kit.code("process_floods"))
    sizes = tuple(len(cell.text(stream)) for stream in ("stdout", "stderr"))
    wanted = int(kit.language.field("process_floods", "chars"))
    expect(sizes == (wanted, wanted), "output of a process is not whole at `done`", sizes=sizes)


def _split_character(kit: RuntimeKit) -> None:
    _printed(kit, "raw_split")


def _cut_character(kit: RuntimeKit) -> None:
    """Half a character at a cell's end is not joined with the next cell's bytes."""
    runtime = kit.shared()
    runtime.run(kit.code("raw_half"))
    cell = runtime.run(kit.code("raw_rest"))
    wanted = kit.language.field("raw_rest", "text")
    expect(wanted in cell.text(), "the next cell's own bytes are lost", text=cell.text())
    whole = kit.language.field("raw_half", "joined")
    expect(whole not in cell.text(), "bytes of two cells were joined", text=cell.text())


def _native(kit: RuntimeKit) -> None:
    cell = kit.shared().run(kit.code("native_write"))
    wanted = int(kit.language.field("native_write", "chars"))
    expect(len(cell.text()) == wanted, "output of C code is not whole", chars=len(cell.text()))


def _closed_fds(kit: RuntimeKit) -> None:
    with kit.fresh() as runtime:
        cell = runtime.run(kit.code("close_fds"))
        wanted = kit.language.field("close_fds", "text")
        expect(wanted in cell.text(), "a print after closing 1 and 2 is lost", text=cell.text())
        probe(kit, runtime)


def _stdin(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell = runtime.run(kit.code("read_stdin"))
    wanted = kit.language.field("read_stdin", "ename")
    expect(cell.ename == wanted, "reading stdin does not end", error=cell.one("error"))
    _printed(kit, "process_reads_stdin")
    probe(kit, runtime)


PROMISES: tuple[Promise[RuntimeKit], ...] = (
    Promise(
        id="core.streams",
        text="What a cell writes comes as `stdout` and `stderr` with its id, all of it.",
        checks=(_streams,),
    ),
    Promise(
        id="core.flood",
        text="8 MiB printed at once arrive whole before `done`.",
        checks=(_flood,),
    ),
    Promise(
        id="core.while-running",
        text="Output comes while its cell still runs, without a flush by the cell.",
        checks=(_while_running,),
    ),
    Promise(
        id="core.frame-cap",
        text="No frame is over 1 MiB and no output event over 64 KiB of text.",
        checks=(_long_texts,),
        since=3,
    ),
    Promise(
        id="core.result-cap",
        text="A result's text is cut at 256 KiB, and its true length is told.",
        checks=(_result_cap,),
        since=3,
    ),
    Promise(
        id="core.process-output",
        text="Output of a finished subprocess is whole before `done`, on both streams.",
        checks=(_subprocess, _subprocess_flood),
    ),
    Promise(
        id="core.split-character",
        text="A character written in two pieces is one; half a one is never joined with others.",
        checks=(_split_character, _cut_character),
    ),
    Promise(
        id="core.native-output",
        text="C code that writes more than a pipe holds neither hangs nor loses anything.",
        checks=(_native,),
        since=3,
    ),
    Promise(
        id="core.closed-fds",
        text="A cell that closes fds 1 and 2 can still print.",
        checks=(_closed_fds,),
        since=3,
    ),
    Promise(
        id="core.stdin",
        text="Cells and their subprocesses see the end of stdin, never the protocol.",
        checks=(_stdin,),
    ),
)
