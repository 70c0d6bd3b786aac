"""Installing from an index, with uv: the only thing here that may need the network."""

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlm_protocol.errors import KernelUnavailable

from ..processes.command import run_command
from ..processes.spawn import Processes
from .interpreters import Interpreter

INSTALL_MS = 600_000
COMPILE_MS = 300_000
log = logging.getLogger(__name__)
_FOR_UV = ("PATH", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
_FOR_UV_PREFIXES = ("UV_", "HTTP_", "HTTPS_", "NO_", "ALL_", "http_", "https_", "no_", "all_")


def find_uv(environ: Mapping[str, str]) -> str | None:
    """Give uv's path: beside this host's Python, else on the PATH."""
    beside = shutil.which("uv", path=str(Path(sys.executable).parent))
    return beside or shutil.which("uv", path=environ.get("PATH", ""))


async def install_into(
    target: Path | None,
    interpreter: Interpreter,
    requirements: Sequence[str],
    environ: Mapping[str, str],
    processes: Processes,
    *,
    run: bool = True,
) -> None:
    """
    Install requirements for `interpreter`: into the folder `target`, or into its own environment.

    Without `run`, wheels for its version are unpacked and the interpreter itself is not started.

    Raises KernelUnavailable, with the command that helps, when there is no uv or no network.
    """
    uv = find_uv(environ)
    help_ = f"With a network, run once: rlm-host kernel install --python {interpreter.executable}"
    if uv is None:
        raise KernelUnavailable(
            f"A kernel on this interpreter needs packages and there is no uv. Install uv. {help_}",
            python=interpreter.executable,
            requirements=list(requirements),
        )
    place = ["--target", str(target), "--no-deps"] if target is not None else []
    python = ["--python", interpreter.executable]
    if not run:
        version = ".".join(map(str, interpreter.version[:2]))
        python = ["--python", sys.executable, "--python-version", version, "--only-binary", ":all:"]
    argv = [uv, "pip", "install", "--quiet", *python, *place]
    try:
        done = await run_command(
            processes,
            [*argv, *requirements],
            env=_environment(environ),
            cwd=Path("/"),
            timeout_ms=INSTALL_MS,
        )
        failed = done.stderr_tail if done.exit_code else None
    except TimeoutError:
        failed = f"uv did not finish in {INSTALL_MS // 1000} s"
    if failed is not None:
        raise KernelUnavailable(
            f"The packages of a kernel on this interpreter cannot be installed. {help_}",
            python=interpreter.executable,
            requirements=list(requirements),
            why=failed,
        )


async def compile_all(python: str, folder: Path, processes: Processes) -> None:
    """Compile a folder to bytecode, with the interpreter that will read it, for a fast start."""
    argv = [python, "-I", "-m", "compileall", "-q", str(folder)]
    try:
        done = await run_command(processes, argv, env={}, cwd=Path("/"), timeout_ms=COMPILE_MS)
    except TimeoutError:
        log.warning("%s was not compiled in time; kernels start slower", folder)
        return
    if done.exit_code:
        # Some packages carry files for other versions of Python: they are never imported.
        log.debug("%s was compiled but for: %s", folder, done.stdout[:1000])


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name in _FOR_UV or name.startswith(_FOR_UV_PREFIXES)
    }
