"""
What a whole home has spent: the limits of the host and of the day, in `$RLM_HOME/budget.sqlite3`.

One table, shared by every host of the home: a row for each reservation that is open, and one for
each day with what was settled. It is written before the journal of the tree's root, when something
is set aside and when it is settled; so a row whose reservation the journal does not hold stands for
nothing, and recovery takes it away.
"""

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rlm_protocol.usage import Budget

from ..paths import DIRECTORY_MODE
from .budget import Amount, Scope, check_room, is_low

if TYPE_CHECKING:
    import apsw

HOST, DAY = "host", "day"
"""Keys of the two scopes."""
_DDL = """
create table spending(
  id text primary key, root text not null, day text not null,
  cost_nano_usd int not null, tokens int not null, spawns int not null) without rowid;
"""
_SUM = """
select ifnull(sum(cost_nano_usd), 0), ifnull(sum(tokens), 0), ifnull(sum(spawns), 0) from spending
"""
_ADD = """
insert into spending values (?, '', ?, ?, ?, ?) on conflict(id) do update set
  cost_nano_usd = cost_nano_usd + excluded.cost_nano_usd,
  tokens = tokens + excluded.tokens, spawns = spawns + excluded.spawns
"""


class Spending:
    """
    The table of one home. All methods block; each is one transaction.

    All raise StoreBusy, StoreFull, StoreUnavailable, StoreCorrupt; then nothing has changed.
    """

    def __init__(self, path: Path, *, host: Budget | None, day: Budget | None) -> None:
        """`host` and `day` are limits; None is none. Nothing is opened yet."""
        limits = {HOST: host, DAY: day}
        self._scopes = [Scope(key=key, limit=limit) for key, limit in limits.items() if limit]
        self._path = path
        self._lock = threading.Lock()
        self._db: apsw.Connection | None = None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def reserve(self, key: str, root_id: str, amount: Amount, *, now_ms: int) -> tuple[str, ...]:
        """
        Set an amount aside; give the scopes that have passed 80 % of a limit.

        Raises:
            BudgetExhausted: host or day have no room. Nothing was set aside.
        """
        day, low = day_of(now_ms), []
        with self._transaction() as db:
            for scope in self._scopes:
                spent = _spent(db, None if scope.key == HOST else day)
                check_room(scope, spent, amount, now_ms=now_ms)
                if is_low(scope, spent + amount, now_ms=now_ms):
                    low.append(scope.key)
            row = (key, root_id, day, amount.cost_nano_usd or 0, amount.tokens, amount.spawns)
            db.execute("insert or ignore into spending values (?, ?, ?, ?, ?, ?)", row)
        return tuple(low)

    def settle(self, key: str, amount: Amount) -> None:
        """Put what was really used in a reservation's place; without one nothing changes."""
        with self._transaction() as db:
            query = "delete from spending where id = ? and root != '' returning day"
            for (day,) in db.execute(query, (key,)).fetchall():
                used = (amount.cost_nano_usd or 0, amount.tokens, amount.spawns)
                db.execute(_ADD, (day, day, *used))

    def release(self, root_id: str) -> None:
        """Take away every reservation of a tree that is still open: its journal holds none."""
        with self._transaction() as db:
            db.execute("delete from spending where root = ?", (root_id,))

    def spent(self, *, now_ms: int | None = None) -> Amount:
        """Give what is used and reserved: ever, or on the day of `now_ms` (UTC)."""
        with self._transaction() as db:
            return _spent(db, None if now_ms is None else day_of(now_ms))

    def open(self) -> dict[str, str]:
        """Give the open reservations, each with the root of its tree."""
        with self._transaction() as db:
            rows = db.execute("select id, root from spending where root != ''").fetchall()
            return {str(key): str(root) for key, root in rows}

    @contextlib.contextmanager
    def _transaction(self) -> "Iterator[apsw.Connection]":
        from ..sqlite_file import Layout, open_file, store_errors

        with self._lock:
            if self._db is None:
                self._path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
                layout = Layout(what="budget", application_id=0x524C4D42, version=1, ddl=_DDL)
                self._db = open_file(self._path, layout)
            with store_errors(self._path, self._db):
                self._db.execute("begin immediate")
                try:
                    yield self._db
                    self._db.execute("commit")
                finally:
                    if self._db.in_transaction:
                        self._db.execute("rollback")


def day_of(now_ms: int) -> str:
    """Give the day in UTC, as `2026-12-31`."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).date().isoformat()


def _spent(db: "apsw.Connection", day: str | None) -> Amount:
    where, values = ("", ()) if day is None else (" where day = ?", (day,))
    cost, tokens, spawns = next(iter(db.execute(_SUM + where, values)))
    return Amount(cost_nano_usd=cost, tokens=tokens, spawns=spawns)
