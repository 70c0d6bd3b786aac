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
from rlm_protocol.framing import UNDECODABLE

from ..paths import Directory
from ..processes.ledger import Owner


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a session, since when (wall clock), and where it can be reached."""

    owner: Owner
    since_ms: int
    socket: str | None = None


class Lease:
    """Owns the lock on one journal, until `release` or the end of the process."""

    def __init__(self, directory: Directory, record: str, fd: int) -> None:
        self._directory = directory
        self._record = record
        self._fd = fd

    @classmethod
    def take(cls, directory: Directory, journal: str, holder: Holder) -> Self:
        """
        Lock `journal` and write the owner record. Never waits.

        Raises:
            FileNotFoundError: there is no such journal.
            SessionLeased: another process holds it; `owner` names it as far as it is known.
            OSError: the file cannot be opened.
        """
        fd = directory.open_file(journal, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise _leased(directory, journal) from None
        except BaseException:
            os.close(fd)
            raise
        record = _record_of(journal)
        with contextlib.suppress(OSError):  # a full disk must not keep a session from being read
            directory.write(record, msgspec.json.encode(holder))
        return cls(directory, record, fd)

    def release(self) -> None:
        """Let go. The record goes first: whoever finds one can trust it a little more."""
        if self._fd == -1:
            return
        with contextlib.suppress(OSError):
            self._directory.remove(self._record)
        os.close(self._fd)
        self._fd = -1


def holder_of(directory: Directory, journal: str) -> Holder | None:
    """Give who said last that it holds a session; it may be dead. None when nobody says so."""
    try:
        return msgspec.json.decode(directory.read(_record_of(journal)), type=Holder)
    except (OSError, *UNDECODABLE):
        return None


def _record_of(journal: str) -> str:
    return f"{journal.removesuffix('.jsonl')}.owner"


def _leased(directory: Directory, journal: str) -> SessionLeased:
    holder = holder_of(directory, journal)
    if holder is None:
        return SessionLeased("Another host owns this session; who it is could not be read.")
    return SessionLeased(
        f"Process {holder.owner.pid} owns this session; attach through its socket, or end it.",
        owner={
            "pid": holder.owner.pid,
            "since": holder.since_ms,
            "socket": holder.socket,
            "machine": holder.owner.machine,
        },
    )
