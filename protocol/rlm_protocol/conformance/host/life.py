"""Promises about a connection's life: the handshake, and every way in which it ends."""

import signal
import subprocess
import sys
from typing import Any

from ..promise import NotSupported, Promise, expect
from .driver import INITIALIZE, Host, Message, frame, notification, request
from .kit import ENDS_S, Check, HostKit

EDITOR: Message = {
    "processId": None,
    "clientInfo": {"name": "Some Editor", "version": "1.99"},
    "locale": "de",
    "rootPath": "/",
    "rootUri": "file:///",
    "capabilities": {
        "workspace": {"applyEdit": True, "inlayHint": {"refreshSupport": True}},
        "textDocument": {"hover": {"contentFormat": ["markdown", "plaintext"]}},
        "window": {"workDoneProgress": True},
        "general": {"positionEncodings": ["utf-16"]},
        "experimental": {"somebody.else": {"jsonrpc": "2.0", "id": 1}},
    },
    "trace": "off",
    "workspaceFolders": [{"uri": "file:///", "name": "root"}],
    "fieldOfTheFuture": {"a": [1, 2]},
}


def _refused(host: Host, id_: object, code: int) -> Message:
    error: Message = host.answer(id_).get("error") or {}
    expect(error.get("code") == code, f"expected error {code}", answer=host.answer(id_))
    return error


def _ours(**more: Any) -> Message:
    return {**INITIALIZE, "capabilities": {"experimental": {"rlm": more}}}


def _initialize(kit: HostKit) -> None:
    bare: tuple[Message, ...] = ({"processId": None, "capabilities": None}, {"capabilities": {}})
    for params in (EDITOR, *bare):
        with kit.bare() as host:
            result = host.initialize(params)
            expect("capabilities" in result, "no capabilities", result=result)
            host.alive()


def _announce(kit: HostKit) -> None:
    with kit.bare() as host:
        result = host.initialize()
        ours = host.capabilities
        if not ours:
            raise NotSupported("`initialize` has no capabilities.experimental.rlm")
        low, high = ours["protocol"]["min"], ours["protocol"]["max"]
        expect(isinstance(low, int) and low <= high, "no protocol range", said=ours)
        expect(isinstance(ours.get("schemaRevision"), int), "no schema revision", said=ours)
        expect({"initialize", "shutdown"} <= host.offered, "no list of methods", said=ours)
        for limit in ("maxMessageBytes", "maxInFlight"):
            expect(ours.get("limits", {}).get(limit, 0) > 0, f"no {limit}", said=ours)
        expect(result.get("serverInfo", {}).get("name"), "the host has no name", result=result)


def _before(kit: HostKit) -> None:
    with kit.bare() as host:
        host.say(
            request(1, "no/such", {}),
            notification("textDocument/didOpen", {}),
            request(2, "shutdown"),
        )
        for id_ in (1, 2):
            _refused(host, id_, -32002)
        host.initialize()
        host.alive()


def _wrong_first(kit: HostKit) -> None:
    """A handshake with wrong params is refused, and may be tried again."""
    with kit.bare() as host:
        host.ask("no/such", {})
        for n, params in enumerate(([1], 5, {"processId": "x"}, {"capabilities": [1]})):
            host.say(request(n, "initialize", params))
            error = _refused(host, n, -32602)
            path = (error.get("data") or {}).get("path")
            expect(isinstance(path, str), "the refusal has no data.path", error=error)
        host.initialize()


def _twice(kit: HostKit) -> None:
    with kit.fresh() as host:
        host.say(request(1, "initialize", INITIALIZE))
        _refused(host, 1, -32600)
        host.alive()


def _negotiation(kit: HostKit) -> None:
    with kit.bare() as host:
        host.initialize()
        if not host.capabilities:
            raise NotSupported("`initialize` has no capabilities.experimental.rlm")
    with kit.bare() as host:
        for low, high in ((900, 999), (0, 0)):
            params = _ours(protocol={"min": low, "max": high})
            host.refusal("initialize", params, "unsupported")
        for n, bad in enumerate((1, {"min": "1"})):
            host.say(request(n, "initialize", _ours(protocol=bad)))
            _refused(host, n, -32602)
        host.initialize(_ours(protocol={"min": 1, "max": 999}, fieldOfTheFuture=1))
        host.alive()


def _after_shutdown(kit: HostKit) -> None:
    with kit.fresh() as host:
        expect(host.result("shutdown") is None, "shutdown has a result")
        host.say(request(1, "no/such", {}), request(2, "shutdown"), request(3, "initialize", {}))
        for id_ in (1, 2, 3):
            _refused(host, id_, -32600)


def _shutdown_exit(kit: HostKit) -> None:
    """Stdin stays open: the host must not wait for its end."""
    with kit.fresh() as host:
        host.result("shutdown", None)
        host.tell("exit")
        host.gone(ENDS_S, 0)
    with kit.fresh() as host:
        host.say(request(1, "shutdown"), notification("exit"))
        host.gone(ENDS_S, 0)
        expect(host.answers(1), "shutdown is not answered when exit follows at once")


