"""
Opening a SQLite file of ours, and the typed errors of everything that can go wrong with one.

apsw brings its own SQLite: the one beside many Python installations can corrupt a database in WAL
mode when two connections write and checkpoint at one instant (SQLite 3.51.3, WAL-reset bug).
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw

from rlm_protocol.errors import SchemaTooNew, StoreBusy, StoreCorrupt, StoreFull, StoreUnavailable

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
BUSY_MS = 5_000
"""How long a caller waits for another process's transaction before `StoreBusy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What one of our files looks like. `application_id` tells it from a stranger's database."""

    what: str
    application_id: int
    version: int
    ddl: str


@contextlib.contextmanager
def store_errors(path: Path, db: apsw.Connection | None = None) -> Iterator[None]:
    """Give SQLite's errors as ours; each names the file and says what to do."""
    try:
        yield
    except apsw.FullError as why:
        raise _full(path, why) from why
    except (apsw.BusyError, apsw.LockedError) as why:
        raise StoreBusy(
            "Another process has been writing for too long; try again.", path=str(path)
        ) from why
    except (apsw.CorruptError, apsw.NotADBError) as why:
        raise StoreCorrupt(
            "The file is damaged or is no SQLite database. It was left as it is: keep a copy, then "
            "try `sqlite3 FILE .recover` or another file.",
            path=str(path),
            detail=str(why),
        ) from why
    except apsw.IOError as why:
        if db is not None and db.system_errno in _NO_ROOM:
            raise _full(path, why) from why
        raise _unavailable(path, why) from why
    except (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, OSError) as why:
        raise _unavailable(path, why) from why


def _full(path: Path, why: Exception) -> StoreFull:
    return StoreFull(
        "There is no room for the record. What was acknowledged before is kept; free space and "
        "run again.",
        path=str(path),
        detail=str(why),
    )


def _unavailable(path: Path, why: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        "The file cannot be read or written.", path=_shown(path), detail=str(why)
    )


def _shown(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def open_file(
    path: Path, layout: Layout, *, sync: str = "FULL", busy_ms: int = BUSY_MS
) -> apsw.Connection:
    """
    Open or create one of our files in WAL mode; a new one is readable by its owner only.

    Raises:
        StoreCorrupt: it is no database, damaged, or another program's. It was not touched.
        SchemaTooNew: a newer version wrote it. It was not touched.
        StoreUnavailable: it cannot be opened, or its place does not allow WAL.
        StoreBusy, StoreFull: as `store_errors` says.
    """
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            return _open(path, layout, sync, busy_ms)
        except StoreBusy:
            # Entering WAL mode does not wait for others by itself.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _open(path: Path, layout: Layout, sync: str, busy_ms: int) -> apsw.Connection:
    try:
        str(path).encode()
    except UnicodeEncodeError as why:  # SQLite takes UTF-8 alone
        raise _unavailable(path, why) from None
    with store_errors(path):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with store_errors(path, db):
            db.set_busy_timeout(busy_ms)
            if _version(db, path, layout) < layout.version:
                _create(db, path, layout)
            if db.pragma("journal_mode") != "wal":
                raise StoreUnavailable(
                    "The file's place does not allow write-ahead logging, which durable runs need: "
                    "use a local disk.",
                    path=str(path),
                )
            db.execute(f"PRAGMA synchronous={sync}")
    except BaseException:
        db.close()
        raise
    return db


def _version(db: apsw.Connection, path: Path, layout: Layout) -> int:
    version: int = db.pragma("user_version")
    tables = db.execute("SELECT count(*) FROM sqlite_schema").get
    if version > layout.version and db.pragma("application_id") == layout.application_id:
        raise SchemaTooNew(
            f"The file has schema {version}, this version knows schemas up to {layout.version}: "
            "use the newer version.",
            path=str(path),
            found=version,
            known=layout.version,
        )
    if tables and db.pragma("application_id") != layout.application_id:
        raise StoreCorrupt(
            f"The file is another program's database, not a {layout.what}. It was left as it is.",
            path=str(path),
        )
    return version if tables else 0


def _create(db: apsw.Connection, path: Path, layout: Layout) -> None:
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("BEGIN IMMEDIATE")
    try:
        if _version(db, path, layout) == 0:  # another process may have been faster
            db.execute(layout.ddl)
            db.execute(f"PRAGMA application_id={layout.application_id}")
            db.execute(f"PRAGMA user_version={layout.version}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
