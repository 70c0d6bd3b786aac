"""
The file that a snapshot is: header, pickle stream, aligned raw buffers, table. Sans-IO.

The runtime writes and reads it; the host reads enough of it to sign and to show it. What a host
must sign is where code lives: header, stream and table (`Layout.signed_spans`). Every part is
checksummed: buffers by a CRC each in the table, the rest by one CRC at the end of the table, so a
flipped bit is found before anything is unpickled. The table holds the manifest too, so that a
manifest file that is missing can be written again: a snapshot is committed by taking the old
manifest away, replacing the payload, placing the new manifest.
"""

import zlib

import msgspec

from .errors import SnapshotFailed
from .framing import UNDECODABLE, decode_error
from .kernel import SkippedName

MAGIC = b"rlm-snapshot-2\r\n"
HEADER_BYTES = 32
ALIGN_BYTES = 4096
"""Buffers start on a page, so that a restore can map them instead of reading them."""
_CHECK_BYTES = 9
"""A line feed and the CRC of header, stream and table, in hexadecimal."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    What the manifest file holds; `version` 1 is what readers of protocols 1 and 3 look for.

    `bytes` is the payload's size; in the payload's own copy, which is a part of it, that of the
    values.
    """

    version: int = 1
    format: int = 2
    saved_names: tuple[str, ...]
    skipped: tuple[SkippedName, ...] = ()
    pruned: tuple[str, ...] = ()
    bytes: int
    python_version: str
    timestamp: str
    sha256: str = ""


class Buffer(msgspec.Struct, frozen=True):
    """One raw buffer: where it starts, its size, its CRC-32."""

    at: int
    size_bytes: int
    crc32: int


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What the stream holds: names in order, where each one's pickle ends, the buffers."""

    names: tuple[str, ...]
    ends: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    manifest: Manifest


class Layout(msgspec.Struct, frozen=True):
    """Where the parts of one file lie."""

    stream_bytes: int
    table_at: int
    file_bytes: int

    @property
    def stream(self) -> slice:
        """The pickle stream."""
        return slice(HEADER_BYTES, HEADER_BYTES + self.stream_bytes)

    @property
    def table(self) -> slice:
        """The table, at the end of the file."""
        return slice(self.table_at, self.file_bytes)

    @property
    def signed_spans(self) -> tuple[slice, slice]:
        """What a signature and the manifest's sha256 cover, in this order."""
        return slice(0, self.stream.stop), self.table


def header(*, stream_bytes: int, table_at: int) -> bytes:
    """Give the first bytes of a file."""
    return MAGIC + stream_bytes.to_bytes(8, "little") + table_at.to_bytes(8, "little")


def layout(head: bytes, file_bytes: int) -> Layout:
    """
    Read a header.

    Raises:
        SnapshotFailed: this is no snapshot of this format, or it was cut.
    """
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
        raise SnapshotFailed("The file is no snapshot.")
    stream_bytes = int.from_bytes(head[16:24], "little")
    table_at = int.from_bytes(head[24:32], "little")
    if not HEADER_BYTES + stream_bytes <= table_at < file_bytes:
        raise SnapshotFailed("The snapshot was cut or damaged.", file_bytes=file_bytes)
    return Layout(stream_bytes, table_at, file_bytes)


def encode_table(table: Table, *parts: bytes | memoryview) -> bytes:
    """Give the bytes of a table that closes a file; `parts` are its header and its stream."""
    data = _encode(table)
    return data + _check(data, *parts)


def read(file: memoryview) -> tuple[Layout, Table]:
    """
    Give the layout and the table of a whole file.

    Raises:
        SnapshotFailed: anything outside the raw buffers is not what was written.
    """
    where = layout(bytes(file[:HEADER_BYTES]), len(file))
    data = bytes(file[where.table])
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if check != _check(body, file[: where.stream.stop]):
        raise SnapshotFailed("The snapshot was cut or damaged.", file_bytes=len(file))
    try:
        table = _decode(body)
    except UNDECODABLE as why:
        raise SnapshotFailed("The snapshot's table is damaged.", reason=decode_error(why)) from None
    ends = (0, *table.ends)
    if (
        len(table.names) != len(table.ends)
        or any(a > b for a, b in zip(ends, table.ends, strict=False))
        or ends[-1] > where.stream_bytes
        or any(
            b.at < where.stream.stop or b.size_bytes < 0 or b.at + b.size_bytes > where.table_at
            for b in table.buffers
        )
    ):
        raise SnapshotFailed("The snapshot's table does not fit its file.")
    return where, table


def _check(table: bytes, *parts: bytes | memoryview) -> bytes:
    crc = 0
    for part in (*parts, table):
        crc = zlib.crc32(part, crc)
    return b"\n%08x" % crc


_decode = msgspec.json.Decoder(Table).decode
_encode = msgspec.json.Encoder().encode


def encode_manifest(manifest: Manifest) -> bytes:
    """Give the bytes of a manifest file."""
    return _encode(manifest)


decode_manifest = msgspec.json.Decoder(Manifest).decode
