"""
Snippets of the language that a runtime executes: the kit itself contains none.

A language file is TOML. Each table is one cell: `code`, and what it yields where that depends on
the language (`result`, `stdout`, `ename`, ...). `@gate@` in a code is replaced by the path of a
file that the kit creates when it wants the cell to go on, `@path@` by a path for the cell to use.
"""

import tomllib
from pathlib import Path
from typing import Any

from .promise import NotSupported

PYTHON = Path(__file__).parent / "languages" / "python.toml"


class Language:
    """The cells of one language, by name."""

    def __init__(self, path: Path = PYTHON) -> None:
        """
        Read a language file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not TOML, or a table has no `code`.
        """
        self._cells: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, cell in self._cells.items():
            if not isinstance(cell, dict) or not isinstance(cell.get("code"), str):
                raise ValueError(f"{path}: the cell `{name}` has no `code`")

    @property
    def names(self) -> frozenset[str]:
        """Names of the cells that the language has."""
        return frozenset(self._cells)

    def code(self, name: str, *, gate: Path | str = "", path: Path | str = "") -> str:
        """Give the code of a cell. Raises NotSupported when the language has none."""
        code = self.field(name, "code")
        return code.replace("@gate@", str(gate)).replace("@path@", str(path))

    def field(self, name: str, field: str) -> str:
        """Give what a cell yields. Raises NotSupported when the language does not say."""
        value = self._cells.get(name, {}).get(field)
        if not isinstance(value, str):
            raise NotSupported(f"the language file has no `{name}.{field}`")
        return value
