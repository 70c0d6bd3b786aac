"""Opening a session's journal: its folder, its lock, its fold. Blocks; run it in a thread."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from rlm_protocol import records as r
from rlm_protocol.errors import SessionNotFound

from ..paths import Directory
from .files import Files
from .journal import Place
from .lease import Holder, Lease
from .ports import Fold
from .recovery import Recovered, checkpoint_name, recover, verify


class Opened(msgspec.Struct, frozen=True):
    """A journal that is ours: whoever has it closes `directory` and releases `lease`."""

    directory: Directory
    lease: Lease
    recovered: Recovered


def open_journal(
    folder: Path,
    session_id: str,
    holder: Holder,
    *,
    files: Files,
    make_folds: Callable[[], dict[str, Fold]],
) -> Opened:
    """
    Lock and fold the journal of a session. Nothing is held after an error.

    Raises:
        SessionNotFound: there is none in `folder`.
        SessionLeased: another process has it.
        StoreCorrupt, SchemaTooNew, OSError: as `recover`.
    """
    name = f"{session_id}.jsonl"
    with contextlib.ExitStack() as undo:
        directory = Directory.open(folder)
        undo.callback(directory.close)
        try:
            lease = Lease.take(directory, name, holder)
        except FileNotFoundError:
            raise SessionNotFound(session_id=session_id) from None
        undo.callback(lease.release)
        recovered = recover(directory, name, files=files, make_folds=make_folds)
        undo.pop_all()
    return Opened(directory, lease, recovered)


def verify_opened(
    folder: Path, session_id: str, place: Place, known: list[r.DamageFound]
) -> list[r.DamageFound] | None:
    """Read what a checkpoint stood for, as `verify`; one that does not fit is thrown away."""
    name = f"{session_id}.jsonl"
    with Directory.open(folder) as directory:
        damage = verify(directory, name, place, known)
        if damage is None:
            directory.remove(checkpoint_name(name))
        return damage


def erase(folder: Path, session_id: str, artifacts: Path) -> None:
    """Delete what an ephemeral session leaves."""
    with Directory.open(folder) as directory:
        for ending in ("jsonl", "checkpoint", "corrupt", "owner"):
            directory.remove(f"{session_id}.{ending}")
    shutil.rmtree(artifacts, ignore_errors=True)
