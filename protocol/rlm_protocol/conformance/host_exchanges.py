"""Exchanges that need a host of their own: life cycle, ends, order, limits, negotiation."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

from .host_driver import INITIALIZE, Broken, Host, frame, notification, request
from .host_frames import FATAL, STATUS

Exchange = Callable[[Host], None]
EXCHANGES: dict[str, tuple[str, Exchange]] = {}
"""Id -> (what must hold, the procedure that raises Broken). Each gets a fresh host."""

EDITOR: dict[str, object] = {
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


def exchange(id_: str) -> Callable[[Exchange], Exchange]:
    """Enter a procedure into the table; its docstring is what must hold."""

    def enter(procedure: Exchange) -> Exchange:
        EXCHANGES[id_] = (procedure.__doc__ or "", procedure)
        return procedure

    return enter


# --- life cycle -----------------------------------------------------------------------------------


@exchange("L1")
def before_initialize(host: Host) -> None:
    """A request before initialize is refused with -32002, and initialize still works."""
    host.say(request(1, "host/status"), notification("textDocument/didOpen", {}))
    host.refusal(1, -32002)
    host.initialize()
    host.alive()


@exchange("L2")
def initialize_twice(host: Host) -> None:
    """A second initialize is refused with -32600."""
    host.initialize()
    host.say(request(1, "initialize", INITIALIZE))
    host.refusal(1, -32600)
    host.alive()


@exchange("L3")
def initialize_of_an_editor(host: Host) -> None:
    """An editor's whole InitializeParams is accepted, fields of the future too."""
    host.initialize(EDITOR)
    host.alive()


@exchange("L4")
def initialize_with_null(host: Host) -> None:
    """Initialize with null capabilities is answered (Emacs sends it)."""
    host.initialize({"processId": None, "capabilities": None})
    host.alive()


@exchange("L5")
def announcement(host: Host) -> None:
    """Initialize announces protocol range, schema revision, methods and limits."""
    ours = host.initialize()["capabilities"]["experimental"]["rlm"]
    limits = ours["limits"]
    whole = (
        isinstance(ours["schemaRevision"], int)
        and ours["protocol"]["min"] <= ours["protocol"]["max"]
        and {"initialize", "shutdown", "host/status"} <= set(ours["methods"])
        and limits["maxMessageBytes"] > 0
        and limits["maxInFlight"] > 0
    )
    if not whole:
        raise Broken(f"capabilities.experimental.rlm is {ours}")


@exchange("L6")
def after_shutdown(host: Host) -> None:
    """Shutdown answers null; what comes after it is refused with -32600."""
    host.initialize()
    if host.result("shutdown") is not None:
        raise Broken("shutdown has a result")
    host.say(request(1, "host/status"), request(2, "no/such"), request(3, "shutdown"))
    for id_ in (1, 2, 3):
        host.refusal(id_, -32600)


@exchange("L7")
def shutdown_and_exit(host: Host) -> None:
    """Shutdown and exit end it with code 0, though stdin stays open."""
    host.initialize()
    host.result("shutdown", None)
    host.say(notification("exit"))
    host.ends_with(0)


@exchange("L8")
def shutdown_and_exit_at_once(host: Host) -> None:
    """Shutdown and exit in one write are both obeyed."""
    host.initialize()
    host.say(request(1, "shutdown"), notification("exit"))
    host.answer(1)
    host.ends_with(0)


@exchange("L9")
def exit_alone(host: Host) -> None:
    """Exit without shutdown ends it with code 1."""
    host.initialize()
    host.say(notification("exit"))
    host.ends_with(1)


@exchange("L10")
def exit_first(host: Host) -> None:
    """Exit before initialize ends it with code 1."""
    host.say(notification("exit", None))
    host.ends_with(1)


# --- ends -----------------------------------------------------------------------------------------


@exchange("X1")
def end_of_stdin(host: Host) -> None:
    """The end of stdin ends it with code 0."""
    host.initialize()
    host.stdin.close()
    host.ends_with(0)


@exchange("X2")
def end_of_stdin_at_once(host: Host) -> None:
    """The end of stdin before any byte ends it with code 0."""
    host.stdin.close()
    host.ends_with(0)


@exchange("X3")
def end_inside_a_message(host: Host) -> None:
    """The end of stdin inside a message ends it, with code 0 or 1."""
    host.initialize()
    host.write(STATUS[:-5])
    host.stdin.close()
    host.ends_with(0, 1)


