"""
A cache of what all sessions of a home look like, so that listing 10,000 of them reads one page.

SQLite, thrown away and built again from the journals whenever it is lost, damaged or of another
schema, and kept in memory where no file can be written; no fact lives here alone. Everything
blocks; call it in a thread.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rlm_protocol.errors import RlmError
from rlm_protocol.session import Session

from .. import paths
from .recovery import peek
from .state import SessionState

log = logging.getLogger(__name__)

NAME = "index.sqlite3"
SCHEMA = 3
ROWS_AT_ONCE = 500
_CREATE = f"""
create table if not exists session(
  id text primary key, parent_id text, folder text not null, key text, request text,
  words text not null, archived int not null, deleted int not null, created_at_ms int not null,
  size_bytes int not null, mtime_ns int not null, view blob not null
) without rowid;
create index if not exists page
  on session(parent_id, deleted, archived, created_at_ms desc, id desc);
create index if not exists keyed on session(key) where key is not null;
pragma user_version = {SCHEMA};
"""
_PUT = "insert or replace into session values (?,?,?,?,?,?,?,?,?,?,?,?)"
_PAGE = """
select id, folder, created_at_ms, size_bytes, mtime_ns, view from session
where parent_id is null and deleted = 0 and archived = ?
  and (created_at_ms, id) < (?, ?) and instr(words, ?) > 0
order by created_at_ms desc, id desc limit ?
"""


_decode_view = msgspec.json.Decoder(Session).decode


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One session as the index knows it. `folder` holds its journal, relative to the home."""

    id: str
    folder: str
    created_at_ms: int
    view: Session


