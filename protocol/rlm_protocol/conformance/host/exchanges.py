"""Runs the golden exchanges against a host: bytes in, answers out, and the connection lives."""

import functools
from typing import Any

from ..promise import expect, short
from ..vectors import fits, load, to_bytes
from .driver import Host, Message, frame
from .kit import ENDS_S, Check, HostKit

Vector = dict[str, Any]


def golden(promise: str) -> Check:
    """Give the check that runs the golden exchanges of one promise."""
    return functools.partial(_all, promise)


def _all(promise: str, kit: HostKit) -> None:
    kit.each(
        (vector["name"], functools.partial(_one, kit, vector))
        for vector in load("host-exchanges")
        if vector["promise"] == promise
    )


def _one(kit: HostKit, vector: Vector) -> None:
    if "ends" in vector:
        with kit.fresh() as host:
            _exchange(kit, host, vector)
            host.gone(ENDS_S, *vector["ends"])
    else:
        host = kit.shared()
        kit.needs(host, *vector.get("needs", ()))
        _exchange(kit, host, vector)


def _exchange(kit: HostKit, host: Host, vector: Vector) -> None:
    """Send a vector's frames in one write; hold what comes back to what it says."""
    wanted = vector["answers"]
    ids = [one for pattern in wanted for one in _ids(pattern["id"])]
    heard = len(host.messages)
    host.owes(*ids)
    host.write(to_frames(vector["send"]))
    host.wait(lambda: len(_answers(host, heard)) >= len(wanted), "answer")
    if "ends" not in vector:
        host.alive()
    host.settle(*ids)
    seen = _answers(host, heard)
    left = list(seen)
    for pattern in wanted:
        found = next((message for message in left if fits(pattern, message)), None)
        expect(found is not None, f"expected {short(str(wanted))}", seen=seen)
        left.remove(found or {})
    expect(not left, "more answers than questions", more=left)


def _answers(host: Host, heard: int) -> list[Message]:
    """Give the answers since a moment, without those to the round trip that shows life."""
    own = host.own_ids
    return [m for m in host.messages[heard:] if "method" not in m and m.get("id") not in own]


def _ids(pattern: Any) -> list[Any]:
    return pattern["any"] if isinstance(pattern, dict) else [pattern]


def to_frames(send: list[dict[str, Any]]) -> bytes:
    """Give the bytes of everything that a vector sends."""
    return b"".join(map(_bytes, send))


def _bytes(sent: dict[str, Any]) -> bytes:
    """
    Give the bytes of one thing to send.

    `message`: JSON with the usual header. `body`: these bytes with the usual header. `raw`: these
    bytes. With `header`, that header instead; `#` in it stands for the true length.
    """
    if "raw" in sent:
        return to_bytes(sent["raw"])
    body = to_bytes(sent["body"]) if "body" in sent else frame(sent["message"])
    if "message" in sent:
        body = body.partition(b"\r\n\r\n")[2]
    head = sent.get("header", "Content-Length: #\r\n\r\n")
    return to_bytes(head).replace(b"#", str(len(body)).encode()) + body
