"""`rlm-host kernel install|doctor|path`, and `rlm-host doctor`: what this machine gives."""

import argparse
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from .. import config, paths
from ..kernels import doctor as kernels
from ..kernels.doctor import Finding
from ..kernels.environment import KernelHost
from .cli_client import exit_code
from .console import Console
from .doctor import App, examine

MARKS = {"ok": ("ok", "green"), "note": ("note", "dim"), "warning": ("warning", "yellow")}
KEPT = "What was there is unchanged."


def main(argv: Sequence[str], app: App) -> int:
    """`rlm-host kernel`."""
    parser = argparse.ArgumentParser(
        prog="rlm-host kernel", description="The Python that cells run in."
    )
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--cwd", type=Path, default=Path(), help="the workspace; default: here")
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="make it ready, so that it starts offline")
    installing.add_argument("--python", help="another interpreter; nothing is installed into it")
    commands.add_parser("doctor", help="say which one a session here gets, and how well it fits")
    commands.add_parser("path", help="print the interpreter")
    options = parser.parse_args(argv)
    cwd = options.cwd.absolute()

    async def work(host: KernelHost) -> int:
        if options.command == "doctor":
            return say(await kernels.doctor(host, cwd))
        if options.command == "path":
            sys.stdout.write(f"{await kernels.kernel_path(host, cwd)}\n")
        else:
            made = await kernels.install(host, cwd, options.python)
            sys.stdout.write(f"ready in {made}\n")
        return 0

    return _with_kernels("rlm-host kernel", options.config, app, work)


def doctor(argv: Sequence[str], app: App) -> int:
    """`rlm-host doctor`."""
    parser = argparse.ArgumentParser(
        prog="rlm-host doctor", description="Say what this machine gives and what is wrong."
    )
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--fix", action="store_true", help="end orphans, remove dead sockets")
    options = parser.parse_args(argv)

    async def work(host: KernelHost) -> int:
        return say(await examine(host, app, fix=options.fix))

    return _with_kernels("rlm-host doctor", options.config, app, work)


def say(findings: Sequence[Finding]) -> int:
    """Print a diagnosis; give 1 when it holds an error."""
    console = Console()
    for finding in findings:
        mark, style = MARKS.get(finding.level, ("ERROR", "bold red"))
        console.print(
            Text(f"{mark:<8}", style=style)
            + Text(f"{finding.subject}: {finding.text}", style="default"),
            soft_wrap=True,
        )
        if finding.help:
            console.print(Text(f"        {finding.help}", style="dim"), soft_wrap=True)
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _with_kernels(
    program: str,
    config_file: Path | None,
    app: App,
    work: Callable[[KernelHost], Coroutine[Any, Any, int]],
) -> int:
    async def main() -> int:
        env = dict(os.environ)
        home = paths.rlm_home(env)
        return await work(app.kernel_host(config.load(home, config_file), env, home=home))

    return exit_code(program, main(), kept=lambda: KEPT)
