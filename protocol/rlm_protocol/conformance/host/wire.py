"""Promises about the wire: frames, messages, ids, order, limits, a slow reader."""

from ...methods import METHODS, RESERVED
from ..promise import NotSupported, Promise, expect
from .driver import ALIVE_METHOD, Host, frame, notification, request
from .exchanges import golden
from .kit import ENDS_S, HostKit

PIPELINED = 1000
CANCELS = 1000
SLOW_BYTES = 2 * 1024 * 1024


def _count(host: Host, ids: range) -> None:
    """Hold each of these ids to exactly one answer; the driver reports a second one."""
    host.wait(lambda: all(host.answers(id_) for id_ in ids), "answer to each request")


def _pipelined(kit: HostKit) -> None:
    host = kit.shared()
    ids = range(PIPELINED)
    before = len(kit.violations)
    host.say(*(request(f"p{n}", ALIVE_METHOD, {"n": n}) for n in ids))
    host.wait(lambda: all(host.answers(f"p{n}") for n in ids), "answer to each of 1,000 requests")
    host.alive()
    several = [n for n in ids if len(host.answers(f"p{n}")) != 1]
    expect(not several and len(kit.violations) == before, "not exactly one answer", ids=several)


def _bytewise(kit: HostKit) -> None:
    host = kit.shared()
    host.owes("€")
    data = frame(request("€", ALIVE_METHOD, {"x": "€𝄞"}))
    for n in range(len(data)):
        host.write(data[n : n + 1])
        host.taken()
    host.answer("€")


def _partly(kit: HostKit) -> None:
    """A request is served though the next one has come only in part."""
    host = kit.shared()
    first, second = (frame(request(id_, ALIVE_METHOD, {})) for id_ in ("whole", "part"))
    host.owes("whole", "part")
    host.write(first + second[:30])
    host.answer("whole")
    host.write(second[30:])
    host.answer("part")


def _large(kit: HostKit) -> None:
    host = kit.shared()
    host.say(request("large", ALIVE_METHOD, {"x": "y" * (4 * 1024 * 1024)}))
    host.answer("large")
    host.alive()


def _too_large(kit: HostKit) -> None:
    with kit.fresh() as host:
        limit = (host.capabilities.get("limits") or {}).get("maxMessageBytes")
        if not isinstance(limit, int):
            raise NotSupported("`initialize` announces no maxMessageBytes")
        host.write(b"Content-Length: %d\r\n\r\n" % (limit + 1) + b" " * (limit + 1))
        host.wait(lambda: bool(host.answers(None)), "answer to a message over the limit")
        data = (host.answers(None)[0].get("error") or {}).get("data") or {}
        expect(data.get("kind") == "tooLarge", "it is not refused as tooLarge", data=data)
        host.alive()


def _huge(kit: HostKit) -> None:
    """An honest length that nobody can hold is refused before its bytes come."""
    with kit.fresh() as host:
        host.write(b"Content-Length: 99999999999\r\n\r\n" + b" " * 1000)
        host.wait(lambda: bool(host.answers(None)), "answer to a length of 10^11")
        host.child.close_stdin()
        code = host.gone(ENDS_S)
        expect(code >= 0, "it died of a signal", code=code)


def _in_flight(kit: HostKit) -> None:
    """The first may be answered before the second is read: then both have an answer."""
    host = kit.shared()
    for method in (ALIVE_METHOD, "host/schema"):
        id_ = f"twice-{method}"
        host.say(request(id_, method, {}), request(id_, method, {}))
        host.answer(id_, 1)
    host.alive()


def _cancels(kit: HostKit) -> None:
    host = kit.shared()
    ids = [f"c{n}" for n in range(CANCELS)]
    host.say(*(request(id_, ALIVE_METHOD, {}) for id_ in ids))
    host.wait(lambda: all(host.answers(id_) for id_ in ids), "answer to each request")
    heard = len(host.messages)
    host.say(*(notification("$/cancelRequest", {"id": id_}) for id_ in ids))
    host.alive()
    expect(len(host.messages) == heard + 1, "cancels of what is over lead to messages")


