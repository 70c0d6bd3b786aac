"""Promises about lines: what is refused, what is read, what a frame may hold."""

import json

from ...limits import KERNEL_REQUEST_BYTES
from ..promise import Promise, expect
from .driver import Cell, Runtime
from .golden import golden, hostile
from .kit import RuntimeKit, probe

TEXT = "€ 𝄞 🍸 ü"
SEPARATORS = "a\u2028b\u2029c"
MIB = 1024 * 1024


def _ready(kit: RuntimeKit) -> None:
    with kit.fresh() as runtime:
        first = runtime.events[0]
        expect(first["event"] == "ready", "the first event is not `ready`", first=first)
        expect(first["python"], "`ready` does not name the interpreter's version")
        probe(kit, runtime)


def _announced(kit: RuntimeKit) -> None:
    number = (kit.shared().ready or {}).get("protocol")
    expect(number in (1, 3), "`ready` announces an unknown protocol", protocol=number)


def _oversized(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    heard = len(runtime.events)
    runtime.send(b'{"type":"execute","id":"huge","code":"' + b"#" * KERNEL_REQUEST_BYTES + b'"}')
    runtime.wait(lambda: bool(runtime.refusals(heard)), "ProtocolError for a line over the limit")
    probe(kit, runtime)
    expect(len(runtime.refusals(heard)) == 1, "one line led to several errors")


def _endless(kit: RuntimeKit) -> None:
    """A stream without LF: everything is taken, and what follows the LF is served."""
    runtime = kit.shared()
    heard = len(runtime.events)
    runtime.child.write(b"x" * (KERNEL_REQUEST_BYTES + 4 * MIB))
    runtime.taken()
    runtime.send(b"x")
    probe(kit, runtime)
    expect(len(runtime.refusals(heard)) == 1, "a line without end did not lead to one error")


def _large(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    line = kit.code("comment")
    cell = runtime.run(line * (4 * MIB // len(line)) + kit.code("value"))
    expect(cell.result == kit.language.field("value", "result"), "a cell of 4 MiB has no result")


def _print_text(
    kit: RuntimeKit, runtime: Runtime, text: str, *, ascii_: bool
) -> tuple[Cell, bytes]:
    """Give a cell that prints a text, and its request as a line in one of JSON's spellings."""
    cell = runtime.expect_done(runtime.new_id())
    code = kit.code("print_text").replace("@text@", text)
    request = {"type": "execute", "id": cell.id, "code": code}
    return cell, json.dumps(request, ensure_ascii=ascii_).encode()


def _utf8(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    for ascii_, how in ((False, "raw"), (True, "escaped")):
        cell, line = _print_text(kit, runtime, TEXT, ascii_=ascii_)
        runtime.send(line)
        runtime.done(cell.id)
        expect(cell.text() == TEXT + "\n", f"{how} text came back changed", text=cell.text())


def _unaligned(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell, line = _print_text(kit, runtime, TEXT, ascii_=False)
    for n in range(len(line)):
        runtime.child.write(line[n : n + 1])
        runtime.taken()
    runtime.send(b"")
    runtime.done(cell.id)
    expect(cell.text() == TEXT + "\n", "text sent byte by byte changed", text=cell.text())


def _separators(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell, line = _print_text(kit, runtime, SEPARATORS, ascii_=False)
    runtime.send(line)
    runtime.done(cell.id)
    expect(cell.text() == SEPARATORS + "\n", "the text came back changed", text=cell.text())


def _no_nan(kit: RuntimeKit) -> None:
    """What NaN becomes (null, an error of the cell) is free; a bare token is not."""
    runtime = kit.shared()
    runtime.run(kit.code("display_nan"))
    probe(kit, runtime)


def _surrogates(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    cell = runtime.run(kit.code("print_surrogate"))
    expect(cell.done and cell.done["status"] == "ok", "a lone surrogate cannot be printed")
    text = kit.language.field("print_surrogate", "text")
    expect(text in cell.text(), "what stands beside a lone surrogate is lost", text=cell.text())


def _display(kit: RuntimeKit) -> None:
    cell = kit.shared().run(kit.code("display"))
    shown = cell.one("display")
    wanted = json.loads(kit.language.field("display", "data"))
    expect(shown and shown["data"] == wanted, "a `display` is not what was shown", shown=shown)


PROMISES: tuple[Promise[RuntimeKit], ...] = (
    Promise(
        id="core.ready",
        text="`ready` is the first line, and comes once.",
        checks=(_ready,),
    ),
    Promise(
        id="core.announce",
        text="`ready` announces protocol 3, or 1.",
        checks=(_announced,),
    ),
    Promise(
        id="core.frames",
        text="Every line is one event of the protocol: UTF-8, JSON, the fields of its kind.",
        checks=(_surrogates,),
    ),
    Promise(
        id="core.no-nan",
        text="No frame holds NaN or Infinity.",
        checks=(_no_nan,),
    ),
    Promise(
        id="core.display",
        text="A cell can show rich output.",
        checks=(_display,),
    ),
    Promise(
        id="core.malformed",
        text="A line that is no request is one ProtocolError with id null, and no `done`.",
        checks=(hostile("core.malformed"),),
        since=3,
    ),
    Promise(
        id="core.unknown-request",
        text="A request of an unknown type is a ProtocolError.",
        checks=(hostile("core.unknown-request"),),
    ),
    Promise(
        id="core.id-types",
        text="An id that is no string is refused.",
        checks=(hostile("core.id-types"),),
        since=3,
    ),
    Promise(
        id="core.tolerant",
        text="Blank lines, CR and unknown fields do no harm.",
        checks=(hostile("core.tolerant"), golden("core.tolerant")),
    ),
    Promise(
        id="core.oversized",
        text="A line over 32 MiB is one ProtocolError, and the next line is served.",
        checks=(_oversized, _endless),
        since=3,
    ),
    Promise(
        id="core.large-request",
        text="A cell of 4 MiB runs.",
        checks=(_large,),
    ),
    Promise(
        id="core.utf8",
        text="Text means the same raw, escaped and cut at any byte.",
        checks=(_utf8, _unaligned),
    ),
    Promise(
        id="core.separators",
        text="U+2028 and U+2029 end no line on the way in, and are escaped on the way out.",
        checks=(_separators,),
    ),
)
