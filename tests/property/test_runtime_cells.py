"""The textual split of a cell gives what splitting its syntax tree gives."""

import ast
import pathlib
import random
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm._cells import compile_cell

STATEMENTS = [
    "x", "f(1,\n2)", "'''a\nb'''", "x = 1", "[i\nfor i in y]", "x; y", "if a:\n    b\nelse:\n    c",
    "@d\ndef f(): pass", "a\\\n+b", "(a\n)", "x  # c", "# only", "'''\nfoo\n'''\n", "x if y else z",
    "try:\n  a\nfinally:\n  b", "async def g(): pass", "await q", "lambda: 0", "yield_ = 1",
    "s = '''\nprint(1)\n'''", "t = '''\nx\n'''\nt", "f'''{1}\n{2}'''", "class A:\n  x=1\nA()",
    "with a:\n  b\nc", "match x:\n  case 1: y\nz", "print(1);", "x=1;y", '"""doc"""\nx=1', "'a'\n'b'",
    "from __future__ import annotations\nx", "async with a: b", "for i in x: pass\nelse: y", "",
    "def f():\n\n    return 1\n", "x: int = 5", "x = (\n1\n)", "{\n'a': 1\n}", "del x", "\tx" , "if 1:\n\tx",
]  # fmt: skip


def same(source: str) -> bool:
    """Compare; False when the source is no cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
            compile(source, "<c>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except (SyntaxError, ValueError):
            with pytest.raises((SyntaxError, ValueError)):
                compile_cell(source, "<c>")
            return False
        _head, tail, is_value = compile_cell(source, "<c>")
    ends_in_value = bool(tree.body) and isinstance(tree.body[-1], ast.Expr)
    assert is_value == ends_in_value, source
    if ends_in_value:
        last = tree.body[-1]
        assert isinstance(last, ast.Expr)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        want = compile(ast.Expression(last.value), "<c>", "eval", flags, True)
        assert tail is not None
        assert (tail.co_code, tail.co_names) == (want.co_code, want.co_names), source
        assert tail.co_firstlineno == want.co_firstlineno or tail.co_positions
    return True


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=6),
    st.sampled_from(["", "\n", "\n\n# end", "   "]),
)
def test_statements_in_any_order(parts: list[str], end: str) -> None:
    same("\n".join(parts) + end)


def test_slices_of_the_standard_library() -> None:
    seed = random.Random(1)
    folder = pathlib.Path(ast.__file__).parent
    cells = 0
    for path in sorted(folder.glob("*.py"))[:40]:
        source = path.read_text(errors="ignore")
        body = ast.parse(source).body
        lines = source.splitlines()
        for _ in range(4):
            last = seed.randrange(len(body)) if body else 0
            first = max(0, last - seed.randrange(6))
            if not body:
                continue
            start = min(
                [
                    body[first].lineno,
                    *(d.lineno for d in getattr(body[first], "decorator_list", [])),
                ]
            )
            cell = "\n".join(lines[start - 1 : body[last].end_lineno])
            cells += same(cell + seed.choice(["", "\n", "\nx", "\n'''\na\n'''"]))
    assert cells > 60


def test_line_numbers_stay_true() -> None:
    source = "x = 1\n\n\n(1/\n0)"
    _, tail, is_value = compile_cell(source, "<c>")
    assert is_value
    assert tail is not None
    lines = {line for line, *_ in tail.co_positions() if line}
    assert lines >= {4}
