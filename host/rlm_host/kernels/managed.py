"""
Environments that this host makes for its kernels: side by side, one per digest, never changed.

The digest covers the runtime, the interpreter's ABI and the wanted packages. Without extra packages
one is made without a network: a bare venv and copies of what this host itself runs on. What a user
or an agent added to the environment before is copied too, or named as lost.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlm_protocol.errors import KernelUnavailable

from .. import paths
from ..clock import Clock
from ..processes.command import run_command
from ..processes.spawn import Processes
from . import distributions, wheel
from .building import Marker, making, read_marker, write_marker
from .installer import compile_all, find_uv, install_into
from .interpreters import Interpreter, Interpreters

CURRENT = "kernel-venv"
"""Link to the environment that was used last; for people, and to know what they have added."""
VENV_MS = 120_000
log = logging.getLogger(__name__)


def folder_of(home: Path, packages: Sequence[str]) -> Path:
    """Give the place of the managed environment of this host with these packages."""
    parts = (wheel.runtime().version, distributions.own_abi(), *sorted(packages))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return paths.kernel_venvs(home) / digest


def python_of(folder: Path) -> Path:
    """Give an environment's interpreter."""
    return folder / "bin" / "python"


async def ensure_managed(
    *,
    home: Path,
    environ: Mapping[str, str],
    packages: Sequence[str],
    processes: Processes,
    clock: Clock,
    interpreters: Interpreters,
) -> Path:
    """
    Give the interpreter of the managed environment; make the environment when there is none.

    Raises KernelUnavailable when it cannot be made. Nothing half-made is left.
    """
    folder = folder_of(home, packages)
    python = python_of(folder)

    def finished() -> bool:
        # When its base Python was uninstalled nothing can be running in it: it is made anew.
        return read_marker(folder) is not None and python.exists()

    if finished():
        _point_to(home, folder)
        return python
    async with making(folder, clock, finished) as ours:
        if ours:
            await _make_venv(folder, environ, processes)
            interpreter = await interpreters.look_at(
                processes, str(python), env={}, packages=wheel.PINNED
            )
            kept, lost = await asyncio.to_thread(_fill, folder, interpreter, home / CURRENT)
            if packages:
                await install_into(None, interpreter, packages, environ, processes)
            await compile_all(str(python), Path(interpreter.site), processes)
            marker = Marker(
                runtime=wheel.runtime().version,
                python=str(python),
                abi=interpreter.abi,
                packages=tuple(packages),
                kept=tuple(kept),
                lost=tuple(lost),
                made_at_ms=clock.now_ms(),
            )
            await asyncio.to_thread(write_marker, folder, marker)
    _point_to(home, folder)
    return python


async def _make_venv(folder: Path, environ: Mapping[str, str], processes: Processes) -> None:
    base = getattr(sys, "_base_executable", None) or sys.executable
    ways = [[base, "-I", "-m", "venv", "--without-pip", str(folder)]]
    if (uv := find_uv(environ)) is not None:
        # Some distributions ship Python without its venv module.
        ways.append([uv, "venv", "--quiet", "--offline", "--python", base, str(folder)])
    failed = ""
    for argv in ways:
        await asyncio.to_thread(shutil.rmtree, folder, True)
        try:
            done = await run_command(processes, argv, env={}, cwd=Path("/"), timeout_ms=VENV_MS)
        except (OSError, TimeoutError) as why:
            failed = str(why)
            continue
        if done.exit_code == 0:
            return
        failed = done.stderr_tail or done.stdout[-1000:].decode(errors="replace")
    raise KernelUnavailable(
        "No environment for kernels can be made. Install Python's venv module, or uv.",
        python=base,
        why=failed,
    )


def _fill(folder: Path, interpreter: Interpreter, before: Path) -> tuple[list[str], list[str]]:
    site = Path(interpreter.site)
    wheel.unpack(site)
    for name in wheel.PINNED:
        if not distributions.copy(name, site):
            raise KernelUnavailable(
                "This host's own files are incomplete; install rlm-host again.", missing=name
            )
    return _keep_additions(before, site, interpreter.abi)


def _keep_additions(before: Path, site: Path, abi: str) -> tuple[list[str], list[str]]:
    """Copy what was added to the environment `before`. Gives what was kept and what was lost."""
    marker = read_marker(before)
    places = list(before.glob("lib/python*/site-packages"))
    if marker is None or not places:
        return [], []
    kept: list[str] = []
    lost: list[str] = []
    there = distributions.installed(site)
    for found in distributions.installed(places[0]).values():
        if found.name in there:
            continue
        usable = found.pure or marker.abi == abi
        copied = usable and distributions.copy(found.name, site, site=places[0])
        (kept if copied else lost).append(f"{found.name}=={found.version}")
    if lost:
        log.warning("packages of the earlier kernel environment are not in the new one: %s", lost)
    return kept, lost


def _point_to(home: Path, folder: Path) -> None:
    link = home / CURRENT
    target = os.path.relpath(folder, home)
    if link.is_symlink() and os.readlink(link) == target:
        return
    fresh = home / f".{CURRENT}.{os.getpid()}"
    with contextlib.suppress(OSError):
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.rename(link)
