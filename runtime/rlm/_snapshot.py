"""
Snapshot and restore: files that are whole or not there, a pair that always fits together.

An interrupt can end the pickling and unpickling (they run user code); files and the namespace are
changed in parts that no interrupt enters, and a snapshot that was committed is never reported as
failed.
"""

import errno
import hashlib
import mmap
import os
import platform
import secrets
import stat
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from rlm_protocol import kernel as k
from rlm_protocol import snapshot as file_format
from rlm_protocol.errors import SnapshotFailed
from rlm_protocol.limits import SNAPSHOT_BYTES, SNAPSHOT_NAME_BYTES

from . import _cells
from ._names import is_users, own_imports

STALE_TEMPORARY_S = 600
_NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC


def save(request: k.Snapshot, namespace: dict[str, Any]) -> k.Done:
    """Save the namespace; `status` is error, with a reason and nothing changed, when it cannot."""
    try:
        caps = _caps(request)
        target, manifest = _Target(request.path), _Target(request.manifest_path)
        if os.path.realpath(request.path) == os.path.realpath(request.manifest_path):
            raise SnapshotFailed("Payload and manifest must be two files.")
        with own_imports():
            from . import _pickling, _verify
        saved = _cells.call(_pickling.dump, namespace, {}, _pickling.Caps(*caps))
        saved, verified = _verify.verified(saved, namespace, _pickling.Caps(*caps))
        skipped = tuple(k.SkippedName(name, why) for name, why in sorted(saved.skipped.items()))
        pruned = sorted(saved.oversized) if request.prune_oversized else []
        stream = saved.stream
        about = file_format.Manifest(
            saved_names=tuple(sorted(stream.names)),
            skipped=skipped,
            pruned=tuple(pruned),
            bytes=len(stream.data) + sum(b.nbytes for b in stream.buffers),
            python_version=platform.python_version(),
            timestamp=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        size_bytes = _commit(stream, about, target, manifest)
    except (SnapshotFailed, OSError) as why:
        return k.Done(id=request.id, status="error", reason=_reason(why))
    for name in pruned:
        namespace.pop(name, None)
    return k.Done(
        id=request.id,
        status="ok",
        saved=sorted(stream.names),
        skipped=list(skipped),
        pruned=pruned,
        unverified=k.UNSET if verified else True,
        bytes=size_bytes,
    )


def _caps(request: k.Snapshot) -> tuple[int, int]:
    name = request.max_variable_bytes
    total = request.max_bytes
    caps = (
        SNAPSHOT_NAME_BYTES if isinstance(name, k.Unset) else name,
        SNAPSHOT_BYTES if isinstance(total, k.Unset) else total,
    )
    if min(caps) < 0 or (request.prune_oversized and caps[0] == 0):
        raise SnapshotFailed("The caps make no sense: one is negative, or prunes everything.")
    return caps


def _reason(why: Exception) -> str:
    if isinstance(why, OSError):
        return f"{why.strerror or why} ({os.path.basename(str(why.filename))})"
    return str(why)


class _Target:
    """One of the two files: written under another name in the same directory, then put in place."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.directory = os.path.dirname(path) or "."
        self.temporary = os.path.join(
            self.directory, f".{os.path.basename(path)}.{secrets.token_hex(8)}.tmp"
        )
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            raise SnapshotFailed("The snapshot's path is a link, or no file.", path=path)

    def create(self) -> int:
        """Create the temporary file, readable by its owner only."""
        return os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o600)

    def remove_temporary(self) -> None:
        """Remove the temporary file, and what killed kernels have left of others."""
        prefix = f".{os.path.basename(self.path)}."
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if not name.startswith(prefix) or not name.endswith(".tmp"):
                continue
            try:
                if path == self.temporary or _age_s(path) > STALE_TEMPORARY_S:
                    os.unlink(path)
            except FileNotFoundError:
                continue


def _sync_directory(directory: str) -> None:
    """Make what was renamed or removed in the directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _age_s(path: str) -> float:
    return time.time() - os.lstat(path).st_mtime


def _commit(stream: Any, about: file_format.Manifest, target: _Target, manifest: _Target) -> int:
    """
    Write both files and put them in place. Returns the payload's size in bytes.

    A kill at any point leaves the old pair or the new one: between the first and the last step the
    manifest is missing, and a payload carries its own. The three steps are made durable together;
    where a power loss reorders them, the manifest's hash tells that it is of another payload.
    Raises OSError with nothing changed.
    """
    try:
        payload_fd = target.create()
        try:
            digest, size_bytes = _write_payload(payload_fd, stream, about)
        finally:
            os.close(payload_fd)
        manifest_fd = manifest.create()
        try:
            final = msgspec.structs.replace(about, sha256=digest, bytes=size_bytes)
            _write_all(manifest_fd, [file_format.encode_manifest(final)])
            os.fsync(manifest_fd)
        finally:
            os.close(manifest_fd)
        if os.path.lexists(manifest.path):
            os.unlink(manifest.path)
        os.replace(target.temporary, target.path)
        os.replace(manifest.temporary, manifest.path)
        for directory in {target.directory, manifest.directory}:
            _sync_directory(directory)
        return size_bytes
    finally:
        for one in (target, manifest):
            if os.path.isdir(one.directory):
                one.remove_temporary()


def _write_payload(fd: int, stream: Any, about: file_format.Manifest) -> tuple[str, int]:
    at = file_format.HEADER_BYTES + len(stream.data)
    places = []
    for buffer in stream.buffers:
        at += -at % file_format.ALIGN_BYTES
        places.append(at)
        at += buffer.nbytes
    head = file_format.header(stream_bytes=len(stream.data), table_at=at)
    with _summing(stream.buffers) as sums:
        _write_all(fd, [head, stream.data])
        for place, buffer in zip(places, stream.buffers, strict=True):
            os.lseek(fd, place, os.SEEK_SET)
            _write_all(fd, [buffer])
    buffers = tuple(
        file_format.Buffer(place, buffer.nbytes, crc)
        for place, buffer, crc in zip(places, stream.buffers, sums, strict=True)
    )
    table = file_format.encode_table(
        file_format.Table(
            names=tuple(stream.names), ends=tuple(stream.ends), buffers=buffers, manifest=about
        ),
        head,
        stream.data,
    )
    os.lseek(fd, at, os.SEEK_SET)
    _write_all(fd, [table])
    os.fsync(fd)
    digest = hashlib.sha256(head)
    digest.update(stream.data)
    digest.update(table)
    return digest.hexdigest(), at + len(table)


@contextmanager
def _summing(buffers: list[memoryview]) -> Iterator[list[int]]:
    """Give the checksums of the buffers, whole when the block ends: they are made beside it."""
    sums: list[int] = []
    thread = threading.Thread(target=lambda: sums.extend(map(zlib.crc32, buffers)))
    if buffers:
        thread.start()  # zlib lets go of the GIL
    try:
        yield sums
    finally:
        if buffers:
            thread.join()


def _write_all(fd: int, parts: list[Any]) -> None:
    for part in parts:
        view = memoryview(part).cast("B")
        while view:
            view = view[os.write(fd, view) :]


# --- restore --------------------------------------------------------------------------------------


def restore(request: k.Restore, namespace: dict[str, Any]) -> k.Done:
    """
    Load a snapshot into the namespace, all names in one step.

    A missing file is `ok` with a reason; one that cannot be read is `error` with a reason, and the
    namespace is as it was.
    """
    try:
        fd = os.open(request.path, os.O_RDONLY | _NOFOLLOW)
    except FileNotFoundError:
        return k.Done(
            id=request.id, status="ok", restored=[], failed=[], reason="snapshot not found"
        )
    except OSError as why:
        links = why.errno == errno.ELOOP
        reason = "The snapshot's path is a link." if links else _reason(why)
        return k.Done(id=request.id, status="error", reason=reason)
    try:
        with own_imports():
            # cloudpickle, before anything is loaded
            from . import _pickling, _unpickling  # noqa: F401
        values, failed = _read(fd, namespace)
    except (SnapshotFailed, OSError) as why:
        return k.Done(id=request.id, status="error", reason=_reason(why))
    finally:
        os.close(fd)
    values = {name: value for name, value in values.items() if is_users(name)}
    namespace.update(values)  # one step: no cell, task or interrupt sees half of it
    return k.Done(id=request.id, status="ok", restored=sorted(values), failed=failed)


def _read(fd: int, namespace: dict[str, Any]) -> tuple[dict[str, Any], list[k.SkippedName]]:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise SnapshotFailed("The snapshot's path is no file.")
    if info.st_size == 0:
        raise SnapshotFailed("The snapshot is empty.")
    view = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    from . import _unpickling

    if bytes(view[:1]) == b"\x80":
        with own_imports():
            from . import _legacy

        old: tuple[dict[str, Any], list[k.SkippedName]] = _cells.call(_legacy.load, view)
        return old
    where, table = file_format.read(view)
    buffers = [_undamaged(view, buffer) for buffer in table.buffers]
    names, ends = list(table.names), list(table.ends)
    before = {name: namespace[name] for name in names if name in namespace}
    values: dict[str, Any]
    failed: list[k.SkippedName]
    try:
        values, failed = _cells.call(
            _unpickling.load, view[where.stream], buffers, names, ends, namespace, []
        )
    finally:  # what was bound while it was loaded
        for name in filter(is_users, names):
            namespace.pop(name, None)
        namespace.update(before)
    return values, failed


def _undamaged(view: memoryview, buffer: file_format.Buffer) -> memoryview | None:
    data = view[buffer.at : buffer.at + buffer.size_bytes]
    return data if zlib.crc32(data) == buffer.crc32 else None
