"""
Connections to one PostgreSQL database, its tables, and the typed errors of all that can go wrong.

Imported only for a store whose URL says so (extra `postgres`).
"""

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from rlm_protocol.errors import (
    ConfigInvalid,
    RlmError,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)

T = TypeVar("T")
Db = psycopg.Connection[tuple[Any, ...]]
VERSION = 1
WAIT_S = 10.0
"""How long a call waits for a connection, a restarting server's included."""
LOCK_MS = 5_000
CONNECTIONS = 8
_MIGRATION = 0x726C6D72
"""Of the advisory lock under which one process at a time creates or changes tables."""
DDL = """
CREATE TABLE IF NOT EXISTS loop_schema(version integer NOT NULL);
CREATE TABLE IF NOT EXISTS loop_runs(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_id text NOT NULL UNIQUE,
  tenant text NOT NULL, workspace text NOT NULL, parent text, status text NOT NULL, reason text,
  config bytea NOT NULL, config_sum bigint NOT NULL, head bytea NOT NULL, head_sum bigint NOT NULL,
  seq integer NOT NULL, cancel text, pause text, token bigint NOT NULL DEFAULT 0, owner text,
  claim uuid, expires_at timestamptz, claims integer NOT NULL DEFAULT 0,
  created_at_ms bigint NOT NULL, updated_at_ms bigint NOT NULL) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS loop_runs_scope ON loop_runs(tenant, workspace, id);
CREATE INDEX IF NOT EXISTS loop_runs_going ON loop_runs(id) WHERE status = 'running';
CREATE TABLE IF NOT EXISTS loop_events(
  run bigint NOT NULL, seq integer NOT NULL, key text NOT NULL, token bigint NOT NULL,
  at_ms bigint NOT NULL, body_sum bigint NOT NULL, body bytea NOT NULL,
  PRIMARY KEY(run, seq), UNIQUE(run, key));
"""


class Pool:
    """
    The connections of one store, made when they are needed, in each process its own.

    Raises at construction:
        StoreUnavailable: nobody answers at the URL, or it does not let us in.
        SchemaTooNew: a newer version made the tables. They were not touched.
    """

    def __init__(self, url: str) -> None:
        try:
            known = conninfo_to_dict(url)
        except psycopg.Error as why:
            raise ConfigInvalid(
                "The store's URL is none of PostgreSQL.",
                field="store",
                allowed="postgresql://USER@HOST/DATABASE",
                got="a URL that cannot be read",
            ) from why
        known.pop("password", None)
        self.location = make_conninfo("", **known)
        self._url = url
        self._making = threading.Lock()
        self._pool: ConnectionPool[Db] | None = None
        self._pid = os.getpid()
        self._inherited: list[ConnectionPool[Db]] = []
        self._migrate()

    def close(self) -> None:
        """Close the connections; the next call makes new ones."""
        with self._making:
            if self._pool is not None and self._pid == os.getpid():
                self._pool.close()
            self._pool = None

    def call(self, work: Callable[[Db], T]) -> T:
        """
        Do some work on a connection in autocommit mode, once more if the connection breaks.

        Whether a broken connection's work is durable is not known, so all work is idempotent.

        Raises:
            StoreUnavailable, StoreBusy, StoreFull, StoreCorrupt: nothing is known to be written.
        """
        try:
            return self._call(work)
        except (psycopg.OperationalError, psycopg.InterfaceError) as why:
            if not _is_broken(why):
                raise self._error(why) from why
            try:
                self._made().check()  # what broke one connection may have broken all
                return self._call(work)
            except (psycopg.Error, PoolTimeout) as again:
                raise self._error(again) from again
        except psycopg.Error as why:
            raise self._error(why) from why

    def _call(self, work: Callable[[Db], T]) -> T:
        with self._made().connection() as db:
            return work(db)

    def _made(self) -> ConnectionPool[Db]:
        with self._making:
            if self._pid != os.getpid():
                # Connections must not be used on the other side of a fork, not even closed.
                self._inherited.extend([] if self._pool is None else [self._pool])
                self._pool, self._pid = None, os.getpid()
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._url,
                    kwargs={"autocommit": True},
                    min_size=1,
                    max_size=CONNECTIONS,
                    timeout=WAIT_S,
                    configure=_configure,
                    name="run-store",
                    open=True,
                )
            return self._pool

    def _migrate(self) -> None:
        try:
            with psycopg.connect(self._url) as db:
                db.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION,))
                db.execute(DDL)
                found = db.execute("SELECT max(version) FROM loop_schema").fetchone()
                assert found is not None, "an aggregate gives a line"
                if found[0] is None:
                    db.execute("INSERT INTO loop_schema VALUES(%s)", (VERSION,))
                elif found[0] > VERSION:
                    raise SchemaTooNew(
                        f"The store has schema {found[0]}, this version knows schemas up to "
                        f"{VERSION}: use the newer version.",
                        store=self.location,
                        found=found[0],
                        known=VERSION,
                    )
        except psycopg.Error as why:
            raise self._error(why) from why

    def _error(self, why: Exception) -> RlmError:
        """Give one of PostgreSQL's errors as ours."""
        told = {"store": self.location, "detail": str(why).strip()}
        match why:
            case errors.DiskFull():
                return StoreFull(
                    "The server has no room for the record. What was acknowledged before is kept; "
                    "free space there and run again.",
                    **told,
                )
            case errors.LockNotAvailable() | errors.QueryCanceled() | errors.DeadlockDetected():
                return StoreBusy("The server was busy for too long; try again.", **told)
            case errors.DataCorrupted() | errors.IndexCorrupted() | errors.UndefinedTable():
                return StoreCorrupt("The tables are damaged. Nothing was overwritten.", **told)
            case psycopg.DataError():
                return ConfigInvalid(
                    "PostgreSQL cannot keep this text.",
                    field="text",
                    allowed="text without the character NUL",
                    got=str(why).strip(),
                )
        return StoreUnavailable("The server does not answer, or refuses.", **told)


def _is_broken(why: Exception) -> bool:
    """Tell a lost connection from a refusal by a server that goes on."""
    state = getattr(why, "sqlstate", None)
    return state is None or state[:2] in ("08", "57")


def _configure(db: Db) -> None:
    db.execute(f"SET lock_timeout = {LOCK_MS}")
    # A stronger setting of the server's stays; a weaker one would lose what was acknowledged.
    db.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )
