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
    choice = choose(recipe, cwd, host.environ)
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
    )


async def doctor(host: KernelHost, cwd: Path) -> list[Finding]:
    """Say which kernel a session in `cwd` would get, and how well this machine keeps processes."""
    findings = [_ownership()]
    choice = choose(Recipe(), cwd, host.environ)
    if choice.source is Source.MANAGED:
        findings += await asyncio.to_thread(_managed, host)
    else:
        findings += await _foreign(host, cwd, choice)
    findings += await asyncio.to_thread(_environments, host)
    return findings


def _ownership() -> Finding:
    pidfd = facts.open_pidfd(1)
    wanting = [
        name
        for name, there in (("/proc", facts.has_proc()), ("a subreaper", facts.can_adopt()))
        if not there
    ]
    if not wanting:
        return Finding(level="ok", subject="processes", text="kernels end as whole trees (guard)")
    return Finding(
        level="warning",
        subject="processes",
        text=f"without {' and '.join(wanting)} kernels are ended by their process group only",
        help="A daemon that a cell starts may outlive its session.",
    )
