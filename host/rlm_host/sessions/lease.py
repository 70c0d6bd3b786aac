"""
One owner per session: a flock that the kernel frees in milliseconds when its holder dies.

The lock is on the journal itself, so there is no lock without a journal and none to clean up. The
record beside it only tells others whom to talk to; nothing is ever decided by it.
"""

import contextlib
import fcntl
import os
from typing import Self

import msgspec

from rlm_protocol.errors import SessionLeased

from ..paths import Directory
from ..processes import facts


class Owner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    Who holds a session. A pid means something on this machine and boot only.

    `started` is the process's own start mark, so that a reused pid is not taken for the owner.
    """

    pid: int
    started: str
    since_ms: int
    machine_id: str
    boot_id: str
    socket: str | None = None


def this_process(*, now_ms: int, socket: str | None) -> Owner:
    """Describe the running process."""
    fact = facts.process(os.getpid())
    return Owner(
        pid=os.getpid(),
        started=fact.started if fact else "",
        since_ms=now_ms,
        machine_id=facts.machine_id(),
        boot_id=facts.boot_id(),
        socket=socket,
    )


class Lease:
    """Owns the lock on one journal, until `release` or the end of the process."""

    def __init__(self, directory: Directory, record: str, fd: int) -> None:
        self._directory = directory
        self._record = record
        self._fd = fd

    @classmethod
    def take(cls, directory: Directory, journal: str, owner: Owner) -> Self:
        """
        Lock `journal` and write the owner record. Never waits.

        Raises:
            FileNotFoundError: there is no such journal.
            SessionLeased: another process holds it; `owner` names it as far as it is known.
            OSError: the file cannot be opened.
        """
        record = f"{journal.removesuffix('.jsonl')}.owner"
        fd = directory.open_file(journal, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise _leased(directory, record) from None
        except BaseException:
            os.close(fd)
            raise
        with contextlib.suppress(OSError):  # a full disk must not keep a session from being read
            directory.write(record, msgspec.json.encode(owner))
        return cls(directory, record, fd)

    def release(self) -> None:
        """Let go. The record goes first: whoever finds one can trust it a little more."""
        if self._fd == -1:
            return
        with contextlib.suppress(OSError):
            self._directory.remove(self._record)
        os.close(self._fd)
        self._fd = -1


def _leased(directory: Directory, record: str) -> SessionLeased:
    try:
        owner = msgspec.json.decode(directory.read(record), type=Owner)
    except (OSError, msgspec.MsgspecError):
        return SessionLeased("Another host owns this session; who it is could not be read.")
    return SessionLeased(
        f"Process {owner.pid} owns this session; attach through its socket, or end it.",
        owner={
            "pid": owner.pid,
            "since": owner.since_ms,
            "socket": owner.socket,
            "machine_id": owner.machine_id,
        },
    )
