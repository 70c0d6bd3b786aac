"""What a doctor says of sessions and run stores: who holds them, and whether files are whole."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .. import paths
from ..kernels.doctor import Finding
from ..rpc.sockets import serves
from ..sessions.index import NAME
from ..sessions.lease import holder_of


def sessions(home: Path) -> Iterator[Finding]:
    """Say how many sessions there are, and which hosts hold some of them."""
    folder = paths.sessions(home)
    if not folder.is_dir():
        return
    journals = sorted(file.name for file in folder.glob("*.jsonl"))
    held_by: dict[int, list[str]] = {}
    with paths.Directory.open(folder) as directory:
        for name in journals:
            holder = holder_of(directory, name)
            if holder is not None and holder.socket and serves(Path(holder.socket)):
                held_by.setdefault(holder.owner.pid, []).append(name.removesuffix(".jsonl"))
    yield Finding(level="ok", subject="sessions", text=f"{len(journals)} in {folder}")
    for pid, held in sorted(held_by.items()):
        yield Finding(
            level="ok",
            subject="locks",
            text=f"process {pid} holds {len(held)} sessions, among them {held[0]}",
            help=f"Join it: rlm-host attach --session {held[0]}",
        )


def stores(home: Path) -> Iterator[Finding]:
    """Check the index of sessions and every run store; nothing is written."""
    index = paths.sessions(home) / NAME
    if index.is_file() and (wrong := _damage(index)):
        yield Finding(
            level="note",
            subject="store",
            text=f"{index} is damaged: {wrong}",
            help="Nothing is lost: the next host builds it again from the journals.",
        )
    for store in sorted((home / "runs").glob("*.sqlite3")):
        wrong = _damage(store)
        yield Finding(
            level="error" if wrong else "ok",
            subject="store",
            text=f"{store} is damaged: {wrong}" if wrong else f"{store} is whole",
            help="Keep it as it is, and put a copy of an earlier day in its place."
            if wrong
            else None,
        )


def _damage(file: Path) -> str | None:
    """Give what SQLite finds wrong in a file; None when it is whole, or busy just now."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)
        ) as connection:
            (found,) = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.OperationalError as why:
        return None if "locked" in str(why) else str(why)
    except sqlite3.DatabaseError as why:
        return str(why)
    return None if found == "ok" else str(found)
