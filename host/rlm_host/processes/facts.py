"""
What the machine tells about its processes. The one seam to /proc, `ps`, prctl and pidfd.

Every fact has a fallback for machines without it; which one is used is found by trying, never by
the platform's name.
"""

import contextlib
import ctypes
import functools
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec

PROC = Path("/proc")
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 4, 36, 37


class ProcessFact(msgspec.Struct, frozen=True):
    """One process. `started` is opaque: a pid is the same process only while it is equal."""

    pid: int
    parent: int
    group: int
    session: int
    zombie: bool
    started: str


def processes() -> dict[int, ProcessFact]:
    """List every visible process by pid."""
    return _from_proc() if has_proc() else _from_ps()


def process(pid: int) -> ProcessFact | None:
    """Look at one process; None when there is none."""
    if has_proc():
        with contextlib.suppress(OSError, ValueError):
            return _parse_stat((PROC / str(pid) / "stat").read_bytes())
        return None
    return _from_ps().get(pid)


def descendants(root: int, table: dict[int, ProcessFact] | None = None) -> list[ProcessFact]:
    """List the living processes below `root`, parents first."""
    table = processes() if table is None else table
    children: dict[int, list[ProcessFact]] = {}
    for fact in table.values():
        children.setdefault(fact.parent, []).append(fact)
    found, todo = [], [root]
    while todo:
        for fact in children.get(todo.pop(), ()):
            todo.append(fact.pid)
            if not fact.zombie:
                found.append(fact)
    return found


def has_variable(pid: int, name: str, value: str) -> bool:
    """Tell whether a process was started with this environment variable (own processes only)."""
    try:
        environ = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{name}={value}".encode() in environ.split(b"\0")


@functools.cache
def has_proc() -> bool:
    """Tell whether /proc is Linux's."""
    return (PROC / "self" / "stat").exists()


@functools.cache
def machine_id() -> str:
    """Name this machine."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if found := _read(path):
            return found
    return socket.gethostname()


@functools.cache
def boot_id() -> str:
    """Name this boot of the machine."""
    return _read("/proc/sys/kernel/random/boot_id") or _sysctl("kern.bootsessionuuid")


@functools.cache
def pid_namespace() -> str:
    """Name the space in which pids mean something: containers of one machine share its boot id."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def prctl(option: int, argument: object) -> bool:
    """Change a trait of this process, or ask for one. False where the kernel cannot do it."""
    try:
        call: Any = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    return bool(call(option, argument, 0, 0, 0) == 0)


@functools.cache
def can_adopt() -> bool:
    """Tell whether a process here can become the parent of what its descendants orphan."""
    return prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(ctypes.c_int()))


def can_fork_guards() -> bool:
    """Tell whether kernels can be forked from templates here: it takes pidfds and a subreaper."""
    return hasattr(os, "pidfd_open") and can_adopt() and has_proc()


def umask() -> str:
    """Give what the umask of this process is, without changing it; "" where nobody says."""
    rows = _read("/proc/self/status").splitlines()
    return next((row for row in rows if row.startswith("Umask:")), "")


def harden_host() -> bool:
    """
    Make this process unreadable for its cells, and the parent of whatever they orphan.

    Without PR_SET_DUMPABLE=0 a cell reads provider keys out of the host's memory; without
    PR_SET_CHILD_SUBREAPER what a killed guard leaves behind goes to init instead of to our sweep.
    Call once, in the process that owns kernels, before the first spawn.

    Returns:
        False when the machine has neither; kernels are then owned by process group only.
    """
    hidden = prctl(PR_SET_DUMPABLE, 0)
    return prctl(PR_SET_CHILD_SUBREAPER, 1) and hidden


def oom_kills() -> int:
    """Give how many processes the system has killed for want of memory: of our cgroup, or all."""
    try:
        cgroup = _read("/proc/self/cgroup").rpartition("0::")[2].splitlines()[0]
        counters = _read(f"/sys/fs/cgroup{cgroup}/memory.events") or _read("/proc/vmstat")
    except IndexError:
        counters = _read("/proc/vmstat")
    for line in counters.splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdecimal():
            return int(count)
    return 0


def exists(pid: int) -> bool:
    """Tell whether a process, of whomever, has this pid in our namespace."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def open_pidfd(pid: int) -> int | None:
    """Open a descriptor that becomes readable when a child of ours ends; None without pidfd."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _from_proc() -> dict[int, ProcessFact]:
    table = {}
    for name in os.listdir(PROC):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                fact = _parse_stat((PROC / name / "stat").read_bytes())
                table[fact.pid] = fact
    return table


def _parse_stat(stat: bytes) -> ProcessFact:
    # The command's name may hold spaces and parentheses: fields are counted from the last one.
    head, tail = stat[: stat.rindex(b")")], stat[stat.rindex(b")") + 2 :].split()
    return ProcessFact(
        pid=int(head.split(b" ", 1)[0]),
        parent=int(tail[1]),
        group=int(tail[2]),
        session=int(tail[3]),
        zombie=tail[0] in (b"Z", b"X"),
        started=tail[19].decode(),
    )


def _from_ps() -> dict[int, ProcessFact]:
    columns = "pid=,ppid=,pgid=,sess=,stat=,lstart="
    done = subprocess.run(["ps", "-axo", columns], capture_output=True, check=False)
    table = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        pid, parent, group, session, state, started = line.split(None, 5)
        session_id = int(session) if session.isdecimal() else 0
        table[int(pid)] = ProcessFact(
            int(pid), int(parent), int(group), session_id, state.startswith("Z"), started
        )
    return table


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, check=False)
    except OSError:
        return ""
    return done.stdout.decode(errors="replace").strip()
