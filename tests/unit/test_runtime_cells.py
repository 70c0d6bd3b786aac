"""What a cell raised, as plain text."""

import types

from rlm._cells import describe

WITH = "def f(lock):\n    with lock:\n        raise KeyError\n"


def test_an_interrupt_on_no_line_is_described() -> None:
    """CPython gives no line number for some instructions, where a signal handler may raise too."""
    namespace: dict[str, types.FunctionType] = {}
    exec(compile(WITH, "<cell-1>", "exec"), namespace)
    code = namespace["f"].__code__
    nowhere = next(start for start, _, line in code.co_lines() if line is None)
    try:
        namespace["f"](memoryview(b""))
    except KeyError as error:
        seen = error.__traceback__
    assert seen is not None
    assert seen.tb_next is not None
    frame = seen.tb_next.tb_frame
    hit = types.TracebackType(None, frame, nowhere, -1)
    assert hit.tb_lineno is None
    name, _, text = describe(KeyboardInterrupt().with_traceback(hit))
    assert name == "KeyboardInterrupt"
    assert "line 1, in f" in "".join(text)
