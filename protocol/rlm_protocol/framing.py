"""
Sans-IO framing: bytes in, frames out. No file, socket, clock or task in this module.

Both receivers keep three rules. Rule 1: `receive_data` never raises for content. Rule 2: the buffer
holds at most one frame's limit and the last read. Rule 3: scanning is O(n), however bytes are cut.
"""

import enum
import re

import msgspec

from .errors import MalformedFrame, RlmError, TooLarge, TruncatedFrame


class NeedData(enum.Enum):
    """Returned by `next_frame` when the buffer holds no whole frame."""

    NEED_DATA = enum.auto()


NEED_DATA = NeedData.NEED_DATA
_PLAIN_HEADER = re.compile(rb"Content-Length: (\d{1,18})\r\n\r\n")
"""The header that nearly every peer sends, read at one go. Any other is read line by line."""


class Refused(msgspec.Struct, frozen=True):
    """A frame that was thrown away; the receiver has found the next one and goes on."""

    error: RlmError


class LineReceiver:
    """
    Split a byte stream into newline-delimited frames. Splits on LF only; a trailing CR is dropped.

    A line over `max_frame_bytes` is thrown away as it arrives and reported once as `Refused`; the
    line after it is served. Used by both ends of the runtime's protocol.
    """

    def __init__(self, *, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray()
        self._searched = 0  # bytes already known to hold no newline
        self._skipping = False
        self._closed = False

    def receive_data(self, data: bytes) -> None:
        """Add bytes read from the peer; b"" means end of stream."""
        if not data:
            self._closed = True
        self._buffer += data

    def next_frame(self) -> bytes | Refused | NeedData | None:
        """
        Take the next frame out of the buffer.

        Returns:
            The frame without its line end; `Refused` for a line that was too long or for a last
            line without LF; NEED_DATA when more bytes are needed; None at end of stream.
        """
        end = self._buffer.find(b"\n", self._searched)
        if end == -1:
            return self._incomplete()
        if end > self._max and not self._skipping:
            del self._buffer[: end + 1]
            self._searched = 0
            return Refused(TooLarge(limit_bytes=self._max))
        frame = bytes(memoryview(self._buffer)[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        if self._skipping:
            self._skipping = False
            return Refused(TooLarge(limit_bytes=self._max))
        return frame[:-1] if frame.endswith(b"\r") else frame

    def _incomplete(self) -> Refused | NeedData | None:
        size = len(self._buffer)
        if size > self._max:
            self._skipping = True
        if self._skipping:
            self._buffer.clear()
        self._searched = len(self._buffer)
        if not self._closed:
            return NEED_DATA
        if self._skipping or self._buffer:
            self._skipping = False
            self._buffer.clear()
            self._searched = 0
            return Refused(TruncatedFrame(got_bytes=size))
        return None


class HeaderReceiver:
    """
    Split a byte stream into LSP base protocol frames (`Content-Length: N`, blank line, N bytes).

    Header names are read in any case, with or without CR, with any spaces (LSP 3.17, Base
    Protocol; real peers differ). A length that is missing, doubled with another value, not a plain
    number, or over the header limit cannot be resynchronised: the error is sticky. A length over
    `max_frame_bytes` is honest and can be skipped: the body is thrown away as it arrives and
    reported once as `Refused`.
    """

    def __init__(self, *, max_frame_bytes: int, max_header_bytes: int) -> None:
        self._max = max_frame_bytes
        self._max_header = max_header_bytes
        self._buffer = bytearray()
        self._scanned = 0
        self._body: int | None = None  # bytes of the body that is awaited
        self._skip = 0  # bytes of a refused body that are still to come
        self._closed = False
        self._error: RlmError | None = None

    def receive_data(self, data: bytes) -> None:
        """Add bytes read from the peer; b"" means end of stream."""
        if not data:
            self._closed = True
        self._buffer += data

    def next_frame(self) -> bytes | Refused | NeedData | None:
        """
        Take the next body out of the buffer.

        Returns:
            The body; `Refused` for a body over the limit (once, before its bytes are skipped);
            NEED_DATA when more bytes are needed; None at a clean end of stream.

        Raises:
            MalformedFrame: a header that cannot be read; every later call raises the same.
            TruncatedFrame: the stream ended inside a frame; every later call raises the same.
        """
        if self._error is not None:
            raise self._error
        buffer = self._buffer
        if self._skip:
            gone = min(self._skip, len(buffer))
            del buffer[:gone]
            self._skip -= gone
        if self._skip or not buffer:
            return self._wait()
        at = 0
        if self._body is None:
            plain = _PLAIN_HEADER.match(buffer)
            if plain is not None and (at := plain.end()) <= self._max_header:
                self._scanned = 0
                length = int(plain[1])
            elif (found := self._header()) is not None:
                at, length = 0, found
            else:
                return self._wait()
            if length > self._max:
                del buffer[:at]
                self._skip = length
                return Refused(TooLarge(limit_bytes=self._max, got_bytes=length))
            self._body = length
        end = at + self._body
        if len(buffer) < end:
            del buffer[:at]
            return self._wait()
        self._body = None
        frame = bytes(buffer[at:end])
        del buffer[:end]
        return frame

    def _header(self) -> int | None:
        """Take any header block out; give its Content-Length, or None when it is not whole yet."""
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end == -1:
                self._scanned = len(self._buffer)
                if len(self._buffer) > self._max_header:
                    self._fail(
                        MalformedFrame("The header is too long.", limit_bytes=self._max_header)
                    )
                return None
            line_start = self._buffer.rfind(b"\n", 0, end) + 1
            blank = not self._buffer[line_start:end].strip()
            if end > self._max_header:
                self._fail(MalformedFrame("The header is too long.", limit_bytes=self._max_header))
            self._scanned = end + 1
            if not blank:
                continue
            block = bytes(self._buffer[: end + 1])
            del self._buffer[: end + 1]
            self._scanned = 0
            if block.strip():
                return self._length_of(block)
            # blank lines between frames are tolerated, as netstring-like peers send them

    def _length_of(self, block: bytes) -> int:
        lengths = set()
        for line in block.splitlines():
            name, colon, value = line.partition(b":")
            if colon and name.strip().lower() == b"content-length":
                lengths.add(value.strip())
        if len(lengths) != 1:
            self._fail(MalformedFrame("The header needs exactly one Content-Length."))
        digits = lengths.pop()
        if not digits.isdigit() or len(digits) > 18:
            self._fail(MalformedFrame("Content-Length is not a plain number of bytes."))
        return int(digits)

    def _wait(self) -> NeedData | None:
        if not self._closed:
            return NEED_DATA
        if self._buffer.strip() or self._body is not None or self._skip:
            self._fail(TruncatedFrame(got_bytes=len(self._buffer)))
        return None

    def _fail(self, error: RlmError) -> None:
        self._error = error
        self._buffer.clear()
        raise error


def encode_line(payload: bytes) -> bytes:
    """Frame one message as a line. Raises MalformedFrame if `payload` holds a newline."""
    if b"\n" in payload:
        raise MalformedFrame("A newline inside a line frame.")
    return payload + b"\n"


def encode_headers(payload: bytes) -> bytes:
    """Frame one message with a Content-Length header (LSP 3.17, Base Protocol)."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(payload), payload)


def decode_error(why: Exception) -> str:
    """Give a short reason for bytes that could not be decoded, without echoing them."""
    text = str(why) or type(why).__name__
    return text[:200]


UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeError, ValueError)
"""What msgspec can raise for a peer's bytes: RecursionError is not a DecodeError (measured)."""
