"""What `rlm-host kernel install|path|doctor` do; the command line only prints what these return."""

import asyncio
from pathlib import Path
from typing import Literal

import msgspec

from rlm_protocol.errors import KernelUnavailable

from .. import paths
from ..processes import facts
from . import wheel
from .building import read_marker
from .environment import CHECKOUT, KernelHost, kernel_variables, resolve
from .installer import find_uv
from .interpreters import Interpreter
from .managed import folder_of, python_of
from .overlay import ensure_overlay, missing
from .recipe import Choice, Recipe, SessionFacts, Source, choose


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a diagnosis. `help` says what to do about it."""

    level: Literal["ok", "note", "warning", "error"]
    subject: str
    text: str
    help: str | None = None


async def kernel_path(host: KernelHost, cwd: Path, recipe: Recipe | None = None) -> Path:
    """
    Give the interpreter that a session in `cwd` would run on. Makes nothing.

    Raises KernelUnavailable when it cannot be run. The managed one need not exist yet.
    """
    recipe = recipe or Recipe()
    choice = choose(recipe, cwd, host.environ, host.python)
    if choice.source is Source.MANAGED:
        return python_of(folder_of(host.home, host.packages))
    return Path((await _look(host, cwd, choice, recipe)).executable)


async def install(host: KernelHost, cwd: Path, python: str | None = None) -> Path:
    """
    Make ready what kernels need, so that they start offline afterwards.

    Without `python` that is the managed environment, with it the overlay for that interpreter.

    Returns:
        The folder that was made, or was there.

    Raises:
        KernelUnavailable: it cannot be made; the message says what to do.
    """
    recipe = Recipe(python=python)
    source = Source.MANAGED if python is None else Source.RECIPE
    interpreter = await _look(host, cwd, Choice(source=source, python=python), recipe)
    interpreter.check()
    if python is None:
        return folder_of(host.home, host.packages)
    return await ensure_overlay(
        interpreter,
        home=host.home,
        environ=host.environ,
        processes=host.processes,
        clock=host.clock,
        trusted=host.defaults.sandbox is None,
    )


async def doctor(host: KernelHost, cwd: Path) -> list[Finding]:
    """Say which kernel a session in `cwd` would get, and how well this machine keeps processes."""
    findings = [_ownership(host), await _sandbox(host, cwd)]
    choice = choose(Recipe(), cwd, host.environ, host.python)
    if choice.source is Source.MANAGED:
        findings += await asyncio.to_thread(_managed, host)
    else:
        findings += await _named(host, cwd, choice)
    findings += await asyncio.to_thread(_others, host)
    return findings


def _ownership(host: KernelHost) -> Finding:
    wanting = {"/proc": facts.has_proc(), "a subreaper": facts.can_adopt()}
    absent = [name for name, there in wanting.items() if not there]
    if not absent:
        level = "template and guard" if host.templates is not None else "guard"
        text = f"kernels end as whole trees ({level})"
        return Finding(level="ok", subject="processes", text=text)
    return Finding(
        level="warning",
        subject="processes",
        text=f"without {' and '.join(absent)} kernels are ended by their process group only",
        help="A daemon that a cell starts may outlive its session.",
    )


async def _sandbox(host: KernelHost, cwd: Path) -> Finding:
    try:
        program = await host.bubblewrap.find(host.environ, cwd, host.processes)
    except KernelUnavailable as why:
        wanted = host.defaults.sandbox is not None
        return Finding(
            level="error" if wanted else "note",
            subject="sandbox",
            text="cannot be had here" + (": no kernel starts, as configured" if wanted else ""),
            help=f"{why.data.get('why') or ''} Install bubblewrap, allow user namespaces.".strip(),
        )
    return Finding(level="ok", subject="sandbox", text=f"{program} makes one when it is asked for")


async def _look(host: KernelHost, cwd: Path, choice: Choice, recipe: Recipe) -> Interpreter:
    recipe = recipe.completed(host.defaults)
    session = SessionFacts(recipe=recipe, cwd=cwd, session_dir=cwd, depth=0, max_depth=0)
    variables = kernel_variables(host.environ, session)
    return (await resolve(host, session, choice, variables)).interpreter


async def _named(host: KernelHost, cwd: Path, choice: Choice) -> list[Finding]:
    subject = f"interpreter ({choice.source})"
    try:
        interpreter = await _look(host, cwd, choice, Recipe())
        interpreter.check()
    except KernelUnavailable as why:
        return [Finding(level="error", subject=subject, text=str(why))]
    version = ".".join(map(str, interpreter.version))
    found = [Finding(level="ok", subject=subject, text=f"{interpreter.executable} ({version})")]
    if interpreter.runtime == CHECKOUT and choice.source is Source.VARIABLE:
        text = "runs from a checkout, named by RLM_KERNEL_PYTHON"
        return [*found, Finding(level="note", subject="runtime", text=text)]
    if interpreter.runtime not in (None, CHECKOUT, wheel.runtime().version):
        found.append(
            Finding(
                level="note",
                subject="runtime",
                text=f"the one installed there ({interpreter.runtime}) is not this host's; "
                "an overlay is used",
            )
        )
    found += [_borrowed(name, interpreter) for name in missing(interpreter)]
    return found


def _borrowed(name: str, interpreter: Interpreter) -> Finding:
    pin, theirs = wheel.runtime().pins[name], interpreter.packages.get(name)
    why = f"instead of {theirs}, which is not tested" if theirs else "it is not installed there"
    return Finding(
        level="warning" if theirs else "ok",
        subject=name,
        text=f"{pin} comes from the overlay: {why}",
        help=f"Cells import {pin} too." if theirs else None,
    )


def _managed(host: KernelHost) -> list[Finding]:
    folder = folder_of(host.home, host.packages)
    marker = read_marker(folder)
    if marker is None:
        return [
            Finding(
                level="note",
                subject="environment",
                text="the managed environment is made by the first cell",
                help="Make it now: rlm-host kernel install",
            )
        ]
    if not python_of(folder).exists():
        text = f"the Python of {folder} is gone; the next cell makes it anew"
        return [Finding(level="warning", subject="environment", text=text)]
    found = [Finding(level="ok", subject="environment", text=str(folder))]
    if marker.lost:
        found.append(
            Finding(
                level="warning",
                subject="environment",
                text=f"not taken over from the earlier one: {', '.join(marker.lost)}",
                help=f"Install them again: uv pip install --python {python_of(folder)} …",
            )
        )
    return found


def _others(host: KernelHost) -> list[Finding]:
    root, current = paths.kernel_venvs(host.home), folder_of(host.home, host.packages)
    others = [f for f in sorted(root.glob("*/")) if f != current and f.is_dir()]
    found = []
    if others:
        found.append(
            Finding(
                level="note",
                subject="environments",
                text=f"{len(others)} of other versions or settings in {root}",
                help="Delete those that no running host uses.",
            )
        )
    if find_uv(host.environ) is None:
        found.append(
            Finding(
                level="note",
                subject="uv",
                text="not found; kernels with packages of their own need it",
                help="pip install uv",
            )
        )
    return found
