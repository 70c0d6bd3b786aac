"""Reads a host's stream as the strictest client would, and finds its way after stray bytes."""

import re
from collections.abc import Iterator

from ...limits import CLIENT_HEADER_BYTES

_START = b"Content-Length: "
_HEADER = re.compile(rb"(?:Content-Length: (\d+)\r\n|Content-Type: [^\r\n]*\r\n){1,2}\r\n")
_SHOWN_BYTES = 80


class Stray(bytes):
    """Bytes between frames: something wrote to the protocol's stream that is no message."""


class StrictReader:
    """
    Bytes in, bodies out, in order; everything that is not a frame comes out as `Stray`.

    A header is `Content-Length: N` with an optional `Content-Type`, in this spelling, ended by CR
    LF twice (LSP 3.17, Base Protocol): what a client may rely on, not what it could forgive.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: bytes) -> Iterator[bytes | Stray]:
        """Add bytes and give what is whole."""
        self._buffer += data
        while self._buffer:
            found = _HEADER.match(self._buffer)
            if found is None:
                stray = self._stray()
                if not stray:
                    return
                yield stray
                continue
            length = _length(found.group())
            if length is None:
                yield self._cut(len(found.group()))
                continue
            end = found.end() + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[found.end() : end])
            del self._buffer[:end]
            yield body

    def rest(self) -> bytes:
        """Give the bytes of a frame that never became whole."""
        return bytes(self._buffer)

    def _stray(self) -> Stray:
        """Cut off what cannot become a header; nothing when more bytes could make it one."""
        head = bytes(self._buffer[:CLIENT_HEADER_BYTES])
        if head[:1] == b"C" and b"\r\n\r\n" not in head and len(head) < CLIENT_HEADER_BYTES:
            return Stray()
        at = self._buffer.find(_START, 1)
        if at < 0:
            at = self._buffer.rfind(b"C", max(1, len(self._buffer) - len(_START)))
        return self._cut(at if at > 0 else len(self._buffer))

    def _cut(self, end: int) -> Stray:
        stray = Stray(self._buffer[: min(end, _SHOWN_BYTES)])
        del self._buffer[:end]
        return stray


def _length(header: bytes) -> int | None:
    lengths = re.findall(rb"Content-Length: (\d+)", header)
    return int(lengths[0]) if len(lengths) == 1 and len(lengths[0]) <= 18 else None
