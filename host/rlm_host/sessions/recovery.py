"""
Opening a journal: fold it, cut a torn tail, set damage aside, and say what was found.

Start-up is recovery: there is no other way in. Everything here blocks; run it in a thread.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import msgspec

from rlm_protocol import records as r
from rlm_protocol.errors import SchemaTooNew, StoreCorrupt
from rlm_protocol.framing import UNDECODABLE
from rlm_protocol.limits import MIB

from ..paths import Directory
from .files import Files
from .journal import Place, chained
from .ports import Fold
from .scan import Found, Span, scan
from .state import SessionState

log = logging.getLogger(__name__)

CHECKPOINT_SCHEMA = 2
MARK_EVERY = 1000
"""A place in the file is remembered every so many records, so that a cursor is found quickly."""
_COPY_BYTES = MIB


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The record `seq` begins at `offset`."""

    seq: int
    offset: int


class Checkpoint(msgspec.Struct, kw_only=True):
    """A fold on disk: worth nothing but time. Whatever does not fit the journal is ignored."""

    schema: int = CHECKPOINT_SCHEMA
    place: Place
    marks: list[Mark]
    state: SessionState
    folds: dict[str, Any]


class Recovered(msgspec.Struct, kw_only=True):
    """A journal as it was found, its tail mended. `damage` is new and not yet recorded."""

    state: SessionState
    folds: dict[str, Fold]
    place: Place
    marks: list[Mark]
    damage: list[r.DamageFound]
    torn_bytes: int
    from_seq: int
    """Records up to this one were taken from the checkpoint and are still to be verified."""


def stem(name: str) -> str:
    """Give a journal's name without its ending."""
    return name.removesuffix(".jsonl")


def read(
    directory: Directory, name: str, *, offset: int = 0, after_seq: int = 0
) -> Iterator[Found]:
    """Yield the valid records from `offset` on; skip damage. Raises OSError."""
    with open(directory.open_file(name, os.O_RDONLY), "rb", buffering=_COPY_BYTES) as file:
        for found in scan(file, offset, after_seq):
            if isinstance(found, Found):
                yield found


def recover(
    directory: Directory, name: str, *, files: Files, make_folds: Callable[[], dict[str, Fold]]
) -> Recovered:
    """
    Fold the journal from its checkpoint, or from its beginning, and mend its tail.

    `make_folds` gives empty folds; those that a checkpoint has spoiled are thrown away.

    Raises:
        StoreCorrupt: the header cannot be read. Nothing was changed.
        SchemaTooNew: a newer host wrote it. Nothing was changed.
        OSError: the file cannot be read, or its tail cannot be mended.
    """
    with open(directory.open_file(name, os.O_RDONLY), "rb", buffering=_COPY_BYTES) as file:
        found = _begin(directory, name, file, make_folds)
        tail = _fold(found, file, str(directory.path / name))
        unknown = _unknown(found.damage, found.state.damage)
        found.damage = [_quarantine(directory, name, file, damage) for damage in unknown]
        _mend_tail(found, tail, directory, name, file, files)
    return found


def peek(
    directory: Directory,
    name: str,
    make_folds: Callable[[], dict[str, Fold]] | None = None,
) -> tuple[SessionState, dict[str, Fold]]:
    """Fold a journal without changing it. Raises like `recover`."""
    with open(directory.open_file(name, os.O_RDONLY), "rb", buffering=_COPY_BYTES) as file:
        found = _begin(directory, name, file, make_folds)
        _fold(found, file, str(directory.path / name))
    return found.state, found.folds


def _begin(
    directory: Directory,
    name: str,
    file: BinaryIO,
    make_folds: Callable[[], dict[str, Fold]] | None,
) -> Recovered:
    """Give what the checkpoint holds, or nothing."""
    folds = make_folds() if make_folds else None
    checkpoint = _usable(directory, name, file, folds)
    if checkpoint is None:
        return Recovered(
            state=SessionState(),
            folds=make_folds() if make_folds else {},
            place=Place(gen=1, seq=0, offset=0),
            marks=[],
            damage=[],
            torn_bytes=0,
            from_seq=0,
        )
    return Recovered(
        state=checkpoint.state,
        folds=folds or {},
        place=checkpoint.place,
        marks=checkpoint.marks,
        damage=[],
        torn_bytes=0,
        from_seq=checkpoint.place.seq,
    )


