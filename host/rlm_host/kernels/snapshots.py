"""
A session's snapshot on disk: which file counts, and whether this host wrote it.

A pickle is code. The host signs a payload after the runtime's `done` and checks the signature
before it asks a runtime to load it; the key lies outside the session's folder. Signed is where code
lives: header, pickle stream and table; raw buffers carry checksums of their own, and the manifest
file is a copy of what the table holds. A payload without a good signature is refused and kept, and
nothing is written over it until the user drops it.

Rule 1: the runtime writes a *next* pair; the host signs it, then renames it into place. A kill at
any point leaves the old payload or the new one, signed. Rule 2: while both lie there, the signature
file knows both.
"""

import hashlib
import hmac
import logging
import os
import secrets
from pathlib import Path

import msgspec

from rlm_protocol.errors import SnapshotFailed, SnapshotUntrusted
from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.snapshot import HEADER_BYTES, layout

from .. import paths

PAYLOAD, MANIFEST, SIGNATURES = "kernel-state.dill", "kernel-state.json", "kernel-state.sig"
NEXT_PAYLOAD, NEXT_MANIFEST = "kernel-state.next.dill", "kernel-state.next.json"
KEY, KEY_BYTES = "snapshot.key", 32
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

    def commit(self) -> None:
        """Sign the payload that the runtime has just written, and put it in place of the last."""
        with self._open() as directory:
            mac = self._mac(directory, NEXT_PAYLOAD)
            _write(directory, *_signatures(directory).macs, mac)
            _roll_forward(directory)
            _write(directory, mac)

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
        """Delete the snapshot, whoever wrote it."""
        with self._open() as directory:
            for name in (NEXT_PAYLOAD, NEXT_MANIFEST, SIGNATURES, MANIFEST, PAYLOAD):
                directory.remove(name)

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


def _roll_forward(directory: paths.Directory) -> None:
    # In this order a manifest never lies beside a payload that it does not describe.
    directory.remove(MANIFEST)
    directory.rename(NEXT_PAYLOAD, PAYLOAD)
    if directory.exists(NEXT_MANIFEST):
        directory.rename(NEXT_MANIFEST, MANIFEST)


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
