"""Two properties pin a framer down: chunking does not matter, garbage gives only declared errors."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rlm_protocol.errors import MalformedFrame, TooLarge, TruncatedFrame
from rlm_protocol.framing import (
    NEED_DATA,
    HeaderReceiver,
    LineReceiver,
    Refused,
    encode_headers,
    encode_line,
)

payloads = st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b and b"\r" not in b))
LIMIT = 60


def drain(receiver: LineReceiver | HeaderReceiver, chunks: list[bytes]) -> list[object]:
    out: list[object] = []
    for chunk in [*chunks, b""]:
        receiver.receive_data(chunk)
        while True:
            try:
                frame = receiver.next_frame()
            except (MalformedFrame, TruncatedFrame) as error:
                return [*out, type(error)]
            if frame is NEED_DATA or frame is None:
                break
            out.append(type(frame.error) if isinstance(frame, Refused) else frame)
    return out


def cut(stream: bytes, data: st.DataObject) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    return [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)]) if a < b]


@given(payloads, st.data())
def test_lines_do_not_depend_on_chunks(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_line, messages))
    assert drain(LineReceiver(max_frame_bytes=LIMIT), cut(stream, data)) == messages


@given(st.lists(st.binary(max_size=40)), st.data())
def test_headers_do_not_depend_on_chunks(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_headers, messages))
    receiver = HeaderReceiver(max_frame_bytes=LIMIT, max_header_bytes=100)
    assert drain(receiver, cut(stream, data)) == messages


mutated = st.lists(
    st.sampled_from(
        [
            b"Content-Length: 3\r\n\r\nabc",
            b"Content-Length: 61\r\n\r\n" + b"x" * 61,
            b"content-length:\t2\n\n{}",
            b"Content-Length: x\r\n\r\n",
            b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n",
            b"\r\n",
            b"\n\n\n",
            b"{}\n",
            b"x" * 61 + b"\n",
            b"\r",
            b":",
        ]
    )
    | st.binary(max_size=8),
    max_size=12,
).map(b"".join)


@given(mutated, st.data())
def test_garbage_gives_the_same_declared_outcome_for_every_chunking(
    stream: bytes, data: st.DataObject
) -> None:
    """Any other exception, or an outcome that depends on the cuts, is our bug."""
    chunks = cut(stream, data)
    whole = drain(HeaderReceiver(max_frame_bytes=LIMIT, max_header_bytes=100), [stream])
    assert drain(HeaderReceiver(max_frame_bytes=LIMIT, max_header_bytes=100), chunks) == whole
    lines = drain(LineReceiver(max_frame_bytes=LIMIT), [stream])
    assert drain(LineReceiver(max_frame_bytes=LIMIT), chunks) == lines
    declared = {TooLarge, TruncatedFrame, MalformedFrame}
    assert all(isinstance(o, bytes) or o in declared for o in (*whole, *lines))
