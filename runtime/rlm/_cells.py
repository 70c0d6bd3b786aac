"""
Cells: source to code without `ast`, code to a value, an exception to plain text.

The trailing expression is split off as text: when the head compiles alone and the tail, which
starts in column 0, compiles as an expression, the split is exact (tried on thousands of cells
against `ast`), and no syntax tree becomes Python objects, which would double the cost.
"""

import asyncio
import builtins
import linecache
import os
import sys
import traceback
import types
from collections import OrderedDict
from typing import Any

from rlm_protocol.limits import CELLS_REMEMBERED

from ._interrupt import boundary

_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, without importing ast
_TREE = 0x400  # ast.PyCF_ONLY_AST
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_SHORT = 200
_TRIES = 4
_HERE = os.path.dirname((lambda: None).__code__.co_filename)

Code = types.CodeType
Parts = tuple[Code | None, Code | None, bool]
"""Head, tail, and whether the tail is an expression whose value is the cell's result."""


def compile_cell(source: str, filename: str) -> Parts:
    """
    Compile a cell.

    Raises:
        SyntaxError: and whatever else `compile` raises for hostile source (ValueError,
            RecursionError, MemoryError, OverflowError).
    """
    if len(source) < _SHORT and "\n" not in source:
        try:
            return None, compile(source, filename, "eval", _AWAIT, True), True
        except SyntaxError:
            is_one_statement = ";" not in source  # if it is any: it has no tail to split off
        if not source or source.isspace():
            return None, None, False
        if is_one_statement:
            return None, _compile(source, filename, "exec"), False
    return _split_text(source, filename) or _split_tree(source, filename)


def _compile(source: str, filename: str, mode: str) -> Code:
    code: Code = compile(source, filename, mode, _AWAIT, True)
    return code


def _split_text(source: str, filename: str) -> Parts | None:
    if "\n" not in source or "__future__" in source:
        return None
    lines = source.rstrip().split("\n")
    at = len(lines) - 1
    for _ in range(_TRIES):
        while at > 0 and lines[at][:1] in (" ", "\t", "", "#", ")", "]", "}"):
            at -= 1
        if at <= 0:
            return None
        tail_source = "\n" * at + "\n".join(lines[at:])  # line numbers stay true
        is_value = True
        try:
            tail = _compile(tail_source, filename, "eval")
        except SyntaxError:
            if ";" in lines[at]:
                return None
            is_value = False
            try:
                tail = _compile(tail_source, filename, "exec")
            except SyntaxError:
                at -= 1
                continue
        try:
            return _compile("\n".join(lines[:at]), filename, "exec"), tail, is_value
        except SyntaxError:
            at -= 1
    return None


def _split_tree(source: str, filename: str) -> Parts:
    from _ast import Expr, Expression

    tree = compile(source, filename, "exec", _TREE | _AWAIT, True)
    body = tree.body
    value = Expression(body.pop().value) if body and type(body[-1]) is Expr else None
    head = compile(tree, filename, "exec", _AWAIT, True) if body else None
    tail = compile(value, filename, "eval", _AWAIT, True) if value is not None else None
    return head, tail, tail is not None


def awaits(parts: Parts) -> bool:
    """Tell whether a cell needs a task."""
    head, tail, _ = parts
    flags = 0 if tail is None else tail.co_flags
    if head is not None:
        flags |= head.co_flags
    return bool(flags & _COROUTINE)


class Failure:
    """What a cell raised. Holds the exception only until it has been described."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def cancelled_by_interrupt(self) -> None:
        """Show the cancellation of an awaiting cell as what it stands for."""
        if isinstance(self.error, asyncio.CancelledError):
            self.error = KeyboardInterrupt().with_traceback(self.error.__traceback__)


@boundary
def run_sync(head: Code | None, tail: Code | None, namespace: dict[str, Any]) -> Any:
    """Run a cell that does not await; gives its value or None. Raises what the cell raises."""
    try:
        if head is not None:
            eval(head, namespace)
        return None if tail is None else eval(tail, namespace)
    finally:
        mend(namespace)


@boundary
async def run_async(head: Code | None, tail: Code | None, namespace: dict[str, Any]) -> Any:
    """Run a cell that awaits. What it raises comes back as `Failure`: the loop never sees it."""
    value = None
    try:
        try:
            for code in (head, tail):
                if code is None:
                    continue
                value = eval(code, namespace)
                if code.co_flags & _COROUTINE:
                    value = await value
            return value if tail is not None else None
        finally:
            mend(namespace)
    except BaseException as error:
        return Failure(error)


@boundary
def call(function: Any, *args: Any) -> Any:
    """Call what may run code of the request (a repr, a pickle), interruptibly."""
    return function(*args)


@boundary
def text_of(value: Any) -> str:
    """Give the repr of a cell's value, interruptibly. Raises what its class raises."""
    text = repr(value)
    return text if type(text) is str else exact(text)


