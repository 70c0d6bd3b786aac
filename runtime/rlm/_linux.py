"""
What the process tree asks of the operating system beyond POSIX, each need behind one function.

Every function probes and falls back by itself; none raises. `prctl` is called through the C module
below `ctypes`, which is loaded in a third of the time. (prctl(2), pidfd_open(2), capabilities(7))
"""

import _signal  # type: ignore[import-not-found]
import os
import time
from collections.abc import Callable, Collection

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_CAPBSET_DROP = 1, 36, 24
_CAPABILITIES_V3 = 0x20080522
_CAP_SYS_PTRACE, _CAP_SYS_ADMIN, _CAP_PERFMON = 19, 21, 38
_PIPE_BYTES = 128 * 1024
"""Twice the usual. No more: all pipes of a user hold 64 MiB, then new ones are small (pipe(7))."""
_KILL_S = 5.0
_THREAD_ENDS_S = 0.1


def call(function: str, *args: object) -> int:
    """Call a function of the C library with integers and bytes; -1 where there is none."""
    try:
        import _ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), function)  # type: ignore[arg-type]
    except (ImportError, OSError):
        return -1
    return int(_ctypes.call_function(address, args))


def become_subreaper() -> bool:
    """Adopt orphans of our descendants instead of leaving them to init."""
    return call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def die_with_parent() -> bool:
    """Have the system kill this process when the thread that forked it ends."""
    return call("prctl", _PR_SET_PDEATHSIG, int(_signal.SIGKILL), 0, 0, 0) == 0


def pidfd(pid: int) -> int | None:
    """Give a descriptor that becomes readable when process `pid` ends, or None."""
    if not pid or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def offer_to_oom_killer() -> None:
    """Let the kernel die of memory before its host does."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, b"500")
    except OSError:
        return
    finally:
        os.close(fd)


def drop_inspection() -> None:
    """As root, give up the capabilities that read other processes' memory."""
    if os.geteuid() != 0:
        return
    header = _CAPABILITIES_V3.to_bytes(4, "little") + bytes(4)
    data = bytes(24)
    if call("capget", header, data) != 0:
        return
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, 24, 4)]
    for capability in (_CAP_SYS_PTRACE, _CAP_SYS_ADMIN, _CAP_PERFMON):
        call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
        half, bit = divmod(capability, 32)
        for word in range(3):  # effective, permitted, inheritable
            words[3 * half + word] &= ~(1 << bit)
    call("capset", header, b"".join(word.to_bytes(4, "little") for word in words))


def widen_pipe(fd: int) -> None:
    """Let a pipe hold more, so that a batch of frames passes at one go; a socket stays as it is."""
    import fcntl

    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (AttributeError, OSError):
        return  # no such system, no pipe, or this user's pipes hold enough already


def descendants(root: int, without: Collection[int] = ()) -> list[int]:
    """
    Give the descendants of `root`, nearest first; [] where the system does not show them.

    One look may miss what is forked or orphaned meanwhile: look again until there is no child left.

    Args:
        without: processes that are left out with all that is below them.
    """
    below = children if lists_children() else _scanned()
    found: list[int] = []
    todo = [root]
    while todo:
        nearest = [pid for pid in below(todo.pop()) if pid not in without]
        found += nearest
        todo += nearest
    return found


def _scanned() -> Callable[[int], list[int]]:
    """Give what tells the living children of a process, out of one look at all processes."""
    table: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        names = []
    for name in filter(str.isdigit, names):
        row = stat(int(name))
        if row is not None and row[0] not in (b"Z", b"X"):
            table.setdefault(int(row[1]), []).append(int(name))
    return lambda pid: table.get(pid, [])


def stat(pid: int) -> list[bytes] | None:
    """Give the fields of /proc/PID/stat from the state on, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    return text[text.rindex(b")") + 2 :].split()


def kill_descendants(reap: Callable[[], bool], without: Collection[int] = ()) -> None:
    """
    SIGKILL every descendant of this process until none is left; beats forks in the making.

    Args:
        reap: reaps what has ended; tells whether a child is left that must end.
        without: processes that are spared with all that is below them.
    """
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        left = descendants(os.getpid(), without)
        for pid in left:
            try:
                os.kill(pid, _signal.SIGKILL)
            except OSError:
                continue
        if not reap() and not left:
            return
        time.sleep(0.001)


def reap() -> bool:
    """Reap every child that has ended. Tells whether there is any other; that is certain."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def threads() -> int:
    """Count the threads of this process; one that is just ending gets a moment. 0: unknown."""
    deadline = time.monotonic() + _THREAD_ENDS_S
    while True:
        try:
            count = len(os.listdir("/proc/self/task"))
        except OSError:
            return 0
        if count == 1 or time.monotonic() > deadline:
            return count
        time.sleep(0.001)


def end_by_signal(number: int) -> "NoReturn":
    """End this process by the signal that ended another, so that its parent sees the same."""
    if number not in (_signal.SIGKILL, _signal.SIGSTOP):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file, the kernel's, is enough
        _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def lists_children() -> bool:
    """Tell whether `children` can know anything here."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def children(pid: int) -> list[int]:
    """Give the direct children of process `pid`; [] where the system does not list them."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:
            continue
    return found
