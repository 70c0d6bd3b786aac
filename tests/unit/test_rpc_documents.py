import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.rpc.documents import Results, cell_at, cells, fault_of, hint
from rlm_protocol.item import CellError
from rlm_protocol.repl import ReplExecuteResult

TEXT = """#!/usr/bin/env python
import os

# %% first
x = 1

y = 2

#%%
# %% [markdown] last
def f():
    return 1 / 0
f()
"""


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def ok(result: str | None = None) -> ReplExecuteResult:
    return ReplExecuteResult(cell_id="c", status="ok", result=result)


def failed(*frames: tuple[str, int]) -> ReplExecuteResult:
    traceback = tuple(f'  File "{cell}", line {line}, in x\n' for cell, line in frames)
    error = CellError(ename="ZeroDivisionError", evalue="division by zero", traceback=traceback)
    return ReplExecuteResult(cell_id="c", status="error", error=error)


def test_cells_are_found() -> None:
    found = cells(lines(TEXT))
    assert [(c.index, c.title, c.start_line, c.code_line, c.end_line) for c in found] == [
        (0, "", 0, 0, 1),
        (1, "first", 3, 4, 6),
        (2, "", 8, 9, 8),
        (3, "[markdown] last", 9, 10, 12),
    ]
    assert found[1].code == "x = 1\n\ny = 2\n"
    assert found[2].code == ""


@pytest.mark.parametrize("text", ["", "x = 1\n", "# % no\n", "s = '# %% no'\n", "  # %% no\n"])
def test_a_file_without_markers_has_no_cells(text: str) -> None:
    assert cells(lines(text)) == ()


def test_a_shebang_alone_is_no_cell() -> None:
    assert [c.start_line for c in cells(lines("#!/bin/x\n# %%\n1\n"))] == [1]


@pytest.mark.parametrize(("line", "index"), [(0, 0), (2, 0), (3, 1), (7, 1), (8, 2), (99, 3)])
def test_the_cell_at_a_line(line: int, index: int) -> None:
    found = cell_at(cells(lines(TEXT)), line)
    assert found is not None
    assert found.index == index


def test_no_cell_before_the_first_marker_without_code() -> None:
    assert cell_at(cells(lines("\n\n# %%\n1\n")), 0) is None


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ok(), "done"),
        (ok("42"), "=> 42"),
        (ok("[1,\n 2]"), "=> [1, 2]"),
        (ok("x" * 200), "=> " + "x" * 74 + "..."),
        (ReplExecuteResult(cell_id="c", status="interrupted"), "interrupted"),
        (failed(), "ZeroDivisionError: division by zero"),
    ],
)
def test_hints(result: ReplExecuteResult, text: str) -> None:
    assert hint(result) == text


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ([("<cell-1>", 3), ("<cell-1>", 2)], 11),
        ([("<cell-2>", 1), ("<cell-1>", 9)], 10),  # raised in what another cell defined
        ([("<cell-1>", 3), ("/usr/lib/x.py", 500)], 12),
        ([("<cell-1>", 99)], 12),
        ([], 10),
    ],
)
def test_an_error_lies_at_the_innermost_line_of_its_own_cell(
    frames: list[tuple[str, int]], line: int
) -> None:
    cell = cells(lines(TEXT))[3]
    fault = fault_of(cell, failed(*frames))
    assert fault is not None
    assert fault.line == line


def test_a_result_belongs_to_the_code_and_not_to_the_place() -> None:
    results = Results()
    first = cells(lines("# %%\n1 + 1\n"))[0]
    results.put(first.code, ok("2"))
    moved = cells(lines("# %%\nx\n# %%\n1 + 1\n"))
    assert [results.hint(cell) for cell in moved] == [None, "=> 2"]
    edited = cells(lines("# %%\n1 + 2\n"))
    results.keep(edited)
    assert [results.hint(cell) for cell in edited] == [None]
    assert results.hint(first) is None


def documents() -> Iterator[str]:
    yield from (
        "x = 1\n",
        "\n",
        "# %%\n",
        "# %% t\n",
        "#%%\r\n",
        "def f():\n",
        "    pass\n",
        "#!s\n",
    )


@given(st.lists(st.sampled_from(list(documents())), max_size=20))
def test_cells_cover_the_document_in_order_and_never_overlap(parts: list[str]) -> None:
    text = lines("".join(parts))
    found = cells(text)
    for before, after in itertools.pairwise(found):
        assert before.end_line < after.start_line
    for cell in found:
        assert "".join(text[cell.code_line : cell.end_line + 1]) == cell.code or not cell.code
        assert cell_at(found, cell.start_line) == cell
        assert cell_at(found, cell.end_line) == cell
    markers = sum(line.lstrip().startswith(("# %%", "#%%")) for line in text)
    assert len(found) in (markers, markers + 1) if markers else not found
