import pytest

from rlm_protocol import errors
from rlm_protocol.errors import RESERVED, LeaseHeld, RlmError, SessionNotFound


def test_every_row_is_whole() -> None:
    for code, cls in errors.TABLE.items():
        assert cls.meaning.endswith(".")
        assert cls.__doc__ is None or cls.__doc__ is RlmError.__doc__
        assert code in RESERVED or -31999 <= code <= -31001, "outside every reserved range"


def test_kinds_are_unique() -> None:
    kinds = [cls.kind for cls in errors.TABLE.values()]
    assert len(set(kinds)) == len(kinds)


def test_a_code_is_never_reused() -> None:
    with pytest.raises(TypeError, match="reuses code"):
        type("Other", (RlmError,), {"code": -31101, "meaning": "x."})


def test_wire_form_and_back() -> None:
    wire = errors.to_jsonrpc(SessionNotFound(session_id="x"))
    assert wire == {
        "code": -31101,
        "message": SessionNotFound.meaning,
        "data": {"kind": "sessionNotFound", "retryable": False, "sessionId": "x"},
    }
    back = errors.from_jsonrpc(wire)
    assert type(back) is SessionNotFound
    assert back.data == {"sessionId": "x"}


def test_a_newer_peers_error_stays_an_error() -> None:
    back = errors.from_jsonrpc({"code": -31999, "message": "new"})
    assert isinstance(back, errors.RequestFailed)
    assert back.message == "new"
    assert isinstance(errors.from_jsonrpc({}), errors.RequestFailed)


def test_an_own_message_replaces_the_meaning_in_one_instance_only() -> None:
    assert LeaseHeld("Held by pid 7.", pid=7).message == "Held by pid 7."
    assert LeaseHeld().message == LeaseHeld.meaning
