"""The kit's golden vectors against our own decoders: what any language can run, we run first."""

from typing import Any

import pytest

from rlm_protocol import framing, kernel, rpc
from rlm_protocol.conformance import host, runtime
from rlm_protocol.conformance.host.exchanges import to_frames
from rlm_protocol.conformance.vectors import fits, load, to_bytes
from rlm_protocol.errors import MalformedFrame
from rlm_protocol.limits import CLIENT_HEADER_BYTES, CLIENT_MESSAGE_BYTES

Vector = dict[str, Any]
HOSTILE, GOLDEN = load("runtime-hostile"), load("runtime-golden")
EXCHANGES = load("host-exchanges")


def name(vector: Vector) -> str:
    return f"{vector['promise']}: {vector['name']}"


@pytest.mark.parametrize("vector", HOSTILE, ids=name)
def test_a_hostile_line_is_refused_where_it_must_be(vector: Vector) -> None:
    line = to_bytes(vector["line"])
    if vector["then"] == "refused":
        with pytest.raises(MalformedFrame):
            kernel.decode_request(line)
    elif vector["then"] == "ignored" and line.strip():
        kernel.decode_request(line)


@pytest.mark.parametrize("vector", EXCHANGES, ids=name)
def test_our_framing_and_books_answer_as_the_exchange_says(vector: Vector) -> None:
    """What a header or a message alone decides; methods and params are the host's matter."""
    receiver = framing.HeaderReceiver(
        max_frame_bytes=CLIENT_MESSAGE_BYTES, max_header_bytes=CLIENT_HEADER_BYTES
    )
    receiver.receive_data(to_frames(vector["send"]))
    peer, requests, refusals = rpc.RpcPeer(), [], []
    if "ends" in vector:
        with pytest.raises(MalformedFrame):
            receiver.next_frame()
        return
    while isinstance(body := receiver.next_frame(), bytes):
        event = peer.receive(body)
        if isinstance(event, rpc.RequestReceived):
            requests.append(event.id)
        elif isinstance(event, rpc.Violation) and event.reply is not None:
            refusals.append(event.reply)
    assert len(requests) + len(refusals) == len(vector["answers"])


@pytest.mark.parametrize(
    ("file", "promises"),
    [
        ("runtime-golden", runtime.PROMISES),
        ("runtime-hostile", runtime.PROMISES),
        ("host-exchanges", host.PROMISES),
    ],
)
def test_every_vector_belongs_to_a_promise(file: str, promises: tuple[Any, ...]) -> None:
    vectors = load(file)
    assert {v["promise"] for v in vectors} <= {p.id for p in promises}
    assert len({name(v) for v in vectors}) == len(vectors)


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 50
    assert len(EXCHANGES) >= 60


@pytest.mark.parametrize(
    ("pattern", "value", "fit"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ({"a": 1}, {"a": True}, False),
        ([1, 2], [1, 2], True),
        ([1], [1, 2], False),
        ("$some", 0, True),
        ("$some", None, False),
        ({"any": [1, None]}, None, True),
        ({"any": [1, None]}, 2, False),
        ({"prefix": "$."}, "$.x", True),
        ({"prefix": "$."}, 5, False),
    ],
)
def test_patterns(pattern: Any, value: Any, fit: bool) -> None:
    assert fits(pattern, value) is fit


def test_bytes_are_written_in_three_ways() -> None:
    assert to_bytes("€") == "€".encode()
    assert to_bytes({"hex": "00ff"}) == b"\x00\xff"
    assert to_bytes(["a", ["bc", 2], {"hex": "64"}]) == b"abcbcd"
