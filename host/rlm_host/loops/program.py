"""A loop written down as a Python file: what to optimise, and how, under agreed names."""

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.loop_records import LoopConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProgram:
    """The names that such a file defines; see `LoopKernel.run` for what the functions are given."""

    config: LoopConfig
    step: Callable[..., Any]
    apply: Callable[..., Any] | None
    rollback: Callable[..., Any] | None
    gates: tuple[Callable[..., Any], ...]
    run_id: str
    """The id of its run, unless somebody names one: made of the file's name."""


def load_program(file: Path) -> LoopProgram:
    """
    Execute a file as a module and give its `config`, `step`, `apply`, `rollback` and `gates`.

    The last three may be missing or None. The file's folder becomes importable, as it is when
    Python runs the file; `__name__` is not `__main__`.

    Raises:
        ConfigInvalid: there is no such file, it raises, or a name is missing or of a wrong type.
    """
    names = _execute(file)
    config = names.get("config")
    if not isinstance(config, LoopConfig):
        raise _wrong(file, "config", "a LoopConfig", names)
    if not callable(names.get("step")):
        raise _wrong(file, "step", "a function", names)
    for name in ("apply", "rollback"):
        if names.get(name) is not None and not callable(names[name]):
            raise _wrong(file, name, "a function, or None", names)
    gates = names.get("gates")
    if gates is None:
        gates = ()
    elif not isinstance(gates, Sequence) or not all(map(callable, gates)):
        raise _wrong(file, "gates", "a list of functions", names)
    return LoopProgram(
        config=config,
        step=names["step"],
        apply=names.get("apply"),
        rollback=names.get("rollback"),
        gates=tuple(gates),
        run_id=re.sub(r"[^A-Za-z0-9_-]", "-", file.stem)[:64],
    )


def _execute(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ConfigInvalid(f"There is no file {file}.", field="file")
    if file.suffix != ".py":
        raise ConfigInvalid(f"{file} is no Python file: its name must end in .py.", field="file")
    # Its own name, so that what it defines can be pickled, unless that is another module's.
    name = file.stem if file.stem not in sys.modules else f"rlm_loop_{file.stem}"
    path = str(file.resolve())
    loader = SourceFileLoader(name, path)
    module = module_from_spec(ModuleSpec(name, loader, origin=path))
    module.__file__ = path
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        # Never from a cache: it takes a file edited within a second for the one before.
        exec(loader.source_to_code(loader.get_data(path), path), vars(module))
    except (Exception, SystemExit) as why:
        del sys.modules[name]
        said = " ".join(str(why).split())
        raise ConfigInvalid(
            f"{file} cannot be loaded: {type(why).__name__}: {said}{_place(why, path)}.",
            field="file",
        ) from why
    return vars(module)


def _place(why: BaseException, file: str) -> str:
    """Say which line of the file it was, if one was."""
    if isinstance(why, SyntaxError):
        return ""  # its text has the line
    frames = traceback.extract_tb(why.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f" (line {lines[-1]})" if lines else ""


def _wrong(file: Path, name: str, wanted: str, names: dict[str, Any]) -> ConfigInvalid:
    found = f"it is {type(names[name]).__name__}" if name in names else "it is missing"
    return ConfigInvalid(f"{file} must define {name} as {wanted}: {found}.", field=name)