@exchange("X4")
def broken_pipe(host: Host) -> None:
    """A client that does not read any more ends it when it says something."""
    host.initialize()
    host.stdout.close()
    host.write(STATUS)
    if (code := host.wait()) != 0:
        raise Broken(f"exit code {code} instead of 0")


@exchange("X5")
def sigterm(host: Host) -> None:
    """SIGTERM ends it with code 143."""
    host.initialize()
    host.signal(signal.SIGTERM)
    host.ends_with(143)


@exchange("X6")
def sigint(host: Host) -> None:
    """SIGINT ends it with code 130."""
    host.initialize()
    host.signal(signal.SIGINT)
    host.ends_with(130)


@exchange("X7")
def sigint_twice(host: Host) -> None:
    """Two SIGINTs of one Ctrl-C end it in order, with code 130."""
    host.initialize()
    host.signal(signal.SIGINT)
    host.signal(signal.SIGINT)
    host.ends_with(130)


@exchange("X8")
def sighup(host: Host) -> None:
    """SIGHUP ends it with code 129."""
    host.initialize()
    host.signal(signal.SIGHUP)
    host.ends_with(129)


@exchange("X9")
def death_of_the_client(host: Host) -> None:
    """The death of `processId` ends it though its stdin stays open."""
    client = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        host.initialize({**INITIALIZE, "processId": client.pid})
        host.alive()
    finally:
        client.kill()
        client.communicate()
    host.ends_with(0)


# --- frames after which nothing can be read -------------------------------------------------------


def _fatal(data: bytes) -> Exchange:
    def procedure(host: Host) -> None:
        host.initialize()
        host.write(data)
        host.refusal(None, -32700)
        host.ends_with(1)

    return procedure


for _id, _text, _data in FATAL:
    EXCHANGES[_id] = (f"{_text}: -32700, then the end with code 1", _fatal(_data))


@exchange("H10")
def too_short(host: Host) -> None:
    """A length that is too short is answered, and what follows is not waited for."""
    host.initialize()
    body = STATUS.partition(b"\r\n\r\n")[2]
    host.write(b"Content-Length: %d\r\n\r\n%b" % (len(body) - 3, body))
    host.say(request(9, "host/status"))
    host.refusal(None, -32700)
    try:
        host.answer(9)
    except Broken:
        host.ends_with(1)


# --- order and number of answers ------------------------------------------------------------------


@exchange("O1")
def pipelined(host: Host) -> None:
    """500 requests in one write: 500 answers, each once."""
    host.initialize()
    host.say(*(request(n, "host/status") for n in range(500)))
    for n in range(500):
        host.answer(n)
    host.alive()


@exchange("O2")
def byte_by_byte(host: Host) -> None:
    """Bytes that come one by one are put together again."""
    host.initialize()
    host.expect_answer_to("€")
    for byte in frame(request("€", "host/status")):
        host.write(bytes([byte]))
    host.answer("€")


@exchange("O3")
def split_frames(host: Host) -> None:
    """A request is served though the next one has come only in part."""
    host.initialize()
    host.expect_answer_to(7, 8)
    second = frame(request(8, "host/status"))
    host.write(STATUS + second[:30])
    host.answer(7)
    host.write(second[30:])
    host.answer(8)


@exchange("O4")
def id_in_flight(host: Host) -> None:
    """An id in flight is refused with -32600, or was answered before it came again."""
    host.initialize()
    host.say(request("d", "host/schema"), request("d", "host/schema"))
    host.answer("d")
    host.alive()
    answers = [m for m in host.order if m.get("id") == "d"]
    codes = [m["error"]["code"] for m in answers if "error" in m]
    if len(answers) != 2 or codes not in ([], [-32600]):
        raise Broken(f"{len(answers)} answers, errors {codes}")


@exchange("O5")
def late_cancels(host: Host) -> None:
    """A cancel of what is answered already, and one that comes with it, answer once."""
    host.initialize()
    host.say(request(1, "host/schema"), notification("$/cancelRequest", {"id": 1}))
    answer = host.answer(1)
    if "error" in answer and answer["error"]["code"] != -32800:
        raise Broken(f"cancelled with {answer['error']}")
    host.say(notification("$/cancelRequest", {"id": 1}))
    host.alive()


