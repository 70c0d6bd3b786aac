"""
Python files with `# %%` cells: where the cells lie, and which result belongs to which. Pure.

A result belongs to a cell for as long as the cell's code is what ran: lines may be added above it
and cells moved, an edit of the code itself takes the result away.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as LSP counts them (3.17, Text Documents): no other character ends one."""
MARKER = re.compile(r"#\s*(?:%%|<codecell>|In\[[\d ]*\])(?P<rest>.*)")
"""What starts a cell: what Jupyter's tools take for one."""
NO_CODE = re.compile(r"\s*(?:[^\[]*)\[(?:markdown|raw)\]", re.IGNORECASE)
SUMMARY_CHARS = 100
DETAIL_CHARS = 4000
_FRAME = re.compile(r'File "(?P<cell><cell-\d+>)", line (?P<line>\d+)')
_TRACEBACK = "Traceback (most recent call last):"

RunStatus = Literal["running", "ok", "error", "interrupted"]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell. Lines count from 0; `code` starts at `code_line`, `last_line` ends its text."""

    line: int
    code_line: int
    end_line: int
    last_line: int
    title: str
    code: str
    runs: bool


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a run. `raised_line` counts from the first line of the code, from 0."""

    status: RunStatus
    summary: str
    detail: str = ""
    raised_line: int | None = None


def lines_of(text: str) -> tuple[str, ...]:
    """Give the lines with their ends; a text that ends with a line end has no empty last one."""
    return tuple(LINE.findall(text))


def cells_of(text: str) -> tuple[Cell, ...]:
    """Give the cells in order; none without a marker. Text before the first marker is a cell."""
    lines = lines_of(text)
    marked = [(at, m["rest"]) for at, line in enumerate(lines) if (m := MARKER.match(line))]
    if not marked:
        return ()
    ends = [*(at for at, _ in marked[1:]), len(lines)]
    found = [
        _cell(lines, at, at + 1, end, rest) for (at, rest), end in zip(marked, ends, strict=True)
    ]
    head = _cell(lines, 0, 0, marked[0][0], "")
    return (head, *found) if head.runs else tuple(found)


def cell_at(cells: Iterable[Cell], line: int) -> Cell | None:
    """Give the cell that the line lies in."""
    return next((cell for cell in cells if cell.line <= line < max(cell.end_line, 1)), None)


def _cell(lines: tuple[str, ...], line: int, code_line: int, end: int, rest: str) -> Cell:
    body = lines[code_line:end]
    filled = [at for at, text in enumerate(body) if text.strip()]
    return Cell(
        line=line,
        code_line=code_line,
        end_line=end,
        last_line=code_line + filled[-1] if filled else line,
        title=rest.strip(),
        code="".join(body[: filled[-1] + 1]) if filled else "",
        runs=bool(filled) and not NO_CODE.match(rest),
    )


class Results:
    """The results of one document's cells."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], CellResult] = {}

    def put(self, cells: Iterable[Cell], cell: Cell, result: CellResult) -> None:
        """Let a result belong to one of the document's cells."""
        key = next((key for key, one in _keyed(cells) if one == cell), (cell.code, 0))
        self._of[key] = result

    def clear(self) -> None:
        """Forget all of them."""
        self._of.clear()

    def shown(self, cells: Iterable[Cell]) -> list[tuple[Cell, CellResult]]:
        """Give each cell that has a result with it, in order; forget those that none has."""
        keyed = [(key, cell) for key, cell in _keyed(cells) if key in self._of]
        self._of = {key: self._of[key] for key, _ in keyed}
        return [(cell, self._of[key]) for key, cell in keyed]


def _keyed(cells: Iterable[Cell]) -> Iterator[tuple[tuple[str, int], Cell]]:
    """Tell cells with the same code apart by their order."""
    seen: dict[str, int] = {}
    for cell in cells:
        nth = seen.get(cell.code, 0)
        seen[cell.code] = nth + 1
        yield (cell.code, nth), cell


def raised_line(traceback: str) -> int | None:
    """
    Give the line of the cell's code, from 0, that a traceback of the runtime blames.

    It is the cell's innermost line of the exception that was raised last; a line of a function that
    an earlier cell defined is that cell's, not this one's.
    """
    last = traceback[max(traceback.rfind(_TRACEBACK), 0) :]
    frames = [(m["cell"], int(m["line"])) for m in _FRAME.finditer(last)]
    own = [line for cell, line in frames if cell == frames[0][0]]
    return own[-1] - 1 if own else None


def summary_of(text: str) -> str:
    """Give a text as one short line."""
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"


def detail_of(*texts: str) -> str:
    """Give the texts that are not empty, cut to what a tooltip can show."""
    whole = "\n".join(text.rstrip("\n") for text in texts if text.strip())
    return whole if len(whole) <= DETAIL_CHARS else whole[:DETAIL_CHARS] + "\n…"
