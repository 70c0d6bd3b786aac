"""
Python files with `# %%` cells: where the cells are, what came of them, where an error lies. Pure.

Results are remembered by a cell's code, not by its place: a cell that moves keeps its result, one
that is edited loses it.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

from rlm_protocol.repl import ReplExecuteResult

MARKER = re.compile(r"^#\s*%%(?P<title>.*)$")
CELL_FRAME = re.compile(r'File "(?P<cell><cell-[^"]*>)", line (?P<line>\d+)')
HINT_CHARS = 80


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """
    One cell of a document. Lines count from 0.

    `start_line` is the line of the marker, or 0 for code before the first marker; `code_line` the
    first line of code; `end_line` the last line of code that is not blank.
    """

    index: int
    title: str
    start_line: int
    code_line: int
    end_line: int
    code: str


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An error of a cell, at a line of the document."""

    line: int
    text: str


def cells(lines: Sequence[str]) -> tuple[Cell, ...]:
    """Give the document's cells; a document without a marker has none."""
    starts = [number for number, line in enumerate(lines) if MARKER.match(line)]
    if not starts:
        return ()
    has_head = any(line.strip() and not line.startswith("#!") for line in lines[: starts[0]])
    bounds = [*([0] if has_head else []), *starts, len(lines)]
    return tuple(_cells(lines, bounds))


def _cells(lines: Sequence[str], bounds: Sequence[int]) -> Iterator[Cell]:
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        marker = MARKER.match(lines[start].rstrip("\r\n"))
        first = start + 1 if marker else start
        last = max((n for n in range(first, end) if lines[n].strip()), default=first - 1)
        yield Cell(
            index=index,
            title=marker["title"].strip() if marker else "",
            start_line=start,
            code_line=first,
            end_line=max(last, start),
            code="".join(lines[first : last + 1]),
        )


def cell_at(found: Sequence[Cell], line: int) -> Cell | None:
    """Give the cell in which a line lies."""
    return next((cell for cell in reversed(found) if cell.start_line <= line), None)


class Results:
    """What came of the cells of one document, while their code stays as it was."""

    def __init__(self) -> None:
        self._results: dict[str, ReplExecuteResult] = {}

    def put(self, code: str, result: ReplExecuteResult) -> None:
        """Remember what came of this code last."""
        self._results[code] = result

    def hint(self, cell: Cell) -> str | None:
        """Give what an editor shows beside the cell, None when it has not run as it stands."""
        result = self._results.get(cell.code)
        return None if result is None else hint(result)

    def faults(self, found: Sequence[Cell]) -> list[Fault]:
        """Give the errors of cells that stand as they were run."""
        pairs = ((cell, self._results.get(cell.code)) for cell in found)
        return [fault for cell, result in pairs if result and (fault := fault_of(cell, result))]

    def keep(self, found: Sequence[Cell]) -> None:
        """Forget what belongs to no cell any more."""
        codes = {cell.code for cell in found}
        self._results = {c: r for c, r in self._results.items() if c in codes}


def hint(result: ReplExecuteResult) -> str:
    """Give one short line for what came of a cell."""
    if result.error is not None:
        text = f"{result.error.ename}: {result.error.evalue}"
    elif result.status == "interrupted":
        text = "interrupted"
    elif result.result is None:
        text = "done"
    else:
        text = f"=> {result.result}"
    text = " ".join(text.split())
    return text if len(text) <= HINT_CHARS else f"{text[: HINT_CHARS - 3]}..."


def fault_of(cell: Cell, result: ReplExecuteResult) -> Fault | None:
    """Place a cell's error at the innermost line of the cell itself that the traceback names."""
    if result.error is None:
        return None
    frames = CELL_FRAME.findall("".join(result.error.traceback))
    own = [int(line) for name, line in frames if name == frames[0][0]]
    line = cell.code_line + own[-1] - 1 if own else cell.code_line
    text = f"{result.error.ename}: {result.error.evalue}"
    return Fault(line=min(line, cell.end_line), text=text)