class Index:
    """The index of one home. Any number of hosts may use the same file at once."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._connection: Any = None
        self._stopped = False
        self._new = False  # whether the file knows nothing yet

    def stop(self) -> None:
        """Have a look through all journals end soon. Does not block."""
        self._stopped = True

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def put(self, state: SessionState, view: Session, folder: Path) -> None:
        """Remember a session as it is now. A failure costs a later look at its journal only."""
        journal = folder / f"{view.id}.jsonl"
        with contextlib.suppress(OSError), self._open() as connection:
            found = journal.stat()
            row = _row(state, view, self._relative(folder), found)
            connection.execute(_PUT, row)

    def folder_of(self, session_id: str) -> Path | None:
        """Find the folder that holds a session's journal."""
        root = paths.sessions(self._home)
        if (root / f"{session_id}.jsonl").exists():
            return root
        for again in (False, True):
            if again:
                self.reconcile()
            with self._open() as connection:
                query = "select folder from session where id = ?"
                row = connection.execute(query, (session_id,)).fetchone()
            if row is not None and (self._home / row[0] / f"{session_id}.jsonl").exists():
                return self._home / str(row[0])
        return None

    def created_by(self, key: str) -> tuple[str, str] | None:
        """Give id and request digest of the session that was created with an idempotency key."""
        self._reconcile_new()
        with self._open() as connection:
            query = "select id, request from session where key = ?"
            row = connection.execute(query, (key,)).fetchone()
        return None if row is None else (str(row[0]), str(row[1]))

    def page(
        self,
        *,
        before: tuple[int, str] | None,
        limit: int,
        search: str,
        archived: bool,
        live: Mapping[str, Session],
    ) -> list[Row]:
        """Give root sessions, newest first, as they are in `live` or in their journals now."""
        self._reconcile_new()
        at_ms, before_id = before or (2**62, "")
        with self._open() as connection:
            arguments = (archived, at_ms, before_id, search.lower(), limit)
            found = connection.execute(_PAGE, arguments).fetchall()
        rows = [self._fresh(live.get(row[0]), *row) for row in found]
        return [row for row in rows if row is not None]

    def reconcile(self) -> None:
        """Look at every journal of the home; read those that have changed since they were read."""
        with self._open() as connection:
            query = "select id, folder, size_bytes, mtime_ns from session"
            known = {row[0]: row[1:] for row in connection.execute(query)}
        rows: list[tuple[Any, ...]] = []
        for path, found in self._journals():
            session_id = path.name.removesuffix(".jsonl")
            was = known.pop(session_id, None)
            if self._stopped:
                return
            if was == (self._relative(path.parent), found.st_size, found.st_mtime_ns):
                continue
            if (state := self._fold(session_id, path.parent)) is not None:
                view = self._view(state, path.parent)
                rows.append(_row(state, view, self._relative(path.parent), found))
            if len(rows) == ROWS_AT_ONCE:
                self._put(rows)
        self._put(rows)
        with self._open() as connection:
            connection.executemany("delete from session where id = ?", [(one,) for one in known])
        self._new = False

    def _put(self, rows: list[tuple[Any, ...]]) -> None:
        with self._open() as connection:
            connection.executemany(_PUT, rows)
        rows.clear()

    def _reconcile_new(self) -> None:
        """Fill a file that knows nothing yet; one that does is looked through beside."""
        if self._connection is None:
            with self._open():
                pass  # now it is known whether the file is new
        if self._new:
            self.reconcile()

    def _journals(self) -> Iterator[tuple[Path, os.stat_result]]:
        folders = [paths.sessions(self._home)]
        artifacts = self._home / "session-artifacts"
        folders += artifacts.glob("*/sub-*/")
        while folders:
            folder = folders.pop()
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False):
                        yield Path(entry.path), entry.stat(follow_symlinks=False)
                    elif entry.name.startswith("sub-") and entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))

    def _fresh(
        self,
        live: Session | None,
        session_id: str,
        folder: str,
        at_ms: int,
        size: int,
        mtime_ns: int,
        view: bytes,
    ) -> Row | None:
        """Give a row as its journal is now; None when it does not belong to the page any more."""
        if live is not None:
            return Row(id=session_id, folder=folder, created_at_ms=at_ms, view=live)
        place = f"{self._home}/{folder}"  # a Path for each row is half of a page's time
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found = os.stat(f"{place}/{session_id}.jsonl")
            if (found.st_size, found.st_mtime_ns) == (size, mtime_ns):
                known = _decode_view(view)
                return Row(id=session_id, folder=folder, created_at_ms=at_ms, view=known)
            return self._read(session_id, Path(place))
        return None

    def _read(self, session_id: str, folder: Path) -> Row | None:
        """Fold one journal and remember it; None when it is not to be listed."""
        state = self._fold(session_id, folder)
        if state is None:
            return None
        view = self._view(state, folder)
        self.put(state, view, folder)
        if state.deleted:
            return None
        return Row(
            id=session_id,
            folder=self._relative(folder),
            created_at_ms=view.created_at_ms,
            view=view,
        )

    def _fold(self, session_id: str, folder: Path) -> SessionState | None:
        """Fold one journal; one that cannot be read is left out, and logged."""
        try:
            with paths.Directory.open(folder) as directory:
                return peek(directory, f"{session_id}.jsonl")[0]
        except (OSError, RlmError) as why:
            log.warning("session %s is not listed: %s", session_id, why)
            return None

    def _view(self, state: SessionState, folder: Path) -> Session:
        own = folder if state.opened.parent else paths.artifacts(self._home, state.id)
        return state.view(journal_path=str(folder / f"{state.id}.jsonl"), artifacts_path=str(own))

    def _relative(self, folder: Path) -> str:
        return str(folder.relative_to(self._home))

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        """Hold the connection for the length of the block, one transaction."""
        import apsw

        with self._lock:
            if self._connection is None:
                self._connection = self._connect(apsw)
            with self._connection:
                yield self._connection

    def _connect(self, apsw: Any) -> Any:
        path = paths.sessions(self._home) / NAME
        for again in (False, True):
            connection = None
            with paths.Directory.open(path.parent) as folder:
                try:
                    # SQLite gives the files beside it the mode that this one has.
                    os.close(folder.open_file(NAME, os.O_RDWR | os.O_CREAT))
                except OSError as why:
                    log.warning("the session index is kept in memory: %s", why)
                    return self._in_memory(apsw)
            try:
                connection = apsw.Connection(str(path))
                connection.set_busy_timeout(2000)
                version = connection.execute("pragma user_version").fetchone()[0]
                self._new = version == 0
                if version not in (0, SCHEMA):
                    raise apsw.CorruptError(f"schema {version}")
                connection.execute("pragma journal_mode = wal; pragma synchronous = off")
                connection.execute(_CREATE)
                return connection
            except (apsw.CorruptError, apsw.NotADBError) as why:
                if connection is not None:
                    connection.close()
                if again:
                    raise
                log.warning("the session index is built again: %s", why)
                for ending in ("", "-wal", "-shm"):
                    path.with_name(path.name + ending).unlink(missing_ok=True)
        raise AssertionError("unreachable")

    def _in_memory(self, apsw: Any) -> Any:
        """Give an index for a home that can only be read: it lasts as long as this host."""
        connection = apsw.Connection(":memory:")
        connection.execute(_CREATE)
        self._new = True
        return connection


def _row(state: SessionState, view: Session, folder: str, found: os.stat_result) -> tuple[Any, ...]:
    opened, labels = state.opened, (state.options.labels or {}).values()
    return (
        view.id,
        view.parent_id,
        folder,
        opened.key,
        opened.request,
        " ".join((view.name, view.cwd, view.model, view.id, *labels)).lower(),
        view.archived,
        state.deleted,
        view.created_at_ms,
        found.st_size,
        found.st_mtime_ns,
        msgspec.json.encode(view),
    )
