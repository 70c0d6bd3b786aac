"""
Python skills as cells see them: modules that are loaded by their first use.

A skill that cannot be loaded is a placeholder: whatever is done with it says what failed, where,
and how to mend it, and tries again. Nothing of a skill runs before a cell uses it, so none can keep
a kernel from starting, and one that hangs is interrupted with its cell.
"""

import importlib.util
import json
import os
import sys
import threading
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ._names import SKILLS

_LOADS = ("__path__", "__all__", "__version__")
"""Names with underscores that are worth loading a skill for."""


class SkillUnavailable(ImportError):
    """A skill cannot be used; the message says why, and what to do."""


class Skill(ModuleType):
    """The module of a skill. Its documentation is its `SKILL.md`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__.update(_folder=None, _problem=None, _loaded=False, _lock=threading.RLock())

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """What the skill's author says of it."""
        folder = self.__dict__["_folder"]
        try:
            return Path(folder, "SKILL.md").read_text("utf-8") if folder else None
        except (OSError, ValueError):
            return None

    def __getattr__(self, name: str) -> Any:
        if not self.__dict__["_loaded"] and (name in _LOADS or not name.startswith("__")):
            self._load()
        try:
            return self.__dict__[name]
        except KeyError:
            said = f"the skill {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(said, name=name, obj=self) from None

    def __call__(self, *_: Any, **__: Any) -> Any:
        self._load()
        raise TypeError(f"the skill {self.__name__!r} is a module: call one of its functions")

    def __dir__(self) -> list[str]:
        return sorted(name for name in self.__dict__ if not name.startswith("_"))

    def __repr__(self) -> str:
        if self.__dict__["_problem"]:
            return f"<skill {self.__name__!r}, which cannot be used>"
        return f"<skill {self.__name__!r} of {self.__dict__['_folder']}>"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return importlib.import_module, (self.__name__,)

    def _load(self) -> None:
        """Run the skill's package, once. Raises SkillUnavailable."""
        with self.__dict__["_lock"]:
            if self.__dict__["_loaded"]:
                return
            folder, problem = self.__dict__["_folder"], self.__dict__["_problem"]
            if problem:
                raise self._unavailable(f"{problem}.", f"Mend {folder} and restart the kernel.")
            kept = dict(self.__dict__)
            try:
                self.__dict__["_loaded"] = True  # what it asks of itself meanwhile is there or not
                _execute(self, folder)
            except (Exception, SystemExit) as why:
                self._forget(kept)
                said = f"{type(why).__name__}: {why} ({_place(why, folder)})."
                raise self._unavailable(said, "Mend it there and use it again.") from why
            except BaseException:  # the cell was interrupted: nothing has failed
                self._forget(kept)
                raise

    def _forget(self, kept: dict[str, Any]) -> None:
        self.__dict__.clear()
        self.__dict__.update(kept)
        for name in [name for name in sys.modules if name.startswith(f"{self.__name__}.")]:
            del sys.modules[name]

    def _unavailable(self, why: str, what_next: str) -> SkillUnavailable:
        name = self.__name__
        return SkillUnavailable(f"The skill {name!r} cannot be used: {why} {what_next}", name=name)


def bind(namespace: dict[str, Any], offered: str) -> None:
    """Bind the skills of a JSON array of `{name, path, problem}`, over whatever is there."""
    for row in json.loads(offered):
        name = row["name"]
        folder = row["path"] or str(Path(__file__).parent / "skills" / name)
        known = sys.modules.get(name)
        skill = known if isinstance(known, Skill) else Skill(name)
        skill.__dict__.update(_folder=folder, _problem=row["problem"])
        if known is None and (place := _installed(name)) is not None:
            skill.__dict__["_problem"] = f"its name hides what is installed in {place}"
        elif known is not None and known is not skill:
            skill.__dict__["_problem"] = "its name hides a module that is loaded"
        else:
            sys.modules[name] = skill
        SKILLS.add(name)
        namespace[name] = skill


def _execute(skill: Skill, folder: str) -> None:
    name = skill.__name__
    path = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    skill.__dict__.update(
        __spec__=spec, __loader__=spec.loader, __file__=path, __path__=[folder], __package__=name
    )
    spec.loader.exec_module(skill)


def _installed(name: str) -> str | None:
    """Say where a module of this name is installed, leaving out the cells' own folder."""
    path = [entry for entry in sys.path if entry not in ("", ".", os.getcwd())]
    spec = PathFinder.find_spec(name, path)
    if spec is None or (spec.origin is None and spec.loader is None):
        return None  # a folder without a package in it is no module
    return str(spec.origin)


def _place(why: BaseException, folder: str) -> str:
    """Say where in the skill something failed; where it began, if that lies elsewhere."""
    if isinstance(why, SyntaxError) and why.filename:
        return f"{why.filename}, line {why.lineno}"
    where, at = os.path.join(folder, "__init__.py"), why.__traceback__
    while at is not None:
        if (name := at.tb_frame.f_code.co_filename).startswith(folder):
            where = f"{name}, line {at.tb_lineno}"
        at = at.tb_next
    return where
