"""
Ends what is left of process trees whose owner is gone: at start-up, and after a broken guard.

Rule 1: a pid is touched only while its start time is the recorded one, on the machine, boot and pid
namespace of the record, or while it carries the record's tag in its environment. Rule 2: a tree is
killed until nothing of it is left, for it may fork while it is killed. Rule 3: never ourselves.
"""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Collection

import msgspec

from . import facts
from .facts import ProcessFact
from .ledger import Ledger, Owner, Started

SPAWN_TAG = "RLM_SPAWN"
"""Variable that marks all descendants of one spawn. One that empties its environment is found by
its parents only: as long as its guard, or the host that adopted it, lives."""
LIMIT_S = 2.0
ROUND_S = 0.01
EMPTY_LOOKS = 3
"""One look is not enough: a process that lives on in ever new pids can hide from a single one."""
Find = Callable[[dict[int, ProcessFact]], Collection[ProcessFact]]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What the sweep at start-up found."""

    killed: tuple[int, ...] = ()
    """Pids that were alive without an owner."""
    labels: tuple[str, ...] = ()
    """What dead hosts had started and not ended."""
    elsewhere: int = 0
    """Records of other machines and namespaces, left alone."""


def sweep(ledger: Ledger) -> Swept:
    """
    Kill what dead hosts of this machine left running, and forget their records.

    Living hosts' processes and those of other machines are not touched. Blocks: call it in a
    thread. Raises OSError when the ledger cannot be read or written.
    """
    here = ledger.owner
    records = ledger.open_records()
    dead = _orphaned(records, here)
    killed: list[int] = []
    for record in dead:
        killed += kill_all(functools.partial(_left_of, record))
    table = facts.processes()
    gone = [r for r in dead if not _left_of(r, table)]
    over = [r for r in records if r.owner.is_over(here)]
    ledger.settle({r.tag for r in (*gone, *over)})
    return Swept(
        killed=tuple(dict.fromkeys(killed)),
        labels=tuple(r.label for r in dead),
        elsewhere=sum(not (r.owner.is_here(here) or r.owner.is_over(here)) for r in records),
    )


def left_running(ledger: Ledger) -> tuple[int, ...]:
    """Give the pids that `sweep` would end. Blocks; raises OSError as it does."""
    table = facts.processes()
    pids = [fact.pid for record in orphans(ledger) for fact in _left_of(record, table)]
    return tuple(dict.fromkeys(pids))


def orphans(ledger: Ledger) -> list[Started]:
    """List what dead hosts of this machine had started and not ended. Blocks; raises OSError."""
    return _orphaned(ledger.open_records(), ledger.owner)


def _orphaned(records: list[Started], here: Owner) -> list[Started]:
    return [
        r for r in records if r.owner.is_here(here) and not _alive(r.owner.pid, r.owner.started)
    ]


def tree(root: int, table: dict[int, ProcessFact]) -> list[ProcessFact]:
    """List `root` and what lives below it."""
    top = [table[root]] if root in table and not table[root].zombie else []
    return [*top, *facts.descendants(root, table)]


def tagged(tag: str, table: dict[int, ProcessFact]) -> list[ProcessFact]:
    """List the processes whose environment carries this spawn's tag."""
    return [f for f in table.values() if facts.has_variable(f.pid, SPAWN_TAG, tag)]


def kill_all(find: Find) -> list[int]:
    """
    SIGKILL all that `find` finds, until it finds nothing; blocks for about 2 s at most.

    A tree is stopped before it is killed: what is stopped cannot fork, and a parent's death cannot
    carry its children out of sight.

    Returns:
        The pids that were signalled.
    """
    spared = _ancestors()
    killed: set[int] = set()
    stopped: set[int] = set()
    looks = 0
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        fresh = _found(find, spared | stopped)
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh
        if fresh:
            looks = 0
            continue
        if not stopped:
            looks += 1
            if looks == EMPTY_LOOKS:
                return sorted(killed)
            continue
        _signal(stopped, signal.SIGKILL)
        killed |= stopped
        stopped = set()
        time.sleep(ROUND_S)
    # It grows faster than it can be stopped: what is seen is killed at least.
    left = _found(find, spared) | stopped
    _signal(left, signal.SIGKILL)
    return sorted(killed | left)


def _found(find: Find, without: set[int]) -> set[int]:
    return {f.pid for f in find(facts.processes()) if not f.zombie and f.pid not in without}


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap_adopted(own: Collection[int]) -> None:
    """Reap the zombies that a broken guard left us as their new parent, by pid."""
    for fact in _adopted(own, facts.processes()):
        if fact.zombie:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(fact.pid, os.WNOHANG)


def adopted(own: Collection[int], table: dict[int, ProcessFact]) -> list[ProcessFact]:
    """
    List our children that we did not start ourselves.

    What a library of ours starts lives in our session; descendants of our own children never do.
    """
    return [f for f in _adopted(own, table) if not f.zombie]


def _adopted(own: Collection[int], table: dict[int, ProcessFact]) -> list[ProcessFact]:
    me, session = os.getpid(), os.getsid(0)
    return [
        f for f in table.values() if f.parent == me and f.session != session and f.pid not in own
    ]


def _left_of(record: Started, table: dict[int, ProcessFact]) -> list[ProcessFact]:
    fact = table.get(record.pid)
    below = tree(record.pid, table) if fact and fact.started == record.started else []
    return list({f.pid: f for f in (*below, *tagged(record.tag, table))}.values())


def _alive(pid: int, started: str) -> bool:
    fact = facts.process(pid)
    return fact is not None and fact.started == started and not fact.zombie


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fact = facts.process(pid)
        pid = fact.parent if fact is not None else 0
    return found
