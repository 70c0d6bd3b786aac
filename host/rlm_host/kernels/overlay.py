"""
The runtime for an interpreter that is not ours: a folder beside it, nothing installed into it.

One folder per ABI and digest holds runtime, boot file and compiled requirements; one more, `pure`,
serves interpreters that have a msgspec of their own. Made once, works offline afterwards.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from rlm_protocol.errors import KernelUnavailable

from .. import paths
from ..clock import Clock
from ..processes.spawn import Processes
from . import distributions, overlay_boot, wheel
from .building import Marker, making, read_marker, write_marker
from .installer import compile_all, install_into
from .interpreters import Interpreter

LOWEST = {"msgspec": "0.20", "dill": "0.4", "cloudpickle": "3.1"}
"""Oldest version that a kernel takes from the user's environment; the newest is the host's own."""
PURE = "pure"
UNTRUSTED = "-sandboxed"


def missing(interpreter: Interpreter) -> tuple[str, ...]:
    """Name the requirements that the interpreter lacks, or has in a version we have not tested."""
    pins = wheel.runtime().pins
    release = distributions.release

    def fits(name: str) -> bool:
        found = interpreter.packages.get(name)
        if found is None:
            return False
        return release(LOWEST[name]) <= release(found) <= release(pins[name])

    return tuple(name for name in wheel.PINNED if not fits(name))


async def ensure_overlay(
    interpreter: Interpreter,
    *,
    home: Path,
    environ: Mapping[str, str],
    processes: Processes,
    clock: Clock,
    trusted: bool = True,
) -> Path:
    """
    Give the overlay folder for `interpreter`; make it when there is none.

    An interpreter that is not `trusted` is not run for it, and what it says of itself decides
    nothing for others: those that must stay in a sandbox have folders of their own.

    Raises KernelUnavailable when a compiled requirement cannot be had for this ABI.
    """
    packed = wheel.runtime()
    compiled = "msgspec" in missing(interpreter)
    abi = interpreter.abi if compiled else PURE
    kind = "" if trusted else UNTRUSTED
    folder = paths.overlays(home) / f"{paths.stored_name(abi)}{kind}-{packed.digest}"

    def finished() -> bool:
        return read_marker(folder) is not None

    if finished():
        return folder
    async with making(folder, clock, finished) as ours:
        if not ours:
            return folder
        await asyncio.to_thread(_lay_out, folder)
        if compiled and not await asyncio.to_thread(_copy_compiled, folder, interpreter):
            requirement = f"msgspec=={packed.pins['msgspec']}"
            await install_into(
                folder / "packages", interpreter, [requirement], environ, processes, run=trusted
            )
        if trusted:
            await compile_all(interpreter.executable, folder, processes)
        elif interpreter.abi == distributions.own_abi():
            await compile_all(sys.executable, folder, processes)
        marker = Marker(
            runtime=packed.version,
            python=interpreter.executable,
            abi=abi,
            made_at_ms=clock.now_ms(),
        )
        await asyncio.to_thread(write_marker, folder, marker)
    return folder


def _lay_out(folder: Path) -> None:
    folder.mkdir(mode=paths.DIRECTORY_MODE)
    boot = Path(overlay_boot.__file__).read_bytes()
    (folder / "boot.py").write_bytes(boot)
    wheel.unpack(folder / "runtime")
    for name in ("dill", "cloudpickle"):
        if not distributions.copy(name, folder / "packages"):
            raise KernelUnavailable(
                "This host's own files are incomplete; install rlm-host again.", missing=name
            )


def _copy_compiled(folder: Path, interpreter: Interpreter) -> bool:
    ours = distributions.installed()["msgspec"]
    if not ours.pure and interpreter.abi != distributions.own_abi():
        return False
    return distributions.copy("msgspec", folder / "packages")
