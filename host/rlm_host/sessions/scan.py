"""
Reading a journal's bytes: valid records with their places, and the spans that are none.

A damaged span never hides what comes after it: a record glued to a stub, a NUL run or a BOM is cut
out of its line by its own beginning and checksum. One line is in memory at a time.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from rlm_protocol import records as r
from rlm_protocol.limits import MIB

LINE_BYTES = 64 * MIB
"""No record is longer. A longer run without a newline is damage, read piece by piece."""
_PIECE_BYTES = MIB
_SALVAGE_TRIES = 1000
"""Beginnings that are tried in one damaged line: each may cost a checksum over all of it."""
_BEGIN = re.compile(rb'\{"seq":')
_END = re.compile(rb',"crc":"[0-9a-f]{8}"\}')


class Found(msgspec.Struct, frozen=True):
    """A valid record at `offset` with its checksum; the next one begins at `end`."""

    entry: r.Entry
    offset: int
    end: int
    crc: bytes


class Span(msgspec.Struct, frozen=True):
    """Bytes that are no record. `torn`: a last line without its newline, never acknowledged."""

    offset: int
    size_bytes: int
    reason: str
    torn: bool = False


def scan(file: BinaryIO, offset: int, after_seq: int) -> Iterator[Found | Span]:
    """
    Yield records and damaged spans in order, from `offset` to the end of the file.

    Records whose `seq` does not grow are damage too. A record whose newline alone is missing at the
    end of the file is valid.
    """
    file.seek(offset)
    seq = after_seq
    while line := file.readline(LINE_BYTES + 1):
        whole = line.endswith(b"\n")
        if len(line) > LINE_BYTES and not whole:
            size = len(line) + _skip_line(file)
            yield Span(offset, size, "a line is longer than any record")
            offset += size
            continue
        body = line[:-1] if whole else line
        for at, end, entry in _records_in(body):
            if isinstance(entry, r.Entry) and entry.seq <= seq:
                entry = f"record {entry.seq} stands behind record {seq}"
            last = end == len(body)
            if isinstance(entry, r.Entry):
                seq = entry.seq
                yield Found(
                    entry, offset + at, offset + end + (last and whole), r.crc_of(body[:end])
                )
            else:
                torn = last and not whole and at == 0
                yield Span(offset + at, end - at + (last and whole), entry, torn=torn)
        offset += len(line)


def _records_in(body: bytes) -> Iterator[tuple[int, int, r.Entry | str]]:
    """Cut a line into records and the rest. Nearly always it is one record and nothing else."""
    entry = r.decode_line(body)
    if isinstance(entry, r.Entry):
        yield 0, len(body), entry
        return
    done, begin = 0, _BEGIN.search(body)
    for _ in range(_SALVAGE_TRIES):
        end = begin and _END.search(body, begin.start())
        if begin is None or end is None:
            break
        found = r.decode_line(body[begin.start() : end.end()])
        if isinstance(found, r.Entry):
            if begin.start() > done:
                yield done, begin.start(), entry.reason
            yield begin.start(), end.end(), found
            done = end.end()
        begin = _BEGIN.search(body, max(done, begin.start() + 1))
    if done < len(body) or not body:
        yield done, len(body), entry.reason


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of the line; give how many bytes that was."""
    size = 0
    while piece := file.readline(_PIECE_BYTES):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size
