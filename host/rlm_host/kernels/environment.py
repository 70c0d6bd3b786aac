"""Turns a recipe into a command that starts a kernel: interpreter, runtime, variables."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rlm_protocol.errors import ConfigInvalid, KernelUnavailable

from ..clock import Clock
from ..processes.spawn import Processes
from .client import Launch, Waits
from .recipe import SessionFacts

PASSED_ON = re.compile(r"PATH|HOME|LANG|LC_.*|TZ|TERM|TMPDIR|VIRTUAL_ENV")
"""All that a kernel sees of the host's environment: never a provider's key."""
OURS = re.compile(r"RLM_.*")


class KernelHost(msgspec.Struct, frozen=True, kw_only=True):
    """What all kernels of one host share. Built once, by app.py."""

    home: Path
    environ: Mapping[str, str]
    """The host's environment; kernels get an allow-listed part of it."""
    processes: Processes
    clock: Clock
    waits: Waits = Waits()
    packages: tuple[str, ...] = ()
    """Requirements of managed environments besides the runtime (setting `kernel.packages`)."""
    snapshot_after_ms: int = 1_500
    """Quiet time after a cell until the namespace is saved."""


async def prepare(host: KernelHost, session: SessionFacts) -> Launch:
    """
    Decide how this session's kernel is started.

    Raises:
        KernelUnavailable: the recipe's interpreter cannot run a kernel.
        ConfigInvalid: the recipe sets a variable that is the host's.
    """
    python = session.recipe.python or host.environ.get("RLM_KERNEL_PYTHON")
    if python is None:
        raise KernelUnavailable("There is no interpreter for kernels.")
    return Launch(
        argv=(*session.recipe.launcher, python, "-P", "-m", "rlm.repl"),
        env=kernel_variables(host.environ, session),
        cwd=session.cwd,
        guarded=not session.recipe.launcher,
        versions=frozenset({"dev"}),
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
