import pytest

from rlm_protocol.errors import MalformedFrame, TooLarge, TruncatedFrame
from rlm_protocol.framing import (
    NEED_DATA,
    HeaderReceiver,
    LineReceiver,
    Refused,
    encode_headers,
    encode_line,
)


def lines(*chunks: bytes, limit: int = 10) -> list[object]:
    receiver, out = LineReceiver(max_frame_bytes=limit), []
    for chunk in (*chunks, b""):
        receiver.receive_data(chunk)
        while (frame := receiver.next_frame()) is not NEED_DATA and frame is not None:
            out.append(type(frame.error) if isinstance(frame, Refused) else frame)
    return out


@pytest.mark.parametrize(
    ("chunks", "want"),
    [
        ((b"ab\nc\n",), [b"ab", b"c"]),
        ((b"a", b"b\n"), [b"ab"]),
        ((b"a\r\nb\n",), [b"a", b"b"]),
        (("a\u2028b\n".encode(),), ["a\u2028b".encode()]),
        ((b"12345678901\nnext\n",), [TooLarge, b"next"]),
        ((b"x" * 30, b"x" * 30, b"\nnext\n"), [TooLarge, b"next"]),
        ((b"tail without newline"[:8],), [TruncatedFrame]),
        ((b"x" * 50,), [TruncatedFrame]),
        ((b"",), []),
    ],
)
def test_lines(chunks: tuple[bytes, ...], want: list[object]) -> None:
    assert lines(*chunks) == want


def test_the_line_buffer_stays_bounded_while_a_long_line_is_skipped() -> None:
    receiver = LineReceiver(max_frame_bytes=100)
    for _ in range(1000):
        receiver.receive_data(b"x" * 1000)
        receiver.next_frame()
        assert len(receiver._buffer) <= 1100


def headers(*chunks: bytes, limit: int = 100) -> list[object]:
    receiver = HeaderReceiver(max_frame_bytes=limit, max_header_bytes=200)
    out: list[object] = []
    try:
        for chunk in (*chunks, b""):
            receiver.receive_data(chunk)
            while (frame := receiver.next_frame()) is not NEED_DATA and frame is not None:
                out.append(type(frame.error) if isinstance(frame, Refused) else frame)
    except (MalformedFrame, TruncatedFrame) as error:
        out.append(type(error))
        with pytest.raises(type(error)):  # the error is sticky
            receiver.next_frame()
    return out


@pytest.mark.parametrize(
    ("stream", "want"),
    [
        (b"Content-Length: 2\r\n\r\n{}", [b"{}"]),
        (b"content-length:2\r\n\r\n{}", [b"{}"]),
        (b"CONTENT-LENGTH :  2 \n\n{}", [b"{}"]),
        (b"Content-Type: x\r\nContent-Length: 2\r\n\r\n{}", [b"{}"]),
        (b"\r\n\r\nContent-Length: 2\r\n\r\n{}", [b"{}"]),
        (b"Content-Length: 0\r\n\r\nContent-Length: 2\r\n\r\n{}", [b"", b"{}"]),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", [b"{}"]),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", [MalformedFrame]),
        (b"Content-Length: -1\r\n\r\n", [MalformedFrame]),
        (b"Content-Length: 1e3\r\n\r\n", [MalformedFrame]),
        (b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", [MalformedFrame]),
        (b"Content-Length: +2\r\n\r\n{}", [MalformedFrame]),
        (b"X: y\r\n\r\n{}", [MalformedFrame]),
        (b"a" * 500, [MalformedFrame]),
        (
            b"Content-Length: 150\r\n\r\n" + b"x" * 150 + b"Content-Length: 2\r\n\r\n{}",
            [TooLarge, b"{}"],
        ),
        (b"Content-Length: 5\r\n\r\n{}", [TruncatedFrame]),
        (b"Content-Le", [TruncatedFrame]),
        (b"\r\n", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_headers(stream: bytes, want: list[object], size: int) -> None:
    assert headers(*(stream[i : i + size] for i in range(0, len(stream), size))) == want


def test_a_huge_honest_length_is_skipped_in_bounded_memory() -> None:
    receiver = HeaderReceiver(max_frame_bytes=100, max_header_bytes=200)
    receiver.receive_data(b"Content-Length: 100000000\r\n\r\n")
    assert isinstance(receiver.next_frame(), Refused)
    for _ in range(100):
        receiver.receive_data(b"x" * 10_000)
        assert receiver.next_frame() is NEED_DATA
        assert len(receiver._buffer) == 0


def test_encoders() -> None:
    assert encode_line(b"{}") == b"{}\n"
    with pytest.raises(MalformedFrame):
        encode_line(b"{\n}")
    assert headers(encode_headers(b"{}")) == [b"{}"]
