"""
The orphan ledger: which processes hosts of this home have started and not yet seen end.

JSON lines in `orphans.jsonl`, shared by all hosts of a home under a lock that dies with its owner.
Read at start-up only, by the sweep.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.limits import KIB

from .. import paths
from . import facts

COMPACT_BYTES = 256 * KIB
"""A longer file is rewritten without what has ended."""
log = logging.getLogger(__name__)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A host process, and the only place in which its pid means something."""

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    def is_here(self, here: "Owner") -> bool:
        """Tell whether this owner's pids are the pids that `here` sees."""
        return (self.machine, self.boot, self.namespace) == (
            here.machine,
            here.boot,
            here.namespace,
        )

    def is_over(self, here: "Owner") -> bool:
        """Tell whether this owner, and all it started, ended with an earlier boot."""
        return self.machine == here.machine and self.boot != here.boot


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="started"):
    """A process was started. `tag` marks it and its descendants in their environment."""

    tag: str
    pid: int
    started: str
    label: str
    owner: Owner


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ended"):
    """The process with this tag, and all it started, is gone."""

    tag: str


_decode = msgspec.json.Decoder(Started | Ended).decode
_encode = msgspec.json.Encoder().encode


def this_process() -> Owner:
    """Name the running process as an owner."""
    fact = facts.process(os.getpid())
    return Owner(
        machine=facts.machine_id(),
        boot=facts.boot_id(),
        namespace=facts.pid_namespace(),
        pid=os.getpid(),
        started=fact.started if fact is not None else "",
    )


class Ledger:
    """
    The ledger of one home. Every method opens, locks, writes and closes: it blocks; use a thread.

    All methods raise OSError.
    """

    def __init__(self, home: Path, owner: Owner | None = None) -> None:
        self._path = paths.orphans(home)
        self.owner = owner or this_process()

    def add(self, record: Started) -> None:
        """Note a start, durably."""
        self._append(record)

    def remove(self, tag: str) -> None:
        """Note an end."""
        self._append(Ended(tag=tag))

    def open_records(self) -> list[Started]:
        """Read the starts without an end. A line that cannot be read is skipped and logged."""
        with self._locked() as fd:
            return list(self._fold(fd).values())

    def settle(self, tags: set[str]) -> None:
        """Forget these starts, and rewrite the file without everything that has ended."""
        with self._locked() as fd:
            left = [r for tag, r in self._fold(fd).items() if tag not in tags]
            self._replace(left)

    def _append(self, record: Started | Ended) -> None:
        with self._locked() as fd:
            end = os.lseek(fd, 0, os.SEEK_END)
            # A host killed while it wrote leaves half a line: it must not swallow ours.
            torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
            os.write(fd, b"\n" * torn + _encode(record) + b"\n")
            os.fsync(fd)
            if end > COMPACT_BYTES:
                self._replace(self._fold(fd).values())

    def _replace(self, records: Iterable[Started]) -> None:
        with paths.Directory.open(self._path.parent) as directory:
            lines = b"".join(_encode(record) + b"\n" for record in records)
            directory.write(self._path.name, lines)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        with paths.Directory.open(self._path.parent) as directory:
            while True:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
                with directory.opened(self._path.name, flags) as fd:
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    # `settle` replaces the file: the lock counts only on the one that is in place.
                    with contextlib.suppress(FileNotFoundError):
                        if os.path.samestat(os.stat(self._path), os.fstat(fd)):
                            yield fd
                            return

    def _fold(self, fd: int) -> dict[str, Started]:
        with open(fd, "rb", closefd=False) as file:
            file.seek(0)
            lines = file.read().splitlines()
        alive: dict[str, Started] = {}
        for line in filter(None, lines):
            try:
                record = _decode(line)
            except UNDECODABLE:
                log.warning("a line of %s cannot be read; skipped", self._path)
                continue
            if isinstance(record, Started):
                alive[record.tag] = record
            else:
                alive.pop(record.tag, None)
        return alive
