"""What `initialize` answers: a static table, so that no language-server library is loaded."""

from typing import Any

import msgspec

from rlm_protocol import __version__
from rlm_protocol.errors import InvalidParams, Unsupported
from rlm_protocol.framing import UNDECODABLE, decode_error
from rlm_protocol.host import (
    InitializeParams,
    InitializeResult,
    Limits,
    Loose,
    ProtocolRange,
    RlmCapabilities,
    ServerInfo,
)
from rlm_protocol.limits import CLIENT_IN_FLIGHT, CLIENT_MESSAGE_BYTES
from rlm_protocol.methods import PROTOCOL_MAX, PROTOCOL_MIN, SCHEMA_REVISION

from .lsp import server_capabilities

LIFE_CYCLE = ("initialize", "shutdown")


class ClientRange(Loose, frozen=True):
    """Protocol numbers that a client speaks."""

    min: int
    max: int


class ClientCapabilities(Loose, frozen=True):
    """A client's part of `capabilities.experimental.rlm`; all of it may be missing."""

    protocol: ClientRange = ClientRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX)
    experimental: bool = False


def client_capabilities(params: InitializeParams) -> ClientCapabilities:
    """
    Read what the client says of us.

    Raises:
        InvalidParams: it says something that is not what it should be.
        Unsupported: client and host have no protocol number in common.
    """
    experimental = (params.capabilities or {}).get("experimental")
    ours = experimental.get("rlm") if isinstance(experimental, dict) else None
    try:
        said = msgspec.convert(ours or {}, ClientCapabilities)
    except UNDECODABLE as why:
        raise InvalidParams(
            f"The client's capabilities cannot be read: {decode_error(why)}.",
            path="$.capabilities.experimental.rlm",
        ) from None
    if said.protocol.max < PROTOCOL_MIN or said.protocol.min > PROTOCOL_MAX:
        raise Unsupported(
            f"This host speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, the client "
            f"{said.protocol.min} to {said.protocol.max}.",
            min=PROTOCOL_MIN,
            max=PROTOCOL_MAX,
        )
    return said


def initialize_result(params: InitializeParams, offered: frozenset[str]) -> InitializeResult:
    """Give the answer to `initialize`; `offered` are the methods that have a handler."""
    client_capabilities(params)
    rlm = RlmCapabilities(
        protocol=ProtocolRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
        schema_revision=SCHEMA_REVISION,
        methods=tuple(sorted({*offered, *LIFE_CYCLE})),
        limits=Limits(max_message_bytes=CLIENT_MESSAGE_BYTES, max_in_flight=CLIENT_IN_FLIGHT),
    )
    capabilities: dict[str, Any] = {**server_capabilities(params), "experimental": {"rlm": rlm}}
    return InitializeResult(
        capabilities=capabilities,
        server_info=ServerInfo(name="rlm-host", version=__version__),
    )
