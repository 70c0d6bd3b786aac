"""
A session's snapshot on disk: which pair of files counts, and whether this host wrote it.

A pickle is code. The host signs a pair after the runtime's `done` and checks the signature before
it asks a runtime to load it; the key lies outside the session's folder. A pair without a good
signature is refused and kept, and nothing is written over it until the user drops it.

Rule 1: the runtime writes a *next* pair; the host signs it, then renames it into place. A kill at
any point leaves the old pair or the new one, signed. Rule 2: the signature file always knows both.
"""

import hashlib
import hmac
import logging
import os
import secrets
from pathlib import Path

import msgspec

from rlm_protocol.errors import SnapshotUntrusted
from rlm_protocol.framing import UNDECODABLE

from .. import paths

PAYLOAD, MANIFEST, SIGNATURES = "kernel-state.dill", "kernel-state.json", "kernel-state.sig"
NEXT_PAYLOAD, NEXT_MANIFEST = "kernel-state.next.dill", "kernel-state.next.json"
KEY, KEY_BYTES = "snapshot.key", 32
_READ_BYTES = 1024 * 1024
log = logging.getLogger(__name__)


class _Signatures(msgspec.Struct, frozen=True, kw_only=True):
    """MACs of the pairs that may lie there: the current one and, for a moment, the next."""

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
        """Sign the pair that the runtime has just written, and put it in place of the last one."""
        with self._open() as directory:
            mac = self._mac(directory, NEXT_PAYLOAD, NEXT_MANIFEST)
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
            if self._is_signed(directory, known, NEXT_PAYLOAD, NEXT_MANIFEST) or (
                # A kill between the two renames: the payload is new, its manifest not yet.
                self._is_signed(directory, known, PAYLOAD, NEXT_MANIFEST)
            ):
                _roll_forward(directory)
            if not directory.exists(PAYLOAD):
                return None
            if not self._is_signed(directory, known, PAYLOAD, MANIFEST):
                raise SnapshotUntrusted(path=str(self._dir / PAYLOAD))
        return self._dir / PAYLOAD

    def drop(self) -> None:
        """Delete the snapshot, whoever wrote it."""
        with self._open() as directory:
            for name in (NEXT_PAYLOAD, NEXT_MANIFEST, SIGNATURES, MANIFEST, PAYLOAD):
                directory.remove(name)

    def _open(self) -> paths.Directory:
        return paths.Directory.open(self._dir)

    def _is_signed(
        self, directory: paths.Directory, known: tuple[str, ...], payload: str, manifest: str
    ) -> bool:
        if not known or not directory.exists(payload) or not directory.exists(manifest):
            return False
        mac = self._mac(directory, payload, manifest)
        return any(hmac.compare_digest(mac, good) for good in known)

    def _mac(self, directory: paths.Directory, payload: str, manifest: str) -> str:
        mac = hmac.new(_key(self._home), digestmod=hashlib.sha256)
        for name in (payload, manifest):
            mac.update(_digest(directory, name))
        return mac.hexdigest()


def _digest(directory: paths.Directory, name: str) -> bytes:
    total = hashlib.sha256()
    with directory.opened(name, os.O_RDONLY) as fd:
        while block := os.read(fd, _READ_BYTES):
            total.update(block)
    return total.digest()


def _roll_forward(directory: paths.Directory) -> None:
    if directory.exists(NEXT_PAYLOAD):
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
