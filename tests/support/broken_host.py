"""
Hosts that break one promise each: `python -m support.broken_host NAME`.

Each mutant is our own host with one behaviour taken out or replaced; the conformance kit must name
the exchange that shows it.
"""

import sys
from collections.abc import Callable

from rlm_host import app
from rlm_host.faces import cli_stdio
from rlm_host.rpc import attachment, claim, connection, hosting, lifetime
from rlm_protocol import errors, framing, rpc

MUTANTS: dict[str, tuple[str, Callable[[], None]]] = {}
"""Name -> (the exchange that must catch it, what breaks the host)."""

Connection = connection.Connection
ClientAttachment = attachment.ClientAttachment


def mutant(caught_by: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def enter(breaks: Callable[[], None]) -> Callable[[], None]:
        MUTANTS[breaks.__name__] = (caught_by, breaks)
        return breaks

    return enter


@mutant("F1")
def header_case_matters() -> None:
    real = framing.HeaderReceiver._length_of
    framing.HeaderReceiver._length_of = lambda self, block: real(
        self, block if b"Content-Length" in block else b""
    )


@mutant("A1")
def silent_without_params() -> None:
    real = Connection._requested
    Connection._requested = lambda self, r: (
        None if r.method == "host/status" and bytes(r.params) == b"{}" else real(self, r)
    )


@mutant("A1")
def answers_twice() -> None:
    real = ClientAttachment._send

    def send(self, method, frame, payload=None):
        real(self, method, frame, payload)
        if b'"result"' in frame:
            real(self, method, frame, payload)

    ClientAttachment._send = send


@mutant("A2")
def prints_into_the_stream() -> None:
    real = Connection._dispatch

    def dispatch(self, request):
        self._endpoint.write(memoryview(b"debug: here we are\n"))
        real(self, request)

    Connection._dispatch = dispatch


@mutant("B2")
def bad_json_is_swallowed() -> None:
    real = rpc.RpcPeer.receive

    def receive(self, frame):
        event = real(self, frame)
        quiet = isinstance(event, rpc.Violation)
        return rpc.Violation(event.reason) if quiet else event

    rpc.RpcPeer.receive = receive


@mutant("M1")
def unknown_is_invalid() -> None:
    connection.MethodNotFound = errors.InvalidRequest


@mutant("N1")
def notifications_are_answered() -> None:
    real = Connection._notified

    def notified(self, event):
        real(self, event)
        if not event.method.startswith("init"):
            self._reply_without_id(errors.MethodNotFound())

    Connection._notified = notified


@mutant("L1")
def serves_before_initialize() -> None:
    real = Connection.__init__

    def init(self, *args, **kwargs):
        real(self, *args, **kwargs)
        self._initialized = True

    Connection.__init__ = init


@mutant("L6")
def serves_after_shutdown() -> None:
    requested = Connection._requested

    def forgetful(self, request):
        self._shutdown = False
        requested(self, request)

    Connection._requested = forgetful


@mutant("L9")
def exit_is_always_0() -> None:
    real = lifetime.Lifetime.end
    lifetime.Lifetime.end = lambda self, code, reason: real(self, 0, reason)


@mutant("X1")
def ignores_the_end_of_stdin() -> None:
    real = Connection._received
    Connection._received = lambda self, data: real(self, data) if data else self._stop_reading()


@mutant("X6")
def ignores_ctrl_c() -> None:
    real = lifetime.Lifetime._signalled
    lifetime.Lifetime._signalled = lambda self, number: None if number == 2 else real(self, number)


@mutant("X9")
def does_not_watch_its_client() -> None:
    async def follow(self, pid):
        return

    lifetime.Lifetime.follow = follow


@mutant("H2")
def waits_for_a_header_it_cannot_read() -> None:
    real = Connection._end
    Connection._end = lambda self, reason, *, clean: (
        real(self, reason, clean=clean) if clean else None
    )


@mutant("P1")
def a_large_message_ends_it() -> None:
    real = Connection._reply_without_id

    def reply(self, error):
        real(self, error)
        self._end("too large", clean=False)

    Connection._reply_without_id = reply


@mutant("P3")
def speaks_every_protocol() -> None:
    from rlm_host.rpc import capabilities

    capabilities.PROTOCOL_MIN, capabilities.PROTOCOL_MAX = -1, 10_000


@mutant("O6")
def tells_clients_its_traceback() -> None:
    real = errors.to_jsonrpc

    def to_jsonrpc(error):
        said = real(error)
        return {**said, "data": {**said["data"], "traceback": "Traceback (most recent call last)"}}

    rpc.to_jsonrpc = to_jsonrpc


@mutant("O7")
def does_not_say_where() -> None:
    connection._invalid = lambda reason: errors.InvalidParams()


def main() -> int:
    fds = claim.claim_stdio()
    MUTANTS[sys.argv[1]][1]()
    assert hosting.Connection is Connection
    return cli_stdio.run(fds, [], app)


if __name__ == "__main__":
    sys.exit(main())
