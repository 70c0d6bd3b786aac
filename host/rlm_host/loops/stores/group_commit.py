"""
One writing connection that any number of threads share, with one sync for all who wait.

Many connections on one file starve each other: SQLite's busy handler sleeps and has no queue. Here
a caller that finds the connection free commits by itself; callers that come meanwhile wait, and
the next of them commits for all.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from rlm_protocol.errors import StoreUnavailable

from ...sqlite_file import store_errors
from .base import nothing

T = TypeVar("T")
Fault = Callable[[str], None]
"""Called at each named point of a durable write, so that a test can end the process there."""


def no_fault(point: str) -> None:
    """Let the write go on."""


class _Ticket:
    """One waiting write and, once `done`, its result or error."""

    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[apsw.Connection], Any]) -> None:
        self.work = work
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class GroupCommit:
    """
    The writing connection of one file.

    `open_connection` is called at the first write and after an IO error: a connection whose sync
    has failed is not used again.
    """

    def __init__(
        self, path: Path, open_connection: Callable[[], apsw.Connection], fault: Fault = no_fault
    ) -> None:
        self._path = path
        self._open = open_connection
        self._fault = fault
        self._db: apsw.Connection | None = None
        self._waiting: deque[_Ticket] = deque()
        self._turn = threading.Lock()
        self._inside: int | None = None
        """The thread that is committing: its writes belong to the open transaction."""

    def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """
        Run `work` in a transaction and give its result once that is durable.

        Raises:
            RlmError: of `store_errors`, or what `work` raised. Nothing was written, unless it is
                `StoreUnavailable`: then the outcome is unknown.
        """
        if self._inside == threading.get_ident():
            assert self._db is not None
            return work(self._db)
        ticket = _Ticket(work)
        self._waiting.append(ticket)
        with self._turn:
            if not ticket.done:
                self._commit_waiting(ticket)
        if ticket.error is not None:
            raise ticket.error
        result: T = ticket.result
        return result

    def together(
        self, calls: Sequence[Callable[[], Any]], meanwhile: Callable[[], None] = nothing
    ) -> list[Any]:
        """
        Make calls whose writes all go into one transaction. An exception is a call's result.

        `meanwhile` is called between the statements and the sync: the statements need the
        interpreter, and would wait for whoever has it after each of them.
        """
        tickets = [_Ticket(lambda _, call=call: call()) for call in calls]  # type: ignore[misc]
        with self._turn:
            self._commit(tickets, meanwhile)
        return [t.result if t.error is None else t.error for t in tickets]

    def close(self) -> None:
        """Close the connection; the next write opens another."""
        with self._turn:
            self._drop()

    def _commit_waiting(self, mine: _Ticket) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            self._commit(batch)
        except BaseException:  # an interrupt of this caller is not the others'
            self._waiting.extendleft(t for t in batch if t is not mine and not t.done)
            raise

    def _commit(self, tickets: list[_Ticket], meanwhile: Callable[[], None] = nothing) -> None:
        """
        Settle every ticket: all in one transaction or, when one of them fails, one by one.

        That is rare, and a savepoint around each would cost more than a third of the statements.
        """
        try:
            self._transact(tickets, meanwhile)
        except Exception as why:
            if len(tickets) > 1:
                for ticket in tickets:
                    self._commit([ticket])
                return
            tickets[0].error = why
        for ticket in tickets:
            ticket.done = True

    def _transact(self, tickets: list[_Ticket], meanwhile: Callable[[], None]) -> None:
        db = self._connection()
        self._inside = threading.get_ident()
        try:
            with store_errors(self._path, db):
                try:
                    db.execute("BEGIN IMMEDIATE")
                    for ticket in tickets:
                        ticket.result = ticket.work(db)
                    meanwhile()
                    self._fault("store.in_transaction")
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            self._fault("store.committed")
        except StoreUnavailable:
            self._drop()
            raise
        finally:
            self._inside = None

    def _connection(self) -> apsw.Connection:
        if self._db is None:
            self._db = self._open()
        return self._db

    def _drop(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
