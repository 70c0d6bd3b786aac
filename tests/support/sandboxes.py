"""The sandbox in tests: where it cannot be had they are skipped and say so, or fail as CI wants it."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlm_host.kernels.sandbox import CONFINED, PROGRAM, View, arguments, interpreter_folders
from support.runtime_driver import COMMAND, Runtime

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def _wanting() -> str | None:
    """Give why there is no sandbox here."""
    program = shutil.which(PROGRAM)
    if program is None:
        return "bubblewrap is not installed: install the Debian package bubblewrap"
    trial = [program, *CONFINED, "--ro-bind", "/", "/", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"bubblewrap makes no sandbox here: {done.stderr}" if done.returncode else None


def need_sandbox() -> None:
    """Skip the test where there is no sandbox; fail it where RLM_TEST_SERVICES is `required`."""
    if (why := _wanting()) is not None:
        if os.environ.get("RLM_TEST_SERVICES") == "required":
            pytest.fail(why)
        pytest.skip(why)


def sandboxed(workspace: Path, home: Path) -> tuple[str, ...]:
    """Give the argv of a runtime of this checkout inside the profile."""
    need_sandbox()
    view = View(
        home=home,
        user_home=None,
        workspace=workspace,
        readable=(*interpreter_folders(Path(sys.executable), workspace, home), ROOT),
    )
    return (PROGRAM, *arguments(view), *COMMAND)


def outer_pid(runtime: Runtime) -> int:
    """Give the kernel's pid as it is seen from here."""
    for pid in runtime.processes():
        status = Path(f"/proc/{pid}/status").read_text()
        inner = int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])
        if inner == runtime.pid:
            return pid
    raise AssertionError("the kernel is not there")
