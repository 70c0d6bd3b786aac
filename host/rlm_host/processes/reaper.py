"""
The guard of a one-shot command: `python -I -S reaper.py PROGRAM ARGS…`. Standard library only.

It starts the command as its only child in a session of its own, adopts whatever the command
orphans, and ends when the command has ended, when the host says `kill`, or when the host is gone;
before it ends it kills everything below it. Speaks the guard's words (see guard.py).
"""

import contextlib
import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NOT_STARTED = 127


def main(argv: list[str]) -> int:
    """Run `argv` guarded. Gives its exit code; 128 + N for signal N, 127 if it cannot start."""
    control = int(os.environ.pop("RLM_GUARD_FD"))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(argv, me)
    # The command's pipes are its own: their end is then the end of its tree.
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    _say(control, b"pid %d" % pid)
    code = _watch(control, woken, pid)
    code = _end_all(pid) if code is None else code
    _end_all(pid)
    _say(control, b"exit %d" % code)
    return code if code >= 0 else 128 - code


def _become(argv: list[str], guard: int) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(NOT_STARTED)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    try:
        os.execvp(argv[0], argv)
    except OSError as why:
        os.write(2, f"{argv[0]}: {why.strerror}\n".encode())
    os._exit(NOT_STARTED)


def _watch(control: int, woken: int, pid: int) -> int | None:
    """Wait for the command's end or the host's word. Gives the command's code if it has ended."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if woken in ready:
            os.read(woken, 512)
        code = _reap(pid)
        if code is not None:
            return code
        if control in ready:
            word = _hear(control)
            if word == b"term":
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGTERM)
            elif word == b"int":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
            elif word in (b"kill", b""):
                return None


def _reap(pid: int) -> int | None:
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == pid:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _end_all(pid: int) -> int:
    """Kill all below us until we have no child. Gives the command's code, if it ended just now."""
    code = -signal.SIGKILL
    while True:
        for victim in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)


def _descendants() -> list[int]:
    """List what lives below us; nothing without /proc (the command's group is killed anyway)."""
    children: dict[int, list[int]] = {}
    names = os.listdir("/proc") if os.path.exists("/proc/self/stat") else []
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        todo += below
        found += below
    return found


def _hear(control: int) -> bytes:
    try:
        return os.read(control, 64)
    except OSError:
        return b""


def _say(control: int, message: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(control, message)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
