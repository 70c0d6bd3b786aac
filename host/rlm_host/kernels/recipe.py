"""Which Python a kernel runs on, inside what, and with which variables: what is asked for."""

import os
from collections.abc import Mapping
from enum import StrEnum, auto
from pathlib import Path
from typing import Literal

import msgspec

from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.limits import KERNEL_MEMORY_MIN_BYTES, MIB


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How a session's kernel is started; part of its options, inherited by its children.

    `python` names an interpreter, or the folder of a virtual environment (absolute, relative to the
    session's folder, or a program on the PATH); None lets the host choose. `launcher` is an argv
    that the interpreter's argv is appended to (`docker run -i …`). `sandbox` names a launcher of
    ours (sandbox.py), and `network` opens it to the network. `memory_bytes` limits what the
    kernel's processes may use together. `env` adds variables; a journal keeps their names only,
    never their values.
    """

    python: str | None = None
    launcher: tuple[str, ...] = ()
    sandbox: Literal["workspace"] | None = None
    network: bool | None = None
    memory_bytes: int | None = None
    env: dict[str, str] = {}

    def completed(self, defaults: "Recipe") -> "Recipe":
        """
        Give the recipe with the user's settings where it says nothing; of `python`, see `choose`.

        Raises ConfigInvalid for what contradicts itself, before anything is started: whoever asked
        for a sandbox or a limit never gets a kernel without it.
        """
        whole = msgspec.structs.replace(
            self,
            sandbox=self.sandbox or defaults.sandbox,
            network=self.network if self.network is not None else defaults.network,
            memory_bytes=self.memory_bytes or defaults.memory_bytes,
        )
        if whole.sandbox is not None and whole.launcher:
            raise ConfigInvalid(
                "A kernel starts in a sandbox or by a launcher of its own; name one of the two.",
                sandbox=whole.sandbox,
                launcher=list(whole.launcher),
            )
        if whole.network is False and whole.sandbox is None:
            raise ConfigInvalid("Only a sandbox can keep a kernel off the network; name one.")
        if whole.memory_bytes is not None and whole.memory_bytes < KERNEL_MEMORY_MIN_BYTES:
            raise ConfigInvalid(
                f"A kernel needs {KERNEL_MEMORY_MIN_BYTES // MIB} MiB of memory.",
                memory_bytes=whole.memory_bytes,
            )
        return whole


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session brings to the start of its kernel."""

    recipe: Recipe
    cwd: Path
    session_dir: Path
    depth: int
    max_depth: int


class Source(StrEnum):
    """Who named the interpreter."""

    RECIPE = auto()
    VARIABLE = auto()
    CONFIG = auto()
    WORKSPACE = auto()
    MANAGED = auto()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter that was named; None is the managed one."""

    source: Source
    python: str | None = None


def choose(
    recipe: Recipe, cwd: Path, environ: Mapping[str, str], configured: str | None = None
) -> Choice:
    """
    Say which interpreter counts: the session's own, RLM_KERNEL_PYTHON, the `configured` one, the
    workspace's .venv, ours.

    The first that is named counts, usable or not: a project's kernel never changes its packages
    without a word. What the editor passes is the session's own.
    """
    if recipe.python is not None:
        return Choice(source=Source.RECIPE, python=recipe.python)
    if named := environ.get("RLM_KERNEL_PYTHON"):
        return Choice(source=Source.VARIABLE, python=named)
    if configured is not None:
        return Choice(source=Source.CONFIG, python=configured)
    venv = cwd / ".venv"
    if os.path.exists(venv / "pyvenv.cfg"):  # not: in a folder that may not be searched
        return Choice(source=Source.WORKSPACE, python=str(venv / "bin" / "python"))
    return Choice(source=Source.MANAGED)
