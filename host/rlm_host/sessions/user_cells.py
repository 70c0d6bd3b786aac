"""What the model is told of the cells that people ran in the kernel it shares with them. Pure."""

import ast
from collections.abc import Iterable, Iterator

from .state import UserCell

CODE_CHARS = 400


def told(cells: Iterable[UserCell]) -> str:
    """Give the text: each cell with how it ended, then the names that they bind."""
    cells = list(cells)
    lines = ["[A person ran these cells in this REPL since your last answer:]"]
    for cell in cells:
        code = cell.code[:CODE_CHARS] + (" …" if len(cell.code) > CODE_CHARS else "")
        lines += ["```python", code, "```", f"({cell.status})"]
    names = sorted({name for cell in cells for name in bound_names(cell.code)})
    if names:
        lines.append(f"[Names that they define, change or delete: {', '.join(names)}]")
    return "\n".join(lines)


def bound_names(code: str) -> set[str]:
    """Give the names that a cell binds or deletes at its top level; none if it is no Python."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {name for statement in tree.body for name in _bound(statement)}


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
            return
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)