class Sources:
    """The sources that tracebacks show: of the running cell and of cells something still uses."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, None] = OrderedDict()

    def add(self, filename: str, source: str) -> None:
        """Show `source` for `filename`."""
        lines = [source + "\n"]
        if "\n" in source or "\r" in source:
            lines = source.splitlines(keepends=True)
            if not lines[-1].endswith("\n"):
                lines[-1] += "\n"
        linecache.cache[filename] = (len(source), None, lines, filename)

    def settle(self, filename: str, parts: Parts) -> None:
        """Forget the source unless something else than `parts` still holds code of it."""
        head, tail, _ = parts
        if not ((tail is not None and _in_use(tail)) or (head is not None and _in_use(head))):
            linecache.cache.pop(filename, None)
            return
        self._kept[filename] = None
        if len(self._kept) > CELLS_REMEMBERED:
            linecache.cache.pop(self._kept.popitem(last=False)[0], None)


def _unused() -> int:
    """Measure what `sys.getrefcount` gives, in this Python, for code that only a tuple holds."""
    held = (compile("0", "<unused>", "eval"),)
    return next(sys.getrefcount(code) for code in held)


_UNUSED = _unused()


def _in_use(code: Code) -> bool:
    if sys.getrefcount(code) > _UNUSED + 1:  # and this function's own parameter
        return True
    return Code in map(type, code.co_consts) and _inner_in_use(code.co_consts)


def _inner_in_use(consts: tuple[Any, ...]) -> bool:
    for inner in consts:  # noqa: SIM110 (a generator costs as much as all the rest)
        if type(inner) is Code and _in_use(inner):
            return True
    return False


def new_main() -> types.ModuleType:
    """Make the module that cells run in, and put it in place of the runtime's `__main__`."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module


_present = vars(builtins)
_BUILTINS = dict(_present)
_BUILTINS_COUNT = len(_BUILTINS)
_len = len
_RECURSION_MIN = 400
_get_recursion_limit = sys.getrecursionlimit


def mend(namespace: dict[str, Any]) -> None:
    """Put back what a cell has taken and the runtime needs too: builtins (it uses none), depth."""
    if _len(_present) < _BUILTINS_COUNT:
        for name, value in _BUILTINS.items():
            _present.setdefault(name, value)
    namespace["__builtins__"] = builtins
    if _get_recursion_limit() < _RECURSION_MIN:
        sys.setrecursionlimit(_RECURSION_MIN)


_TRACEBACK = "Traceback (most recent call last):\n"
_traceback_of = BaseException.__dict__["__traceback__"].__get__
Described = tuple[str, str, list[str]]


def describe(error: BaseException) -> Described:
    """
    Give name, text and traceback of what a cell raised, whatever its class does.

    The traceback starts at the cell's first frame; it is plain text.
    """
    name = type.__dict__["__name__"].__get__(type(error))
    at = _trimmed(error)
    try:
        text = exact(call(str, error))
        return name, text, call(traceback.format_exception, type(error), error, at)
    except BaseException as why:  # its class fails or hangs: nothing of it is called again
        text = f"<the text of this {name} could not be made: {type(why).__name__}>"
    return name, text, [_TRACEBACK, *traceback.format_tb(at), f"{name}: {text}\n"]


def _trimmed(error: BaseException) -> types.TracebackType | None:
    """Give the traceback from the cell's first frame on, without frames of this package."""
    at = _traceback_of(error)
    while at is not None and not at.tb_frame.f_code.co_filename.startswith("<cell-"):
        at = at.tb_next
    kept = []
    while at is not None:
        if os.path.dirname(at.tb_frame.f_code.co_filename) != _HERE:
            kept.append(at)
        at = at.tb_next
    trimmed = None
    for tb in reversed(kept):
        # Some instructions of a `with` or `try` are on no line, and an interrupt may hit them.
        line = tb.tb_lineno or tb.tb_frame.f_code.co_firstlineno
        trimmed = types.TracebackType(trimmed, tb.tb_frame, tb.tb_lasti, line)
    return trimmed


def exact(text: str) -> str:
    """Give a plain str: a subclass may lie about itself and cannot be encoded."""
    return text if type(text) is str else str.__str__(text)
