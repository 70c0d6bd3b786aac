"""Hostile and legal frames, as a table: what is sent, and which answer must come back."""

import json

import msgspec

from ..framing import encode_headers
from .host_driver import frame, notification, request

STATUS = frame(request(7, "host/status"))
RESULT = 0
"""In the place of an error code: the answer is a result."""
NOTHING = 1
"""In the place of an error code: no answer may come."""
REFUSED = 2
"""In the place of an error code: a bad message or bad params, whichever is found first."""


class FrameCase(msgspec.Struct, frozen=True):
    """Bytes for an initialized host that must go on afterwards."""

    id: str
    text: str
    data: bytes
    code: int
    answers: object = 7
    """The id under which the answer comes; None for an answer without id."""


def _body(body: bytes) -> bytes:
    return encode_headers(body)


def _call(params: str, method: str = "host/status") -> bytes:
    return _body(f'{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}'.encode())


def _raw(head: bytes) -> bytes:
    body = b'{"jsonrpc":"2.0","id":7,"method":"host/status"}'
    return head.replace(b"#", str(len(body)).encode()) + body


PARSE, INVALID, METHOD, PARAMS = -32700, -32600, -32601, -32602

FRAMES = (
    # headers that real peers send
    FrameCase("F1", "header names in lower case", _raw(b"content-length: #\r\n\r\n"), RESULT),
    FrameCase("F2", "header names in upper case", _raw(b"CONTENT-LENGTH: #\r\n\r\n"), RESULT),
    FrameCase("F3", "lines that end in LF only", _raw(b"Content-Length: #\n\n"), RESULT),
    FrameCase("F4", "no space after the colon", _raw(b"Content-Length:#\r\n\r\n"), RESULT),
    FrameCase("F5", "many spaces", _raw(b"Content-Length :   #  \r\n\r\n"), RESULT),
    FrameCase(
        "F6",
        "a Content-Type after the length",
        _raw(
            b"Content-Length: #\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n"
        ),
        RESULT,
    ),
    FrameCase(
        "F7",
        "a header that nobody knows first",
        _raw(b"X-Y: z\r\nContent-Length: #\r\n\r\n"),
        RESULT,
    ),
    FrameCase("F8", "blank lines before a header", b"\r\n\r\n" + STATUS, RESULT),
    # bodies that are not a message
    FrameCase("B1", "an empty body", b"Content-Length: 0\r\n\r\n", PARSE, None),
    FrameCase("B2", "half an object", _body(b"{"), PARSE, None),
    FrameCase("B3", "not UTF-8", _body(b"\xff\xfe"), PARSE, None),
    FrameCase(
        "B4", "not UTF-8 inside the params", _call('{"x":"?"}').replace(b"?", b"\xff"), REFUSED
    ),
    FrameCase("B5", "200,000 open brackets", _body(b"[" * 200_000), PARSE, None),
    FrameCase("B6", "trailing bytes", _body(b'{"jsonrpc":"2.0"} {}'), PARSE, None),
    FrameCase("B7", "NaN is not JSON", _call("NaN"), REFUSED),
    FrameCase("B8", "an empty array", _body(b"[]"), INVALID, None),
    FrameCase("B9", "a batch", _body(b'[{"jsonrpc":"2.0","id":7,"method":"x"}]'), INVALID, None),
    FrameCase("B10", "a number", _body(b"1"), INVALID, None),
    FrameCase("B11", "a string", _body(b'"host/status"'), INVALID, None),
    FrameCase("B12", "null", _body(b"null"), INVALID, None),
    FrameCase("B13", "an object without method", _body(b'{"jsonrpc":"2.0","id":7}'), INVALID),
    FrameCase("B14", "no jsonrpc member", _body(b'{"id":7,"method":"host/status"}'), INVALID),
    FrameCase(
        "B15", "jsonrpc 1.0", _body(b'{"jsonrpc":"1.0","id":7,"method":"host/status"}'), INVALID
    ),
    FrameCase("B16", "a method that is a number", frame(request(7, 5)), INVALID),  # type: ignore[arg-type]
    FrameCase("B17", "params nested 100,000 deep", _call("[" * 100_000 + "]" * 100_000), REFUSED),
    FrameCase("B18", "a lone surrogate in the params", _call('{"x":"\\ud800"}'), REFUSED),
    # ids
    FrameCase("I1", "an id that is null", frame(request(None, "host/status")), INVALID, None),
    FrameCase("I2", "an id that is true", frame(request(True, "host/status")), INVALID, None),
    FrameCase("I3", "an id that is 1.5", frame(request(1.5, "host/status")), INVALID, None),
    FrameCase("I4", "an id that is a list", frame(request([1], "host/status")), INVALID, None),
    FrameCase("I5", "an id that is an object", frame(request({}, "host/status")), INVALID, None),
    FrameCase("I6", "an id that is an empty string", frame(request("", "host/status")), RESULT, ""),
    FrameCase("I7", "an id below zero", frame(request(-1, "host/status")), RESULT, -1),
    FrameCase("I8", "an id of other scripts", frame(request("€𝄞", "host/status")), RESULT, "€𝄞"),
    FrameCase(
        "I9",
        "an id of 10,000 characters",
        frame(request("i" * 10_000, "host/status")),
        RESULT,
        "i" * 10_000,
    ),
    FrameCase(
        "I10",
        "a string id that looks like a number",
        frame(request("7", "host/status")),
        RESULT,
        "7",
    ),
    # params
    FrameCase("A1", "no params", STATUS, RESULT),
    FrameCase("A2", "params that are null", _call("null"), RESULT),
    FrameCase("A3", "params that are {}", _call("{}"), RESULT),
    FrameCase("A4", "params by position", _call("[1]"), PARAMS),
    FrameCase("A5", "params that are a number", _call("5"), PARAMS),
    FrameCase("A6", "params that are a string", _call('"x"'), PARAMS),
    FrameCase("A7", "a field that nobody knows", _call('{"x":1}'), PARAMS),
    FrameCase("A8", "a nested `jsonrpc` member", _call('{"x":{"jsonrpc":"2.0","id":1}}'), PARAMS),
    FrameCase(
        "A9",
        "a key twice in the message",
        _body(b'{"jsonrpc":"2.0","id":7,"id":7,"method":"host/status"}'),
        RESULT,
    ),
    # methods
    FrameCase("M1", "a method that nobody knows", frame(request(7, "no/such")), METHOD),
    FrameCase("M2", "an unknown method of `$/`", frame(request(7, "$/no")), METHOD),
    FrameCase("M3", "an empty method", frame(request(7, "")), METHOD),
    FrameCase(
        "M4",
        "a method that only the host may call",
        frame(request(7, "approval/request", {})),
        METHOD,
    ),
    FrameCase(
        "M5", "a notification's name as a request", frame(request(7, "initialized", {})), METHOD
    ),
    FrameCase("M6", "a method of 100,000 characters", frame(request(7, "m" * 100_000)), METHOD),
    # notifications and answers have no answer
    FrameCase(
        "N1", "a notification that nobody knows", frame(notification("no/such", {})), NOTHING
    ),
    FrameCase("N2", "a notification of `$/`", frame(notification("$/no", {})), NOTHING),
    FrameCase("N3", "a request's name without id", frame(notification("host/status")), NOTHING),
    FrameCase(
        "N4",
        "a notification with wrong params",
        frame(notification("$/cancelRequest", [1])),
        NOTHING,
    ),
    FrameCase(
        "N5",
        "a cancel of what was never asked",
        frame(notification("$/cancelRequest", {"id": 99})),
        NOTHING,
    ),
    FrameCase("N6", "a cancel without an id", frame(notification("$/cancelRequest", {})), NOTHING),
    FrameCase(
        "N7",
        "an answer that nobody waits for",
        frame({"jsonrpc": "2.0", "id": 7, "result": 1}),
        NOTHING,
    ),
    FrameCase(
        "N8",
        "an error that nobody waits for",
        frame({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "x"}}),
        NOTHING,
    ),
    FrameCase(
        "N9",
        "an answer with result and error",
        frame({"jsonrpc": "2.0", "id": 7, "result": 1, "error": {}}),
        NOTHING,
    ),
    FrameCase(
        "N10", "an error that is no object", frame({"jsonrpc": "2.0", "id": 7, "error": 5}), NOTHING
    ),
    FrameCase(
        "N11", "a trace level", frame(notification("$/setTrace", {"value": "verbose"})), NOTHING
    ),
)

FATAL = (
    ("H1", "no Content-Length", b"Content-Type: x\r\n\r\n"),
    ("H2", "a negative length", b"Content-Length: -1\r\n\r\n"),
    ("H3", "two lengths that differ", b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    ("H4", "a length of 5,000 digits", b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
    ("H5", "a length that is no number", b"Content-Length: ten\r\n\r\n"),
    ("H6", "a length in hexadecimal", b"Content-Length: 0x10\r\n\r\n"),
    ("H7", "a header line without end", b"Content-Length: 10" + b" " * 70_000),
    ("H8", "a header of 70,000 lines", b"X: y\r\n" * 70_000),
    ("H9", "JSON without any header", json.dumps(request(7, "host/status")).encode() + b"\n\n"),
)
"""Headers after which nobody can know where a message starts: -32700 without id, then the end."""