def _exit_alone(kit: HostKit) -> None:
    with kit.fresh() as host:
        host.tell("exit")
        host.gone(ENDS_S, 1)
    with kit.bare() as host:
        host.tell("exit", None)
        host.gone(ENDS_S, 1)


def _eof(kit: HostKit) -> None:
    with kit.fresh() as host:
        host.child.close_stdin()
        host.gone(ENDS_S, 0)
    with kit.bare() as host:
        host.child.close_stdin()
        host.gone(ENDS_S, 0)
    with kit.fresh() as host:
        host.write(frame(request(1, "no/such", {}))[:-5])
        host.child.close_stdin()
        host.gone(ENDS_S, 0, 1)


def _closed_reader(kit: HostKit) -> None:
    with kit.fresh() as host:
        host.child.close_stdout()
        host.say(request(1, "no/such", {}))
        code = host.gone(ENDS_S)
        expect(code >= 0, "it died of a signal", code=code)


def _signal(*numbers: signal.Signals, code: int) -> Check:
    def check(kit: HostKit) -> None:
        with kit.fresh() as host:
            for number in numbers:
                host.child.signal(number)
            host.gone(ENDS_S, code)

    return check


def _process_id(kit: HostKit) -> None:
    """Stdin stays open, held by somebody who outlives the client."""
    client = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with kit.bare() as host:
            host.initialize({**INITIALIZE, "processId": client.pid})
            host.alive()
            client.kill()
            client.wait()
            host.gone(ENDS_S)
    finally:
        client.kill()
        client.communicate()


def _header_short(kit: HostKit) -> None:
    """A length that is too short cuts a message: the rest is nonsense between two headers."""
    with kit.fresh() as host:
        body = frame(request(1, "no/such", {})).partition(b"\r\n\r\n")[2]
        host.write(b"Content-Length: %d\r\n\r\n%b" % (len(body) - 3, body))
        host.say(request(9, "no/such", {}))
        host.wait(lambda: bool(host.answers(None)), "answer to a message that was cut")
        code = (host.answers(None)[0].get("error") or {}).get("code")
        expect(code == -32700, "a cut message is not refused with -32700", code=code)
        host.child.pump(lambda: bool(host.answers(9)), ENDS_S)
        if not host.answers(9):
            expect(host.gone(ENDS_S) != 0, "what follows is lost without a word")


PROMISES: tuple[Promise[HostKit], ...] = (
    Promise(
        id="base.initialize",
        text="An editor's InitializeParams are accepted, with null and fields of the future.",
        checks=(_initialize,),
    ),
    Promise(
        id="base.announce",
        text="`initialize` announces protocol range, schema revision, methods and limits.",
        checks=(_announce,),
    ),
    Promise(
        id="base.before-initialize",
        text="A request before `initialize` is refused with -32002; then it still works.",
        checks=(_before,),
    ),
    Promise(
        id="base.wrong-initialize",
        text="Wrong params of `initialize` are -32602 with data.path, and may be sent again.",
        checks=(_wrong_first,),
    ),
    Promise(
        id="base.initialize-once",
        text="A second `initialize` is refused with -32600.",
        checks=(_twice,),
    ),
    Promise(
        id="base.negotiation",
        text="A client of another protocol is refused as unsupported, and may try again.",
        checks=(_negotiation,),
    ),
    Promise(
        id="base.after-shutdown",
        text="`shutdown` answers null; every request after it is refused with -32600.",
        checks=(_after_shutdown,),
    ),
    Promise(
        id="base.shutdown-exit",
        text="`shutdown` and `exit` end it with code 0, though stdin stays open.",
        checks=(_shutdown_exit,),
    ),
    Promise(
        id="base.exit-alone",
        text="`exit` without `shutdown` ends it with code 1.",
        checks=(_exit_alone,),
    ),
    Promise(
        id="base.eof",
        text="The end of stdin ends it, whenever it comes.",
        checks=(_eof,),
    ),
    Promise(
        id="base.closed-reader",
        text="A client that closed its end is noticed at the next answer, and ends it.",
        checks=(_closed_reader,),
    ),
    Promise(
        id="base.sigterm",
        text="SIGTERM ends it with code 143.",
        checks=(_signal(signal.SIGTERM, code=143),),
    ),
    Promise(
        id="base.sigint",
        text="SIGINT, also twice at once, ends it with code 130.",
        checks=(
            _signal(signal.SIGINT, code=130),
            _signal(signal.SIGINT, signal.SIGINT, code=130),
        ),
    ),
    Promise(
        id="base.sighup",
        text="SIGHUP ends it with code 129.",
        checks=(_signal(signal.SIGHUP, code=129),),
    ),
    Promise(
        id="base.process-id",
        text="The death of `processId` ends it, though somebody holds its stdin.",
        checks=(_process_id,),
    ),
    Promise(
        id="base.header-short",
        text="A length that is too short is -32700; then the next header is found, or it ends.",
        checks=(_header_short,),
    ),
)