@exchange("O6")
def error_data(host: Host) -> None:
    """Errors carry data.kind and data.retryable, and no traceback."""
    host.initialize()
    for method, params in (("no/such", {}), ("host/status", {"x": 1}), ("host/status", [1])):
        error = host.ask(method, params)["error"]
        data = error.get("data")
        if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
            raise Broken(f"{error} has no data.kind")
        if not isinstance(data.get("retryable"), bool):
            raise Broken(f"{error} has no data.retryable")
        if "Traceback" in str(error) or "traceback" in str(error):
            raise Broken("a traceback goes to the client")


@exchange("O7")
def params_path(host: Host) -> None:
    """-32602 names the place in data.path."""
    host.initialize()
    error = host.ask("host/status", {"colour": 1})["error"]
    if "colour" not in str(error.get("data", {}).get("path")):
        raise Broken(f"{error} does not name the field in data.path")


@exchange("O8")
def unsupported(host: Host) -> None:
    """A declared method that is not offered is refused as unsupported, not as unknown."""
    offered = host.initialize()["capabilities"]["experimental"]["rlm"]["methods"]
    for method in ("session/compact", "repl/snapshot", "loop/fork"):
        if method not in offered:
            error = host.ask(method, {"sessionId": "s", "runId": "r"})["error"]
            if error.get("data", {}).get("kind") != "unsupported":
                raise Broken(f"{method}: {error}")


# --- limits and negotiation -----------------------------------------------------------------------


@exchange("P1")
def too_large(host: Host) -> None:
    """A message over maxMessageBytes is refused as tooLarge; the next one is served."""
    limits = host.initialize()["capabilities"]["experimental"]["rlm"]["limits"]
    size = limits["maxMessageBytes"] + 1
    host.write(b"Content-Length: %d\r\n\r\n" % size)
    chunk = b" " * (1 << 20)
    while size:
        host.write(chunk[:size])
        size -= min(size, len(chunk))
    error = host.answer(None).get("error", {})
    if error.get("data", {}).get("kind") != "tooLarge":
        raise Broken(f"refused as {error}")
    host.alive()


@exchange("P2")
def large(host: Host) -> None:
    """A message of 1 MiB is served."""
    host.initialize()
    host.say(request(1, "host/status", {"x": "y" * (1 << 20)}))
    host.refusal(1, -32602)
    host.alive()


@exchange("P3")
def negotiation(host: Host) -> None:
    """A client of another protocol is refused as unsupported, and may try again."""
    for low, high in ((900, 999), (0, 0)):
        ours = {"protocol": {"min": low, "max": high}}
        params = {**INITIALIZE, "capabilities": {"experimental": {"rlm": ours}}}
        error = host.ask("initialize", params).get("error", {})
        if error.get("data", {}).get("kind") != "unsupported":
            raise Broken(f"protocol {low} to {high}: {error or 'accepted'}")
    host.initialize()
    host.alive()


@exchange("P4")
def bad_capabilities(host: Host) -> None:
    """Capabilities that cannot be read are refused with -32602, and may be sent again."""
    for bad in ({"protocol": 1}, {"protocol": {"min": "1"}}, [1], "x"):
        params = {**INITIALIZE, "capabilities": {"experimental": {"rlm": bad}}}
        host.say(request(1, "initialize", params))
        host.refusal(1, -32602)
    host.initialize()


@exchange("P5")
def schema(host: Host) -> None:
    """Host/schema gives an OpenRPC document that has every announced method."""
    offered = host.initialize()["capabilities"]["experimental"]["rlm"]["methods"]
    document = host.result("host/schema")["openrpc"]
    missing = set(offered) - {method["name"] for method in document["methods"]}
    if missing:
        raise Broken(f"the document lacks {sorted(missing)}")


@exchange("P6")
def write_first(host: Host) -> None:
    """A client that writes without reading is served when it reads."""
    host.initialize()
    os.set_blocking(host.stdin.fileno(), True)
    count = 2_000
    host.expect_answer_to(*range(count))
    host.stdin.write(b"".join(frame(request(n, "host/status")) for n in range(count)))
    answers = [host.answer(n) for n in range(count)]
    refused = [a["error"] for a in answers if "error" in a]
    if any(error.get("data", {}).get("kind") != "overloaded" for error in refused):
        raise Broken(f"refused with {refused[0]}")
    host.alive()
