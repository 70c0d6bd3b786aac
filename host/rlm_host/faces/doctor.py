"""What a doctor looks at besides kernels: home, orphans, sockets, sessions, stores, last bug."""

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from rlm_protocol.errors import RlmError

from .. import config, paths
from ..kernels import doctor as kernels
from ..kernels.doctor import Finding
from ..kernels.environment import KernelHost
from ..kernels.skills import Skills, bundled
from ..rpc.sockets import runtime_dir, serves, sweep
from .doctor_stores import sessions, stores

RECENT_LINES = 2_000


class App(Protocol):
    """What app.py offers to these commands."""

    def kernel_host(
        self, config: config.Config, env: Mapping[str, str], *, home: Path
    ) -> KernelHost:
        """Give what kernels of this home share."""

    def orphans(self, home: Path, *, end: bool) -> tuple[int, ...]:
        """Give the pids that dead hosts left running; with `end`, end them."""


async def examine(host: KernelHost, app: App, *, fix: bool) -> list[Finding]:
    """Look at everything; with `fix`, end what is without an owner and remove dead sockets."""
    findings = list(_home(host.home))
    findings += await kernels.doctor(host, Path.cwd())
    findings += await anyio.to_thread.run_sync(lambda: list(_orphans(host.home, app, fix=fix)))
    findings += _sockets(host.environ, fix=fix)
    findings += await anyio.to_thread.run_sync(lambda: list(_skills(host.home)))
    findings += await anyio.to_thread.run_sync(lambda: [*sessions(host.home), *stores(host.home)])
    findings += _last_bug(host.home)
    return findings


def _home(home: Path) -> Iterator[Finding]:
    if not home.exists():
        yield _home_to_be(home)
        return
    mode = home.stat().st_mode & 0o777
    if mode & 0o077 and home.is_dir():
        yield Finding(
            level="warning",
            subject="home",
            text=f"{home} is open to others ({mode:03o})",
            help=f"chmod 700 {home}",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=home) as probe:
            os.fsync(probe.fileno())
            fcntl.flock(probe.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as why:
        yield Finding(
            level="error",
            subject="home",
            text=f"{home} cannot be written, synced and locked: {why.strerror}",
            help="Name another folder in RLM_HOME, on a local disk.",
        )
        return
    free = os.statvfs(home)
    yield Finding(
        level="ok",
        subject="home",
        text=f"{home}: written, synced and locked; {free.f_bavail * free.f_frsize >> 20} MiB free",
    )


def _skills(home: Path) -> Iterator[Finding]:
    offered = Skills(bundled=bundled(), home=home, workspace=True).offered(Path.cwd())
    names = ", ".join(skill.name for skill in offered if skill.problem is None)
    yield Finding(level="ok", subject="skills", text=names or "none")
    for skill in offered:
        if skill.problem is not None:
            yield Finding(
                level="warning",
                subject="skills",
                text=f"{skill.name} cannot be used: {skill.problem}",
                help=f"Mend or remove {skill.path}.",
            )


def _home_to_be(home: Path) -> Finding:
    nearest = next(folder for folder in home.parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=nearest):
            return Finding(
                level="note", subject="home", text=f"{home} is made by the first session"
            )
    except OSError as why:
        return Finding(
            level="error",
            subject="home",
            text=f"{home} cannot be made: {why.strerror}",
            help="Name another folder in RLM_HOME, on a local disk.",
        )


def _orphans(home: Path, app: App, *, fix: bool) -> Iterator[Finding]:
    try:
        left = app.orphans(home, end=fix)
    except OSError as why:
        yield Finding(level="warning", subject="orphans", text=f"the ledger cannot be read: {why}")
        return
    if not left:
        yield Finding(level="ok", subject="orphans", text="no process was left by a dead host")
    elif fix:
        yield Finding(level="ok", subject="orphans", text=f"ended {', '.join(map(str, left))}")
    else:
        yield Finding(
            level="warning",
            subject="orphans",
            text=f"left by a dead host: {', '.join(map(str, left))}",
            help="End them: rlm-host doctor --fix (the next host does it too).",
        )


def _sockets(env: Mapping[str, str], *, fix: bool) -> list[Finding]:
    try:
        removed = sweep(env) if fix else 0
        folder = runtime_dir(env)
    except RlmError as why:
        return [Finding(level="warning", subject="sockets", text=str(why))]
    living: list[str] = []
    dead = 0
    for path in sorted(folder.glob("*.sock")):
        if serves(path):
            living.append(str(path))
        else:
            dead += 1
    found = []
    if living:
        text = f"hosts serve on {', '.join(living)}"
        found.append(Finding(level="ok", subject="sockets", text=text))
    if removed:
        text = f"removed {removed} of killed hosts from {folder}"
        found.append(Finding(level="ok", subject="sockets", text=text))
    if dead:
        found.append(
            Finding(
                level="note",
                subject="sockets",
                text=f"{dead} of dead hosts in {folder}",
                help="Nothing needs doing: the next host removes them, or takes over its own.",
            )
        )
    return found or [Finding(level="ok", subject="sockets", text=f"none in {folder}")]


def _last_bug(home: Path) -> Sequence[Finding]:
    file = paths.logs(home) / "host.log"
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-RECENT_LINES:]
    except OSError:
        return []
    bugs = [line for line in lines if '"message": "bug ' in line]
    if not bugs:
        return [Finding(level="ok", subject="log", text=f"no bug of the host in {file}")]
    return [
        Finding(
            level="warning",
            subject="log",
            text=f"{len(bugs)} bugs of the host, the last: {bugs[-1][:300]}",
            help=f"Tell us, with the line from {file}.",
        )
    ]