def _fold(into: Recovered, file: BinaryIO, path: str) -> list[Span]:
    """Apply what follows `into.place`; give the spans behind the last valid record."""
    spans: list[Span] = []
    for found in scan(file, into.place.offset, into.place.seq):
        if isinstance(found, Span):
            spans.append(found)
            continue
        entry, before = found.entry, into.place
        if into.state.header is None:
            _check_header(entry.record, path)
        if spans or entry.seq != before.seq + 1:
            into.damage.append(_damage(spans, before.seq, found))
            spans = []
        into.state.apply(entry)
        for fold in into.folds.values():
            fold.apply(entry)
        if entry.seq % MARK_EVERY == 0:
            into.marks.append(Mark(entry.seq, found.offset))
        into.place = Place(
            gen=entry.gen,
            seq=entry.seq,
            offset=found.end,
            chain=chained(before.chain, entry, found.crc),
            last=found.offset,
        )
    if into.state.header is None:
        raise StoreCorrupt(
            f"The header of {path} cannot be read. Nothing was changed; restore the file from a "
            "backup, or move it away.",
            path=path,
        )
    return spans


def _check_header(record: r.Record | r.UnknownRecord, path: str) -> None:
    if isinstance(record, r.SessionOpened) and record.schema > r.SCHEMA:
        raise SchemaTooNew(
            f"{path} was written by a newer version (schema {record.schema}, this host reads "
            f"{r.SCHEMA}). Nothing was changed; use the newer version.",
            path=path,
            schema=record.schema,
        )
    if not isinstance(record, r.SessionOpened):
        raise StoreCorrupt(
            f"The header of {path} is damaged, and there is no usable checkpoint. Nothing was "
            "changed; restore the file from a backup, or move it away.",
            path=path,
        )


def _damage(spans: list[Span], after_seq: int, before: Found | None) -> r.DamageFound:
    first = spans[0].offset if spans else before.offset if before else 0
    return r.DamageFound(
        offset=first,
        size_bytes=spans[-1].offset + spans[-1].size_bytes - first if spans else 0,
        sha256="",
        after_seq=after_seq,
        before_seq=before.entry.seq if before else None,
        file="",
        reason=spans[0].reason if spans else "records are missing",
    )


def _unknown(damage: list[r.DamageFound], known: list[r.DamageFound]) -> list[r.DamageFound]:
    recorded = {(k.offset, k.after_seq, k.before_seq) for k in known}
    return [d for d in damage if (d.offset, d.after_seq, d.before_seq) not in recorded]


def _quarantine(
    directory: Directory, name: str, file: BinaryIO, damage: r.DamageFound
) -> r.DamageFound:
    """Copy the span into the `.corrupt` file beside the journal, durably."""
    target = f"{stem(name)}.corrupt"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    digest, left = hashlib.sha256(), damage.size_bytes
    with open(directory.open_file(target, flags), "ab") as corrupt:
        note = {"offset": damage.offset, "size_bytes": left, "reason": damage.reason}
        corrupt.write(msgspec.json.encode(note) + b"\n")
        file.seek(damage.offset)
        while left and (piece := file.read(min(left, _COPY_BYTES))):
            corrupt.write(piece)
            digest.update(piece)
            left -= len(piece)
        corrupt.write(b"\n")
        corrupt.flush()
        os.fsync(corrupt.fileno())
    log.warning("%s: %s at byte %d", directory.path / name, damage.reason, damage.offset)
    return msgspec.structs.replace(damage, sha256=digest.hexdigest(), file=target)


