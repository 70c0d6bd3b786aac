"""
Events to bytes: whatever a cell's text holds, the frame is valid JSON, one line, and bounded.

U+2028 and U+2029 are escaped (some hosts split lines there), lone surrogates become U+FFFD at the
source, long text is cut at a character.
"""

from collections.abc import Iterable, Iterator

import msgspec

from rlm_protocol.kernel import Done, Error, Event, Result, Stderr, Stdout
from rlm_protocol.limits import (
    KERNEL_FRAME_BYTES,
    OUTPUT_EVENT_BYTES,
    RESULT_REPR_CHARS,
)

from ._guard import escape_separators

EVALUE_CHARS = 32 * 1024
TRACEBACK_CHARS = 64 * 1024
_SURELY_FITS = KERNEL_FRAME_BYTES // 8
"""Characters that keep a frame within its bound: none takes more than six bytes in JSON."""

_encode = msgspec.json.Encoder().encode


def encode(event: Event) -> bytes:
    """Encode one event as a line. Raises UnicodeEncodeError for lone surrogates: see `whole`."""
    line = _encode(event)
    return escape_separators(line) + b"\n"


def encode_text(text: str) -> bytes:
    """Quote text as JSON."""
    quoted = _encode(text)
    return quoted if text.isascii() else escape_separators(quoted)


def whole(text: str) -> str:
    """Give `text` without lone surrogates; surrogates that form a pair become their character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def cut_middle(text: str, limit: int) -> str:
    """Give `text` in at most `limit` characters and a note, its middle left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def output(stream: str, author: str | None, text: str) -> Iterable[bytes]:
    """Give the frames of one piece of output, each with at most 64 KiB of text."""
    kind = Stdout if stream == "stdout" else Stderr
    if len(text) * 4 <= OUTPUT_EVENT_BYTES:
        return (encode(kind(id=author, text=whole(text))),)
    return _pieces(kind, author, text)


def _pieces(kind: type[Stdout | Stderr], author: str | None, text: str) -> Iterator[bytes]:
    step = OUTPUT_EVENT_BYTES if text.isascii() else OUTPUT_EVENT_BYTES // 4
    for at in range(0, len(text), step):
        yield encode(kind(id=author, text=whole(text[at : at + step])))


def result(id_: str, json_id: bytes, text: str) -> bytes:
    """Give the frame of a result, its text cut so that the frame keeps its bound."""
    if len(text) <= _SURELY_FITS:
        if text.isascii():  # nearly always
            return b'{"event":"result","id":%b,"text":%b}\n' % (json_id, _encode(text))
        try:
            return b'{"event":"result","id":%b,"text":%b}\n' % (json_id, encode_text(text))
        except UnicodeEncodeError:
            text = whole(text)
    true_length = len(text)
    limit = RESULT_REPR_CHARS
    while True:
        cut = whole(text[:limit])
        if len(text) <= limit:
            frame = encode(Result(id=id_, text=cut))
        else:
            frame = encode(Result(id=id_, text=cut, length=true_length))
        if len(frame) <= KERNEL_FRAME_BYTES:
            return frame
        limit //= 2


def error(id_: str | None, ename: str, evalue: str, traceback: list[str]) -> bytes:
    """Give the frame of an error; a long value or traceback is cut in its middle."""
    text = cut_middle(whole("".join(traceback)), TRACEBACK_CHARS)
    return encode(
        Error(
            id=id_,
            ename=whole(ename)[:256],
            evalue=cut_middle(whole(evalue), EVALUE_CHARS),
            traceback=text.splitlines(keepends=True),
        )
    )


def done(event: Done) -> bytes:
    """Give the frame of a `done`; lists that make it too long are cut and `truncated` is set."""
    frame = encode(event)
    while len(frame) > KERNEL_FRAME_BYTES:
        event = msgspec.structs.replace(event, **_halved(event), truncated=True)
        frame = encode(event)
    return frame


_LISTS = ("names", "details", "matches", "saved", "skipped", "pruned", "restored", "failed")


def _halved(event: Done) -> dict[str, object]:
    lists = {name: getattr(event, name) for name in _LISTS}
    longest = max(lists, key=lambda name: len(lists[name]) if lists[name] else 0)
    return {longest: lists[longest][: len(lists[longest]) // 2]}
