import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlm_protocol.errors import SessionNotFound
from rlm_protocol.rpc import (
    Answered,
    NotificationReceived,
    RequestReceived,
    RpcPeer,
    Violation,
)


def test_a_round_trip() -> None:
    client, host = RpcPeer(), RpcPeer()
    id_, sent = client.request("x/y", {"a": 1})
    asked = host.receive(sent)
    assert isinstance(asked, RequestReceived)
    assert (asked.method, bytes(asked.params)) == ("x/y", b'{"a":1}')
    back = client.receive(host.respond(asked.id, {"ok": True}))
    assert isinstance(back, Answered)
    assert back.result is not None
    assert (back.id, bytes(back.result), client.open_ours) == (id_, b'{"ok":true}', frozenset())


def test_answering_twice_is_our_bug_and_raises_here() -> None:
    client, host = RpcPeer(), RpcPeer()
    asked = host.receive(client.request("x/y", {})[1])
    assert isinstance(asked, RequestReceived)
    host.fail(asked.id, SessionNotFound())
    with pytest.raises(KeyError):
        host.respond(asked.id, {})


def test_a_refusal_never_provokes_a_refusal() -> None:
    heard = RpcPeer().receive(b"garbage")
    assert isinstance(heard, Violation)
    assert heard.reply is not None
    back = RpcPeer().receive(heard.reply)
    assert isinstance(back, Violation)
    assert back.reply is None


def test_ids_of_the_two_directions_never_meet() -> None:
    host = RpcPeer()
    ours, _ = host.request("approval/request", {})
    theirs = host.receive(json.dumps({"jsonrpc": "2.0", "id": ours, "method": "x"}).encode())
    assert isinstance(theirs, RequestReceived)
    assert host.open_ours == host.open_theirs == {ours}


def test_a_late_answer_to_a_request_given_up_is_swallowed() -> None:
    host = RpcPeer()
    id_, _ = host.request("approval/request", {})
    host.forget(id_)
    late = host.receive(json.dumps({"jsonrpc": "2.0", "id": id_, "result": 1}).encode())
    assert isinstance(late, Violation)
    assert late.reply is None


@pytest.mark.parametrize(
    ("frame", "code", "id_"),
    [
        (b"{", -32700, None),
        (b"\xff", -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', -32600, None),
        (b"1", -32600, None),
        (b'{"id":1,"method":"x"}', -32600, 1),
        (b'{"jsonrpc":"1.0","id":1,"method":"x"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":null,"method":"x"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"x"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"x"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":{},"method":"x"}', -32600, None),
    ],
)
def test_every_malformed_frame_is_answered(frame: bytes, code: int, id_: int | None) -> None:
    heard = RpcPeer().receive(frame)
    assert isinstance(heard, Violation)
    assert heard.reply is not None
    answer = json.loads(heard.reply)
    assert (answer["error"]["code"], answer["id"]) == (code, id_)


@given(st.recursive(st.text(st.characters()), lambda inner: st.lists(inner, max_size=3)))
@example(["\ud83c", "\udf78"])
@example("\ud800\ud83c\udf78\udf78")
@example("\\ud800")
def test_half_a_surrogate_pair_costs_no_request_its_answer(value: object) -> None:
    frame = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"x": value}}).encode()
    event = RpcPeer().receive(frame)
    assert isinstance(event, RequestReceived)
    assert msgspec.json.decode(event.params) == {"x": _written(value)}


def _written(value: object) -> object:
    """As UTF-8 can say it: half of a pair is U+FFFD."""
    if isinstance(value, list):
        return [_written(one) for one in value]
    return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_an_id_in_flight_is_refused_and_the_first_goes_on() -> None:
    host = RpcPeer()
    frame = b'{"jsonrpc":"2.0","id":"d","method":"x"}'
    assert isinstance(host.receive(frame), RequestReceived)
    assert isinstance(host.receive(frame), Violation)
    host.respond("d", 1)


def test_too_many_in_flight_is_refused_as_overloaded() -> None:
    host = RpcPeer(max_in_flight=1)
    host.receive(b'{"jsonrpc":"2.0","id":1,"method":"x"}')
    heard = host.receive(b'{"jsonrpc":"2.0","id":2,"method":"x"}')
    assert isinstance(heard, Violation)
    assert heard.reply is not None
    assert json.loads(heard.reply)["error"]["data"]["kind"] == "overloaded"


def test_lost_gives_every_open_request_back_once() -> None:
    peer = RpcPeer()
    first, second = peer.request("x", {})[0], peer.request("y", {})[0]
    assert peer.lost() == [first, second]
    assert peer.lost() == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


@given(
    st.lists(
        json_values.map(lambda v: json.dumps(v).encode()) | st.binary(max_size=20), max_size=10
    )
)
def test_no_peer_can_make_receive_raise(frames: list[bytes]) -> None:
    peer = RpcPeer()
    peer.request("x/y", {})
    for frame in frames:
        assert isinstance(
            peer.receive(frame), RequestReceived | NotificationReceived | Answered | Violation
        )
