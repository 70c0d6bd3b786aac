import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_protocol import bridge, kernel
from rlm_protocol.errors import DepthLimit, MalformedFrame
from rlm_protocol.kernel import BadLine, Done, Execute, UnknownEvent, decode_event, decode_request


def test_a_request_leaves_out_what_is_default() -> None:
    assert json.loads(kernel.encode(Execute(id="c1", code="1"))) == {
        "type": "execute",
        "id": "c1",
        "code": "1",
    }


def test_done_says_only_what_it_has() -> None:
    assert json.loads(kernel.encode(Done(id="c1", status="ok"))) == {
        "event": "done",
        "id": "c1",
        "status": "ok",
    }


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"event":"done","id":"c1","status":"ok","took_ms":3}', Done),
        (b'{"event":"hologram","x":1}', UnknownEvent),
        (b'{"event":"done","id":"c1","status":"maybe"}', BadLine),
        (b'{"event":"done","status":"ok"}', BadLine),
        (b'{"event":["done"]}', BadLine),
        (b'{"id":"c1"}', BadLine),
        (b"Loading foo", BadLine),
        (b"[" * 200_000, BadLine),
        (b'{"event":"result","id":"\xff","text":""}', BadLine),
        (b"", BadLine),
    ],
)
def test_what_a_runtime_says_is_a_value(line: bytes, kind: type) -> None:
    assert type(decode_event(line)) is kind


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":["execute"]}',
        b'{"type":"execute"}',
        b'{"type":"execute","id":5,"code":""}',
        b'{"type":"interrupt","id":5}',
        b'{"type":"mcp_status","id":"m"}',
        b'{"type":"snapshot","id":"s","path":"a","manifest_path":"b","max_bytes":true}',
        b'{"type":"snapshot","id":"s","path":"a","manifest_path":"b","max_bytes":null}',
        b"[" * 200_000,
        b"\xff\xfe",
        b"1",
        b"null",
    ],
)
def test_a_line_that_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_request(line)


@given(st.binary(max_size=200))
def test_no_line_can_make_the_decoders_raise_anything_else(line: bytes) -> None:
    decode_event(line)
    with contextlib.suppress(MalformedFrame):
        decode_request(line)


def test_surrogate_pairs_and_raw_text_mean_the_same() -> None:
    escaped = decode_request(b'{"type":"execute","id":"u","code":"\\ud83c\\udf78"}')
    raw = decode_request('{"type":"execute","id":"u","code":"\U0001f378"}'.encode())
    assert escaped == raw
    assert isinstance(raw, Execute)
    assert len(raw.code) == 1


def test_a_refusal_crosses_the_bridge_with_code_and_data() -> None:
    assert bridge.failed(DepthLimit(depth=2, max_depth=2)) == {
        "status": "error",
        "error": DepthLimit.meaning,
        "code": DepthLimit.code,
        "data": {"kind": "depthLimit", "retryable": False, "depth": 2, "max_depth": 2},
    }


def test_payload_keys_cannot_reach_the_envelope() -> None:
    reply = bridge.ok({"status": "error", "type": "rlm.run"})
    assert reply == {"status": "ok", "result": {"status": "error", "type": "rlm.run"}}


def test_every_bridge_type_is_named_after_its_python_call() -> None:
    for name, row in bridge.BRIDGE.items():
        assert name == row.name
        assert name.count(".") == 1
