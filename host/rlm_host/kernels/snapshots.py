"""
A session's snapshot on disk: which file counts, and whether this host wrote it.

A pickle is code. The host signs a payload after the runtime's `done` and checks the signature
before it asks a runtime to load it; the key lies outside the session's folder. Signed is where code
lives: header, pickle stream and table; raw buffers carry checksums of their own, and the manifest
file is a copy of what the table holds. A payload without a good signature is refused and kept, and
nothing is written over it until the user drops it.

Rule 1: the runtime writes a *next* pair; the host signs it, then renames it into place. A kill at
any point leaves the old payload or the new one, signed. Rule 2: while both lie there, the signature
file knows both. Rule 3: a payload that is replaced is kept under its id, the beginning of its
signature, as long as there is room: a session is forked at an earlier turn with the names it had.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import shutil
from pathlib import Path

import msgspec

from rlm_protocol.errors import SnapshotFailed, SnapshotUntrusted
from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.limits import SNAPSHOT_BYTES
from rlm_protocol.repl import SnapshotInfo
from rlm_protocol.snapshot import HEADER_BYTES, layout

from .. import paths

PAYLOAD, MANIFEST, SIGNATURES = "kernel-state.dill", "kernel-state.json", "kernel-state.sig"
NEXT_PAYLOAD, NEXT_MANIFEST = "kernel-state.next.dill", "kernel-state.next.json"
KEY, KEY_BYTES = "snapshot.key", 32
KEPT, KEPT_BYTES = 8, SNAPSHOT_BYTES
"""So many earlier payloads of a session are kept for forks, of so many bytes together."""
_KEPT_NAME = re.compile(r"kernel-state\.([0-9a-f]{32})\.dill")
_READ_BYTES = 1024 * 1024
log = logging.getLogger(__name__)


class _Signatures(msgspec.Struct, frozen=True, kw_only=True):
    """MACs of the payloads that may lie there: the current one and, for a moment, the next."""

    format: int = 1
    macs: tuple[str, ...] = ()


class SnapshotStore:
    """
    The snapshot of one session. All methods block (files, hashes): call them in a thread.

    All methods raise OSError.
    """

    def __init__(self, home: Path, session_dir: Path) -> None:
        self._home = home
        self._dir = session_dir

    def next_pair(self) -> tuple[Path, Path]:
        """Make room for a snapshot. Gives payload and manifest path for the runtime."""
        with self._open() as directory:
            directory.remove(NEXT_PAYLOAD)
            directory.remove(NEXT_MANIFEST)
        return self._dir / NEXT_PAYLOAD, self._dir / NEXT_MANIFEST

    def commit(self) -> str:
        """
        Sign the payload that the runtime has just written, and put it in place of the last.

        Returns:
            Its id, by which `adopt` finds it while it is kept.
        """
        with self._open() as directory:
            mac, known = self._mac(directory, NEXT_PAYLOAD), _signatures(directory).macs
            _write(directory, *known, mac)
            self._keep(directory, known)
            _roll_forward(directory)
            _write(directory, mac)
            _forget_oldest(directory)
        return _id(mac)

    def adopt(self, source: "SnapshotStore", snapshot_id: str) -> bool:
        """Take another session's snapshot as this one's. False: it is not kept there any more."""
        with source._open() as directory, self._open() as own:
            for name in (PAYLOAD, _kept(snapshot_id)):
                if directory.exists(name) and _id(source._mac(directory, name)) == snapshot_id:
                    own.remove(NEXT_PAYLOAD)
                    own.remove(NEXT_MANIFEST)
                    _copy(directory, name, own, NEXT_PAYLOAD)
                    break
            else:
                return False
        return self.commit() == snapshot_id

    def kept(self) -> tuple[SnapshotInfo, ...]:
        """Give the current snapshot and the earlier ones that are kept, the newest first."""
        with self._open() as directory:
            names = {_KEPT_NAME.fullmatch(name): name for name in directory.names()}
            found = [_info(directory, name, at[1]) for at, name in names.items() if at]
            if directory.exists(PAYLOAD):
                current = _info(directory, PAYLOAD, _id(self._mac(directory, PAYLOAD)))
                found = [one for one in found if one.id != current.id]
                found.append(msgspec.structs.replace(current, current=True))
        return tuple(sorted(found, key=lambda one: (one.current, one.taken_at_ms), reverse=True))

    def check(self) -> Path | None:
        """
        Give the payload to restore; None when the session has no snapshot.

        Raises:
            SnapshotUntrusted: there is one, and this host has not written it as it is now.
        """
        with self._open() as directory:
            known = _signatures(directory).macs
            if directory.exists(NEXT_PAYLOAD):
                if self._is_signed(directory, known, NEXT_PAYLOAD):
                    _roll_forward(directory)
            elif directory.exists(NEXT_MANIFEST) and not directory.exists(MANIFEST):
                directory.rename(NEXT_MANIFEST, MANIFEST)
            if not directory.exists(PAYLOAD):
                return None
            if not self._is_signed(directory, known, PAYLOAD):
                raise SnapshotUntrusted(path=str(self._dir / PAYLOAD))
        return self._dir / PAYLOAD

    def drop(self) -> None:
        """Delete the snapshot and the earlier ones, whoever wrote them."""
        with self._open() as directory:
            kept = filter(_KEPT_NAME.fullmatch, directory.names())
            for name in (NEXT_PAYLOAD, NEXT_MANIFEST, SIGNATURES, MANIFEST, PAYLOAD, *kept):
                directory.remove(name)

    def _keep(self, directory: paths.Directory, known: tuple[str, ...]) -> None:
        """Keep the payload that is about to be replaced, where the file system can link files."""
        if directory.exists(PAYLOAD):
            mac = known[0] if len(known) == 1 else self._mac(directory, PAYLOAD)
            try:
                directory.link(PAYLOAD, _kept(_id(mac)))
            except OSError as why:
                log.debug("an earlier snapshot is not kept: %s", why)

    def _open(self) -> paths.Directory:
        return paths.Directory.open(self._dir)

    def _is_signed(self, directory: paths.Directory, known: tuple[str, ...], payload: str) -> bool:
        mac = self._mac(directory, payload)
        return any(hmac.compare_digest(mac, good) for good in known)

    def _mac(self, directory: paths.Directory, payload: str) -> str:
        mac = hmac.new(_key(self._home), digestmod=hashlib.sha256)
        with directory.opened(payload, os.O_RDONLY) as fd:
            for span in _code_of(fd):
                _feed(mac, fd, span)
        return mac.hexdigest()


def _code_of(fd: int) -> tuple[slice, ...]:
    size_bytes = os.fstat(fd).st_size
    try:
        return layout(os.pread(fd, HEADER_BYTES, 0), size_bytes).signed_spans
    except SnapshotFailed:
        return (slice(0, size_bytes),)  # an older format: all of it may be code


def _feed(mac: hmac.HMAC, fd: int, span: slice) -> None:
    at = span.start
    while at < span.stop and (block := os.pread(fd, min(_READ_BYTES, span.stop - at), at)):
        mac.update(block)
        at += len(block)


def _id(mac: str) -> str:
    return mac[:32]


def _info(directory: paths.Directory, name: str, snapshot_id: str) -> SnapshotInfo:
    with directory.opened(name, os.O_RDONLY) as fd:
        about = os.fstat(fd)
    return SnapshotInfo(
        id=snapshot_id, taken_at_ms=about.st_mtime_ns // 1_000_000, size_bytes=about.st_size
    )


def _kept(snapshot_id: str) -> str:
    return f"kernel-state.{snapshot_id}.dill"


def _copy(source: paths.Directory, name: str, target: paths.Directory, new: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with (
        open(source.open_file(name, os.O_RDONLY), "rb") as old,
        open(target.open_file(new, flags), "wb") as file,
    ):
        shutil.copyfileobj(old, file, _READ_BYTES)
        about = os.fstat(old.fileno())
        os.utime(file.fileno(), ns=(about.st_atime_ns, about.st_mtime_ns))
        file.flush()
        os.fsync(file.fileno())


def _roll_forward(directory: paths.Directory) -> None:
    # In this order a manifest never lies beside a payload that it does not describe.
    directory.remove(MANIFEST)
    directory.rename(NEXT_PAYLOAD, PAYLOAD)
    if directory.exists(NEXT_MANIFEST):
        directory.rename(NEXT_MANIFEST, MANIFEST)


def _forget_oldest(directory: paths.Directory) -> None:
    """Delete kept payloads beyond the limits, the oldest first."""
    kept = []
    for name in filter(_KEPT_NAME.fullmatch, directory.names()):
        with directory.opened(name, os.O_RDONLY) as fd:
            found = os.fstat(fd)
        kept.append((found.st_mtime_ns, found.st_size, name))
    room = KEPT_BYTES
    for number, (_, size_bytes, name) in enumerate(sorted(kept, reverse=True)):
        room -= size_bytes
        if number >= KEPT or room < 0:
            directory.remove(name)


def _signatures(directory: paths.Directory) -> _Signatures:
    try:
        return msgspec.json.decode(directory.read(SIGNATURES), type=_Signatures)
    except FileNotFoundError:
        return _Signatures()
    except UNDECODABLE:
        log.warning("%s is damaged; the snapshot beside it is not trusted", SIGNATURES)
        return _Signatures()


def _write(directory: paths.Directory, *macs: str) -> None:
    directory.write(SIGNATURES, msgspec.json.encode(_Signatures(macs=macs)))


def _key(home: Path) -> bytes:
    with paths.Directory.open(paths.keys(home)) as directory:
        if not directory.exists(KEY):
            try:
                directory.create(KEY, secrets.token_bytes(KEY_BYTES))
            except FileExistsError:
                log.debug("another host has just made the key")
        return directory.read(KEY)
