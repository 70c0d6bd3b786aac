"""Turns a recipe into a command that starts a kernel: interpreter, runtime, variables."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rlm_protocol.errors import ConfigInvalid, KernelUnavailable

from ..clock import Clock
from ..processes.spawn import Processes
from ..processes.templates import Templates
from . import wheel
from .client import Launch, Waits
from .interpreters import Interpreter, Interpreters
from .managed import ensure_managed
from .overlay import ensure_overlay, missing
from .recipe import Choice, SessionFacts, Source, choose

PASSED_ON = re.compile(r"PATH|HOME|LANG|LC_.*|TZ|TERM|TMPDIR")
"""All that a kernel sees of the host's environment: never a provider's key."""
OURS = re.compile(r"RLM_.*")
CHECKOUT = "dev"
"""Version of a runtime that runs from a checkout: for developers, who say so by a variable."""


class KernelHost(msgspec.Struct, frozen=True, kw_only=True):
    """What all kernels of one host share. Built once, by app.py."""

    home: Path
    environ: Mapping[str, str]
    """The host's environment; kernels get an allow-listed part of it."""
    processes: Processes
    clock: Clock
    waits: Waits = Waits()
    python: str | None = None
    """The interpreter of sessions that name none (setting `kernel.python`)."""
    templates: Templates | None = None
    """What kernels are forked from; None starts each one cold."""
    packages: tuple[str, ...] = ()
    """Requirements of managed environments besides the runtime (setting `kernel.packages`)."""
    snapshot_after_ms: int = 1_500
    """Quiet time after a cell until the namespace is saved."""
    interpreters: Interpreters = msgspec.field(default_factory=Interpreters)


async def prepare(host: KernelHost, session: SessionFacts) -> Launch:
    """
    Decide how this session's kernel is started, and make what it needs.

    Raises:
        KernelUnavailable: the interpreter that is named cannot run a kernel; another one is never
            taken in its place.
        ConfigInvalid: the recipe sets a variable that is the host's.
    """
    recipe = session.recipe
    variables = kernel_variables(host.environ, session)
    choice = choose(recipe, session.cwd, host.environ, host.python)
    interpreter = await resolve(host, choice, variables, recipe.launcher, session.cwd)
    interpreter.check()
    runtime = wheel.runtime().version
    if interpreter.runtime == runtime or (
        interpreter.runtime == CHECKOUT and choice.source is Source.VARIABLE
    ):
        start: tuple[str, ...] = ("-P", "-m", "rlm.repl")
        runtime = interpreter.runtime
    else:
        overlay = await ensure_overlay(
            interpreter,
            home=host.home,
            environ=host.environ,
            processes=host.processes,
            clock=host.clock,
        )
        start = ("-P", str(overlay / "boot.py"), *missing(interpreter))
    return Launch(
        argv=(*recipe.launcher, interpreter.executable, *start),
        env={**variables, **_venv_variables(interpreter, variables)},
        cwd=session.cwd,
        guarded=not recipe.launcher,
        warm=not recipe.launcher,
        versions=frozenset({runtime}),
    )


async def resolve(
    host: KernelHost,
    choice: Choice,
    variables: Mapping[str, str],
    launcher: tuple[str, ...] = (),
    cwd: Path = Path("/"),
) -> Interpreter:
    """Find out what the chosen interpreter is. Raises KernelUnavailable."""
    if choice.python is None:
        python = str(
            await ensure_managed(
                home=host.home,
                environ=host.environ,
                packages=host.packages,
                processes=host.processes,
                clock=host.clock,
                interpreters=host.interpreters,
            )
        )
    else:
        python = _locate(choice.python, cwd, variables, launched=bool(launcher))
    return await host.interpreters.look_at(
        host.processes, python, launcher=launcher, env=variables, packages=wheel.PINNED
    )


def kernel_variables(environ: Mapping[str, str], session: SessionFacts) -> dict[str, str]:
    """Give a kernel's whole environment. Raises ConfigInvalid for variables that are the host's."""
    ours = sorted(name for name in session.recipe.env if OURS.fullmatch(name))
    if ours:
        raise ConfigInvalid("A recipe cannot set variables of the host.", names=ours)
    return {
        **{name: value for name, value in environ.items() if PASSED_ON.fullmatch(name)},
        **session.recipe.env,
        "RLM_DEPTH": str(session.depth),
        "RLM_MAX_DEPTH": str(session.max_depth),
        "RLM_SESSION_DIR": str(session.session_dir),
        "RLM_SIGINT": "doorbell",
    }


def _venv_variables(interpreter: Interpreter, variables: Mapping[str, str]) -> dict[str, str]:
    """Make `bash("python …")` and `bash("uv pip …")` mean the kernel's own environment."""
    if interpreter.venv is None:
        return {}
    programs = str(Path(interpreter.venv) / "bin")
    rest = variables.get("PATH", os.defpath)
    return {"VIRTUAL_ENV": interpreter.venv, "PATH": f"{programs}{os.pathsep}{rest}"}


def _locate(python: str, cwd: Path, variables: Mapping[str, str], *, launched: bool) -> str:
    """Give an absolute path: of a program on the PATH, of a file, or of a venv's interpreter."""
    if launched and os.path.isabs(python):
        return python  # it lies inside the launcher, where we cannot look
    if os.sep not in python:
        found = shutil.which(python, path=variables.get("PATH", os.defpath))
    else:
        path = cwd / python
        found = str(path / "bin" / "python" if path.is_dir() else path)
    if found is None or not os.path.exists(found):
        raise KernelUnavailable(
            "There is no such interpreter. Name another one: RLM_KERNEL_PYTHON=/path/to/python, "
            "or the session's recipe.",
            python=python,
        )
    return found