def _mend_tail(
    found: Recovered,
    tail: list[Span],
    directory: Directory,
    name: str,
    file: BinaryIO,
    files: Files,
) -> None:
    size = os.fstat(file.fileno()).st_size
    keep = found.place.offset
    if tail and tail[0].torn:
        found.torn_bytes = tail[0].size_bytes
        log.warning("%s: a torn last line of %d bytes was cut", name, found.torn_bytes)
    elif tail:
        # Whole lines that cannot be read may have been acknowledged: old cursors are not true any
        # more, since the numbers of the lost records will be given again.
        damage = _damage(tail, found.place.seq, None)
        found.damage.append(_quarantine(directory, name, file, damage))
        found.place = msgspec.structs.replace(found.place, gen=found.place.gen + 1)
    unended = size == keep and not _ends_with_newline(file, keep)
    if size == keep and not unended:
        return
    fd = files.open(directory, name, os.O_WRONLY | os.O_APPEND)
    try:
        if unended:
            files.write(fd, memoryview(b"\n"))
            found.place = msgspec.structs.replace(found.place, offset=keep + 1)
        else:
            files.truncate(fd, keep)
        files.sync(fd)
    finally:
        files.close(fd)


def _ends_with_newline(file: BinaryIO, size: int) -> bool:
    file.seek(size - 1)
    return file.read(1) == b"\n"


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint_name(name: str) -> str:
    """Where a journal's checkpoint lies."""
    return f"{stem(name)}.checkpoint"


def encode_checkpoint(
    state: SessionState, folds: Mapping[str, Fold], place: Place, marks: list[Mark]
) -> bytes:
    """Give the file's bytes: a digest, then the fold."""
    body = msgspec.json.encode(
        Checkpoint(
            place=place,
            marks=marks,
            state=state,
            folds={key: fold.dump() for key, fold in folds.items()},
        )
    )
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _usable(
    directory: Directory, name: str, file: BinaryIO, folds: Mapping[str, Fold] | None
) -> Checkpoint | None:
    """Read the checkpoint if it fits this journal; load `folds` from it, where they are asked."""
    try:
        digest, _, body = directory.read(checkpoint_name(name)).partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        checkpoint = msgspec.json.decode(body, type=Checkpoint)
        if checkpoint.schema != CHECKPOINT_SCHEMA or checkpoint.state.header is None:
            return None
        if not _is_of(file, checkpoint.place):
            return None
        if folds is not None and checkpoint.folds.keys() != folds.keys():
            return None
        for key, fold in (folds or {}).items():
            fold.load(checkpoint.folds[key])
    except FileNotFoundError:
        return None
    except (OSError, *UNDECODABLE) as why:
        log.warning("the checkpoint of %s is not usable: %s", name, why)
        return None
    return checkpoint


def _is_of(file: BinaryIO, place: Place) -> bool:
    """Tell whether the record that the checkpoint ends with stands where it says."""
    file.seek(place.last)
    line = file.read(place.offset - place.last)
    found = r.decode_line(line.rstrip(b"\n"))
    return isinstance(found, r.Entry) and (found.seq, found.gen) == (place.seq, place.gen)


def verify(
    directory: Directory, name: str, place: Place, known: list[r.DamageFound]
) -> list[r.DamageFound] | None:
    """
    Read the part of a journal that a checkpoint stood for.

    Returns:
        The damage in it that is not `known`; None when it is not the part that the checkpoint was
        made from.
    """
    damage, spans = [], []
    seq, chain = 0, b""
    with open(directory.open_file(name, os.O_RDONLY), "rb", buffering=_COPY_BYTES) as file:
        for found in scan(file, 0, 0):
            if isinstance(found, Span):
                spans.append(found)
                continue
            if found.offset >= place.offset:
                break
            if spans or found.entry.seq != seq + 1:
                damage.append(_damage(spans, seq, found))
                spans = []
            seq, chain = found.entry.seq, chained(chain, found.entry, found.crc)
        if not damage and chain != place.chain:
            return None
        return [_quarantine(directory, name, file, d) for d in _unknown(damage, known)]
