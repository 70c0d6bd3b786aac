"""Turns a recipe into a command that starts a kernel: interpreter, runtime, variables."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rlm_protocol.errors import ConfigInvalid, KernelUnavailable

from ..clock import Clock
from ..processes import facts
from ..processes.spawn import Processes
from ..processes.templates import Templates
from . import wheel
from .client import Launch, Waits
from .interpreters import Interpreter, Interpreters
from .managed import ensure_managed
from .overlay import ensure_overlay, missing
from .recipe import Choice, Recipe, SessionFacts, Source, choose
from .sandbox import TEMPORARY, Bubblewrap, View, arguments, family_folder, interpreter_folders
from .skills import skills_folder

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
    hidden: tuple[Path, ...] = ()
    """What no sandbox shows, besides `home`."""
    defaults: Recipe = Recipe()
    """The user's settings, for what a session's recipe leaves open."""
    interpreters: Interpreters = msgspec.field(default_factory=Interpreters)
    bubblewrap: Bubblewrap = msgspec.field(default_factory=Bubblewrap)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter of a session, and the argv that its own is appended to."""

    interpreter: Interpreter
    launcher: tuple[str, ...] = ()
    """A launcher of the user's own."""
    bubblewrap: str | None = None
    view: View | None = None
    """What the sandbox shows so far: enough to start the interpreter."""


async def prepare(host: KernelHost, session: SessionFacts) -> Launch:
    """
    Decide how this session's kernel is started, and make what it needs.

    Raises:
        KernelUnavailable: the interpreter that is named cannot run a kernel, or the sandbox cannot
            be had; another one is never taken in its place.
        ConfigInvalid: the recipe sets a variable that is the host's, or contradicts itself.
    """
    recipe = session.recipe.completed(host.defaults)
    session = msgspec.structs.replace(session, recipe=recipe)
    choice = choose(recipe, session.cwd, host.environ, host.python)
    variables = kernel_variables(host.environ, session)
    found = await resolve(host, session, choice, variables)
    interpreter = found.interpreter
    interpreter.check()
    if recipe.memory_bytes is not None and not facts.has_proc():
        raise KernelUnavailable("This system cannot limit a kernel's memory: it has no /proc.")
    runtime, overlay = wheel.runtime().version, None
    start: tuple[str, ...] = ("-P", "-m", "rlm.repl")
    if interpreter.runtime == runtime or (
        interpreter.runtime == CHECKOUT and choice.source is Source.VARIABLE
    ):
        runtime = interpreter.runtime
    else:
        overlay = await ensure_overlay(
            interpreter,
            home=host.home,
            environ=host.environ,
            processes=host.processes,
            clock=host.clock,
            trusted=found.view is None,
        )
        start = ("-P", str(overlay / "boot.py"), *missing(interpreter))
    around = await _around(host, session, found, overlay)
    return Launch(
        argv=(*around, interpreter.executable, *start),
        env={**variables, **_venv_variables(interpreter, variables)},
        cwd=session.cwd,
        memory_bytes=recipe.memory_bytes,
        warm=not around,
        versions=frozenset({runtime}),
    )


async def resolve(
    host: KernelHost, session: SessionFacts, choice: Choice, variables: Mapping[str, str]
) -> Found:
    """Find out what the chosen interpreter is, inside its launcher. Raises KernelUnavailable."""
    recipe = session.recipe
    launcher, view, bubblewrap = recipe.launcher, None, None
    if choice.python is None:
        python = await _managed(host)
    else:
        python = _locate(choice.python, session.cwd, variables, launched=bool(launcher))
    if recipe.sandbox is not None:
        bubblewrap = await host.bubblewrap.find(host.environ, session.cwd, host.processes)
        view = View(
            home=host.home,
            hidden=host.hidden,
            user_home=Path(variables["HOME"]) if "HOME" in variables else None,
            workspace=session.cwd,
            readable=(
                *interpreter_folders(Path(python), session.cwd, host.home),
                *(folder for folder in [skills_folder(host.home)] if folder.is_dir()),
            ),
            network=bool(recipe.network),
        )
        launcher = (bubblewrap, *arguments(view))
    interpreter = await host.interpreters.look_at(
        host.processes, python, launcher=launcher, env=variables, packages=wheel.PINNED
    )
    return Found(
        interpreter=interpreter,
        launcher=recipe.launcher,
        bubblewrap=bubblewrap,
        view=view,
    )


async def _managed(host: KernelHost) -> str:
    return str(
        await ensure_managed(
            home=host.home,
            environ=host.environ,
            packages=host.packages,
            processes=host.processes,
            clock=host.clock,
            interpreters=host.interpreters,
        )
    )


async def _around(
    host: KernelHost, session: SessionFacts, found: Found, overlay: Path | None
) -> tuple[str, ...]:
    """Give the argv that stands before the interpreter's."""
    if found.view is None or found.bubblewrap is None:
        return (*found.launcher, *_handed_over(found.launcher, session))
    view = msgspec.structs.replace(
        found.view,
        readable=(*found.view.readable, *([overlay] if overlay else ())),
        writable=(await family_folder(session.session_dir),),
    )
    return (found.bubblewrap, *arguments(view))


def kernel_variables(environ: Mapping[str, str], session: SessionFacts) -> dict[str, str]:
    """Give a kernel's whole environment. Raises ConfigInvalid for variables that are the host's."""
    recipe = session.recipe
    ours = sorted(name for name in recipe.env if OURS.fullmatch(name))
    if ours:
        raise ConfigInvalid("A recipe cannot set variables of the host.", names=ours)
    return {
        **{name: value for name, value in environ.items() if PASSED_ON.fullmatch(name)},
        **recipe.env,
        **({"TMPDIR": TEMPORARY} if recipe.sandbox is not None else {}),
        **_our_variables(session),
    }


def _handed_over(launcher: tuple[str, ...], session: SessionFacts) -> tuple[str, ...]:
    """Give what carries our own variables, which are no secrets, through a launcher like ssh."""
    if not launcher:
        return ()
    ours = {**_our_variables(session), "RLM_CONTROL": "in-band"}
    return ("env", *(f"{name}={value}" for name, value in ours.items()))


def _our_variables(session: SessionFacts) -> dict[str, str]:
    memory_bytes = session.recipe.memory_bytes
    return {
        "RLM_DEPTH": str(session.depth),
        "RLM_MAX_DEPTH": str(session.max_depth),
        "RLM_SESSION_DIR": str(session.session_dir),
        "RLM_SIGINT": "doorbell",
        **({"RLM_MEMORY_BYTES": str(memory_bytes)} if memory_bytes is not None else {}),
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
