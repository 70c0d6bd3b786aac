"""What an interpreter is: run once and asked, then remembered while its files stay the same."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rlm_protocol.errors import KernelUnavailable
from rlm_protocol.framing import UNDECODABLE

from ..processes.command import run_command
from ..processes.spawn import Processes

OLDEST = (3, 11)
PROBE_MS = 30_000
HELP = "Name another one: RLM_KERNEL_PYTHON=/path/to/python, or the session's recipe."

# Also read by interpreters that are too old for us: they must be able to say so.
PROBE = r"""
import json, os, re, sys
sys.path[:] = [p for p in sys.path if p]
found = {"version": list(sys.version_info[:3]), "executable": sys.executable,
         "prefix": sys.prefix, "base_prefix": getattr(sys, "base_prefix", sys.prefix)}
try:
    import platform, sysconfig
    found["implementation"] = platform.python_implementation()
    found["abi"] = sysconfig.get_config_var("SOABI") or ""
    found["site"] = sysconfig.get_path("purelib")
    import importlib.metadata, importlib.util
    def version(name):
        try:
            return importlib.metadata.version(name)
        except Exception:
            return None
    found["packages"] = {n: v for n in sys.argv[1:] for v in [version(n)] if v}
    rlm, protocol = importlib.util.find_spec("rlm"), importlib.util.find_spec("rlm_protocol")
    if rlm and protocol and rlm.submodule_search_locations:
        where = list(rlm.submodule_search_locations)[0]
        if os.path.exists(os.path.join(where, "_guard.py")):
            found["runtime"] = "dev"
        build = os.path.join(where, "_build.py")
        if os.path.exists(build):
            with open(build) as file:
                found["runtime"] = re.search('VERSION = "(.*)"', file.read()).group(1)
except ImportError:
    pass
print(json.dumps(found))
"""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python that answered. `executable` is its real path, or a venv's own link."""

    executable: str
    version: tuple[int, int, int]
    prefix: str
    base_prefix: str
    implementation: str = ""
    abi: str = ""
    site: str = ""
    packages: dict[str, str] = {}
    """Versions of those of our three requirements that it has."""
    runtime: str | None = None
    """Version of a runtime of ours that it can import; "dev" for a checkout's."""

    @property
    def venv(self) -> str | None:
        """Folder of the virtual environment that it belongs to."""
        return self.prefix if self.prefix != self.base_prefix else None

    def check(self) -> None:
        """Raise KernelUnavailable when no kernel can run on it."""
        if self.version < OLDEST or self.implementation != "CPython":
            name = f"{self.implementation or 'Python'} {'.'.join(map(str, self.version))}"
            raise KernelUnavailable(
                f"Kernels need CPython 3.11 or newer; this one is {name}. {HELP}",
                python=self.executable,
            )


class _Remembered(msgspec.Struct):
    stamp: tuple[object, ...]
    interpreter: Interpreter


class Interpreters:
    """What is known of interpreters. One per host; its questions run one after the other."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], _Remembered] = {}
        self._lock = asyncio.Lock()

    async def look_at(
        self,
        processes: Processes,
        python: str,
        *,
        launcher: Sequence[str] = (),
        env: Mapping[str, str],
        packages: Sequence[str],
    ) -> Interpreter:
        """
        Run `python` once and say what it is.

        Args:
            processes: owner of the process.
            python: absolute path.
            launcher: argv that it is run inside.
            env: the environment that a kernel will have.
            packages: distributions to ask for.

        Raises:
            KernelUnavailable: it cannot be run, or does not answer like a Python.
        """
        key = (*launcher, python)
        async with self._lock:
            known = self._known.get(key)
            if known is not None and known.stamp == _stamp(python, known.interpreter):
                return known.interpreter
            found = await _ask(processes, [*launcher, python], env, packages)
            self._known[key] = _Remembered(_stamp(python, found), found)
            return found


async def _ask(
    processes: Processes, argv: list[str], env: Mapping[str, str], packages: Sequence[str]
) -> Interpreter:
    try:
        done = await run_command(
            processes,
            [*argv, "-c", PROBE, *packages],
            env=env,
            cwd=Path("/"),
            timeout_ms=PROBE_MS,
        )
    except (OSError, TimeoutError) as why:
        raise _unusable(argv, str(why) or "it did not answer in time") from why
    try:
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Interpreter)
    except (*UNDECODABLE, IndexError) as why:
        raise _unusable(argv, done.stderr_tail or f"exit code {done.exit_code}") from why


def _unusable(argv: list[str], reason: str) -> KernelUnavailable:
    data: dict[str, Any] = {"python": argv[-1], "why": reason}
    return KernelUnavailable(f"This interpreter cannot be run. {HELP}", **data)


def _stamp(python: str, interpreter: Interpreter) -> tuple[object, ...]:
    """Give what changes when the interpreter or its packages do."""
    stamps: list[object] = []
    for path in (python, interpreter.site):
        try:
            about = os.stat(path)
            stamps.append((about.st_ino, about.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return tuple(stamps)
