"""What a template and its host say to each other: whole or an error that is declared."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_protocol import warm
from rlm_protocol.framing import UNDECODABLE

DECODERS = (warm.decode_order, warm.decode_told, warm.decode_birth)
names = st.text(max_size=20)
pids = st.integers(1, 2**22)
orders = st.builds(warm.Prepare, preload=st.lists(names, max_size=3).map(tuple)) | st.sampled_from(
    [warm.Fork(), warm.Retire()]
)
told = (
    st.just(warm.Ready())
    | st.builds(warm.Refused, reason=names)
    | st.builds(warm.Born, pid=pids)
    | st.builds(warm.Gone, pid=pids, code=st.integers(-64, 255))
)
pairs = st.tuples(st.binary(max_size=20), st.binary(max_size=20))
births = st.builds(warm.Birth, environment=st.lists(pairs, max_size=5).map(tuple))


@given(orders, told, births)
def test_what_was_said_is_heard(order: warm.Order, say: warm.Told, birth: warm.Birth) -> None:
    assert warm.decode_order(warm.encode(order)) == order
    assert warm.decode_told(warm.encode(say)) == say
    assert warm.decode_birth(warm.encode(birth)) == birth


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=60), at=st.integers(0, 60), message=orders | told | births)
def test_no_bytes_raise_anything_else(decode, data: bytes, at: int, message) -> None:  # type: ignore[no-untyped-def]
    whole = warm.encode(message)
    for said in (data, whole[:at], whole[:at] + data + whole[at:]):
        with contextlib.suppress(*UNDECODABLE):
            decode(said)