def _cancel_race(kit: HostKit) -> None:
    """A cancel in the same write as its request: one answer, of either kind."""
    host, before = kit.shared(), len(kit.violations)
    for n in range(50):
        id_ = f"race-{n}"
        host.say(request(id_, "host/schema"), notification("$/cancelRequest", {"id": id_}))
        host.answer(id_)
    host.alive()
    expect(len(kit.violations) == before, "an answer came twice; see `base.one-answer`")


def _stalled(kit: HostKit) -> None:
    """Everything that a client writes is taken though it does not read; then all answers come."""
    with kit.fresh() as host:
        text = "x" * 1000
        ids = range(SLOW_BYTES // 1000)
        host.child.reading = False
        host.say(*(request(id_, f"{ALIVE_METHOD}/{text}", {}) for id_ in ids))
        host.child.pump(lambda: host.child.unread_bytes == 0, host.timeout_s)
        left = host.child.unread_bytes
        host.child.reading = True
        expect(left == 0, "it stops reading while its client does not read", left=left)
        _count(host, ids)
        host.alive()


def _quiet(kit: HostKit) -> None:
    """The driver looks at every frame of the run; here is a round trip for it to look at."""
    kit.shared().alive()


def _refusals(kit: HostKit) -> None:
    """The same, with mistakes of every kind."""
    host = kit.shared()
    for method, params in (
        ("host/status", [1]),
        ("host/status", {"colour": 1}),
        ("session/read", {"sessionId": "nobody"}),
        ("session/read", {"sessionId": "../x"}),
        ("initialize", {}),
    ):
        host.ask(method, params)


def _unreadable(kit: HostKit) -> None:
    """The same, with bodies that are no message."""
    host = kit.shared()
    host.write(b"Content-Length: 1\r\n\r\n{Content-Length: 2\r\n\r\n[]")
    host.alive()


def _talkative(kit: HostKit) -> None:
    """The same, with the answers that say most."""
    host = kit.shared()
    for method in ("host/status", "host/schema"):
        host.ask(method, {})
    host.alive()


def _unsupported(kit: HostKit) -> None:
    host = kit.shared()
    declared = [row.name for row in METHODS.values() if row.direction == "client"]
    declared += sorted(RESERVED)
    missing = [method for method in declared if method not in host.offered]
    if not host.offered or not missing:
        raise NotSupported("there is no declared method that the host does not offer")
    for method in missing:
        host.refusal(method, {"sessionId": "s"}, "unsupported")


def _schema(kit: HostKit) -> None:
    host = kit.shared()
    kit.needs(host, "host/schema")
    document = host.result("host/schema")["openrpc"]
    missing = host.offered - {method["name"] for method in document["methods"]}
    expect(not missing, "the document lacks announced methods", missing=sorted(missing))


PROMISES: tuple[Promise[HostKit], ...] = (
    Promise(
        id="base.header-case",
        text="Header names may be written in any case.",
        checks=(golden("base.header-case"),),
    ),
    Promise(
        id="base.header-lines",
        text="Header lines may end in LF, with any blanks around the number.",
        checks=(golden("base.header-lines"),),
    ),
    Promise(
        id="base.header-extra",
        text="Other headers are allowed.",
        checks=(golden("base.header-extra"),),
    ),
    Promise(
        id="base.header-broken",
        text="A header that cannot be read is -32700, then the end with code 1.",
        checks=(golden("base.header-broken"),),
    ),
    Promise(
        id="base.header-huge",
        text="A length that nobody can hold is refused at once, and costs no memory.",
        checks=(_huge,),
    ),
    Promise(
        id="base.split",
        text="Frames may be cut at any byte and glued in any number.",
        checks=(
            _bytewise,
            _partly,
        ),
    ),
    Promise(
        id="base.frames",
        text="Nothing but whole, strict frames leaves the host, whoever writes to stdout.",
        checks=(_talkative,),
    ),
    Promise(
        id="base.strict-json",
        text="Every body is strict JSON: no NaN, no broken text.",
        checks=(_talkative,),
    ),
    Promise(
        id="base.shape",
        text="Every message is a JSON-RPC 2.0 request, notification or answer.",
        checks=(_talkative,),
    ),
    Promise(
        id="base.bad-json",
        text="A body that is no JSON is -32700 with id null, and the connection lives.",
        checks=(golden("base.bad-json"),),
    ),
    Promise(
        id="base.invalid-request",
        text="JSON that is no request is -32600, with its id where it has one.",
        checks=(golden("base.invalid-request"),),
    ),
    Promise(
        id="base.batch",
        text="A batch is refused as a whole with -32600.",
        checks=(golden("base.batch"),),
    ),
    Promise(
        id="base.bad-id",
        text="An id that is neither text nor integer is -32600 with id null.",
        checks=(golden("base.bad-id"),),
    ),
    Promise(
        id="base.id-echo",
        text="An id comes back as it was sent.",
        checks=(golden("base.id-echo"),),
    ),
    Promise(
        id="base.no-params",
        text="Params may be left out, or be null.",
        checks=(golden("base.no-params"),),
    ),
    Promise(
        id="base.bad-params",
        text="Params that cannot be read are refused; the request has an answer.",
        checks=(golden("base.bad-params"),),
    ),
    Promise(
        id="base.wrong-params",
        text="Params that do not fit are -32602, and data.path names the place.",
        checks=(golden("base.wrong-params"),),
    ),
    Promise(
        id="base.nested",
        text="What is nested in params is never taken for a message.",
        checks=(golden("base.nested"),),
    ),
    Promise(
        id="base.unknown-method",
        text="A method that nobody has is -32601.",
        checks=(golden("base.unknown-method"),),
    ),
    Promise(
        id="base.no-answer",
        text="A notification has no answer, whatever is wrong with it.",
        checks=(golden("base.no-answer"),),
    ),
    Promise(
        id="base.unasked-answer",
        text="An answer to nothing is ignored, without an answer.",
        checks=(golden("base.unasked-answer"),),
    ),
    Promise(
        id="base.one-answer",
        text="Every request has exactly one answer.",
        checks=(_quiet,),
    ),
    Promise(
        id="base.pipelining",
        text="1,000 requests in one write have 1,000 answers.",
        checks=(
            _pipelined,
            golden("base.pipelining"),
        ),
    ),
    Promise(
        id="base.id-in-flight",
        text="An id in flight is refused, or was answered before it came again.",
        checks=(_in_flight,),
    ),
    Promise(
        id="base.cancel-nothing",
        text="A cancel of what is unknown or over does nothing.",
        checks=(
            golden("base.cancel-nothing"),
            _cancels,
        ),
    ),
    Promise(
        id="base.cancel-race",
        text="A request and its cancel in one write have one answer.",
        checks=(_cancel_race,),
    ),
    Promise(
        id="base.large",
        text="A message of 4 MiB is served.",
        checks=(_large,),
    ),
    Promise(
        id="base.too-large",
        text="A message over maxMessageBytes is refused as tooLarge, and the next is served.",
        checks=(_too_large,),
    ),
    Promise(
        id="base.stalled-reader",
        text="A client that writes without reading is served when it reads.",
        checks=(_stalled,),
    ),
    Promise(
        id="base.error-data",
        text="Every error has data.kind and data.retryable.",
        checks=(_refusals,),
    ),
    Promise(
        id="base.error-codes",
        text="Codes that JSON-RPC and LSP reserve keep their meaning.",
        checks=(_refusals,),
    ),
    Promise(
        id="base.no-traceback",
        text="No traceback is sent to a client.",
        checks=(_refusals,),
    ),
    Promise(
        id="base.no-popup",
        text="A client's mistake is answered, not shown to its user.",
        checks=(_refusals, _unreadable),
    ),
    Promise(
        id="base.unsupported",
        text="A declared method that is not offered is refused as unsupported.",
        checks=(_unsupported,),
    ),
    Promise(
        id="base.schema",
        text="`host/schema` gives a document with every announced method.",
        checks=(_schema,),
    ),
)
