"""
What a host and a template of kernels say to each other.

One msgpack datagram a message, over a SOCK_SEQPACKET socket; descriptors travel beside it
(SCM_RIGHTS). Orders are answered in their order.
"""

import msgspec

TEMPLATE_FD = "RLM_TEMPLATE_FD"
"""Variable that makes `python -m rlm.repl` a template: number of its end of the socket."""

STALE = 75
"""Exit code of a fork whose template is out of date (EX_TEMPFAIL): start cold."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of every message: immutable, named fields, unknown fields ignored."""


class Prepare(_Message, frozen=True, tag="prepare"):
    """Load what every kernel loads, and these modules; answered by Ready or Refused. Once."""

    preload: tuple[str, ...] = ()


class Fork(_Message, frozen=True, tag="fork"):
    """
    Fork a guard and its kernel; answered by Born or Refused.

    Five descriptors come with it: stdin, stdout, stderr, the guard's control socket, and a socket
    on which the kernel waits for its Birth.
    """


class Retire(_Message, frozen=True, tag="retire"):
    """
    End; what was forked is the host's now. Not answered.

    The end of the link alone does not say so: it is also the first sign of a host that was killed.
    """


class Ready(_Message, frozen=True, tag="ready"):
    """The template can fork."""


class Refused(_Message, frozen=True, tag="refused"):
    """The order was not carried out."""

    reason: str


class Born(_Message, frozen=True, tag="born"):
    """A guard was forked; a pidfd of it comes with this."""

    pid: int


class Gone(_Message, frozen=True, tag="gone"):
    """A guard has ended, and what it had left behind. `code` is negative for a signal."""

    pid: int
    code: int


class Birth(_Message, frozen=True, tag="birth"):
    """What makes a kernel out of a waiting fork. A descriptor of its folder comes with this."""

    environment: tuple[tuple[bytes, bytes], ...]
    """The whole environment, in its order."""


Order = Prepare | Fork | Retire
Told = Ready | Refused | Born | Gone

encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
"""Read what a host says. Raises what `framing.UNDECODABLE` lists."""
decode_told = msgspec.msgpack.Decoder(Told).decode
"""Read what a template says. Raises what `framing.UNDECODABLE` lists."""
decode_birth = msgspec.msgpack.Decoder(Birth).decode
"""Read a birth. Raises what `framing.UNDECODABLE` lists."""
