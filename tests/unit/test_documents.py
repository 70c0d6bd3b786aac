"""Cells of `# %%` files, results that follow them, and the line that a traceback blames."""

import pytest

from rlm_host.rpc.documents import (
    DETAIL_CHARS,
    SUMMARY_CHARS,
    Cell,
    CellResult,
    Results,
    cell_at,
    cells_of,
    detail_of,
    raised_line,
    summary_of,
)


def shape(text: str) -> list[tuple[int, int, int, str, bool]]:
    return [(c.line, c.end_line, c.last_line, c.title, c.runs) for c in cells_of(text)]


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("", []),
        ("x = 1\n", []),
        ("# %%\n", [(0, 1, 0, "", False)]),
        ("# %%", [(0, 1, 0, "", False)]),
        ("#%% a b \nx\n\n\n", [(0, 4, 1, "a b", True)]),
        ("x\r\n# In[12]:\r\ny", [(0, 1, 0, "", True), (1, 3, 2, ":", True)]),
        ("# In[ ]\n1\n# <codecell>\n2", [(0, 2, 1, "", True), (2, 4, 3, "", True)]),
        ("\n\n# %% [markdown] t\n# w\n", [(2, 4, 3, "[markdown] t", False)]),
        ("# %% t [raw]\nw\n", [(0, 2, 1, "t [raw]", False)]),
        ("# %% x[0]\nw\n", [(0, 2, 1, "x[0]", True)]),
        ("s = '''\n  # %%\n'''\n", []),
        ("# %% a\x0cb\n1", [(0, 2, 1, "a\x0cb", True)]),
    ],
)
def test_cells(text: str, cells: list[tuple[int, int, int, str, bool]]) -> None:
    assert shape(text) == cells


def test_a_cell_is_found_by_any_of_its_lines() -> None:
    cells = cells_of("# %% a\n1\n\n# %% b\n2")
    titles = [cell.title if (cell := cell_at(cells, line)) else None for line in range(-1, 6)]
    assert titles == [None, "a", "a", "a", "b", "b", None]


def result(text: str) -> CellResult:
    return CellResult(status="ok", summary=text)


def put(results: Results, cells: tuple[Cell, ...], *texts: str | None) -> None:
    for cell, text in zip(cells, texts, strict=True):
        if text is not None:
            results.put(cells, cell, result(text))


def shown(results: Results, text: str) -> list[tuple[int, str]]:
    return [(cell.line, one.summary) for cell, one in results.shown(cells_of(text))]


def test_results_follow_their_code_and_go_with_it() -> None:
    results = Results()
    put(results, cells_of("# %%\na\n# %%\nb\n# %%\na\n"), "1", "2", "3")
    assert shown(results, "# %%\na\n# %%\nb\n# %%\na\n") == [(0, "1"), (2, "2"), (4, "3")]
    assert shown(results, "\n# %% b\nb\n# %%\na\n# %%\na\n") == [(1, "2"), (3, "1"), (5, "3")]
    assert shown(results, "# %%\nbb\n# %%\na\n") == [(2, "1")]
    assert shown(results, "# %%\nb\n# %%\na\n") == [(2, "1")]  # once gone, gone
    results.clear()
    assert shown(results, "# %%\na\n") == []


HEAD = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("traceback", "line"),
    [
        ("", None),
        ("SystemError: no place\n", None),
        (HEAD + '  File "<cell-3>", line 2, in <module>\n    f()\nE: x\n', 1),
        # Into a function of this cell: its line; of an earlier cell: ours.
        (HEAD + '  File "<cell-3>", line 4, in <module>\n  File "<cell-3>", line 2, in f\n', 1),
        (HEAD + '  File "<cell-3>", line 4, in <module>\n  File "<cell-1>", line 9, in f\n', 3),
        (HEAD + '  File "<cell-3>", line 4, in <module>\n  File "/lib/x.py", line 9, in f\n', 3),
        # What was raised last counts, not its cause.
        (
            HEAD
            + '  File "<cell-1>", line 7, in g\nE: 1\n\nDuring handling of the above exception:\n\n'
            + HEAD
            + '  File "<cell-3>", line 5, in <module>\nE: 2\n',
            4,
        ),
        ('  File "<cell-2>", line 3\n    x ==\n        ^\nSyntaxError: invalid syntax\n', 2),
    ],
)
def test_the_line_that_raised(traceback: str, line: int | None) -> None:
    assert raised_line(traceback) == line


def test_long_texts_are_cut() -> None:
    assert summary_of("a\n  b\tc ") == "a b c"
    assert len(summary_of("x" * 500)) == SUMMARY_CHARS
    assert detail_of("a\n", " ", "b") == "a\nb"
    assert len(detail_of("x" * 9000)) == DETAIL_CHARS + 2
