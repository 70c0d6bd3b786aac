"""The host itself: life cycle, status, approvals, artifacts."""

from typing import Any, Literal

import msgspec

from .base import AtMs, Count, Id, IdempotencyKey, Params, Result, SessionNotification


class Loose(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of payloads that LSP defines: unknown fields are ignored, as LSP wants."""


class ClientInfo(Loose, frozen=True):
    """Who attaches."""

    name: str
    version: str | None = None


class InitializeParams(Loose, frozen=True):
    """Plain LSP InitializeParams; our part travels in `capabilities.experimental.rlm`."""

    process_id: int | None = None
    client_info: ClientInfo | None = None
    capabilities: dict[str, Any] | None = None
    root_uri: str | None = None
    workspace_folders: list[dict[str, Any]] | None = None
    initialization_options: Any = None
    locale: str | None = None
    trace: str | None = None


class ServerInfo(Result, frozen=True):
    """Who answers."""

    name: str
    version: str


class ProtocolRange(Result, frozen=True):
    """Major protocol numbers that the host speaks."""

    min: int
    max: int


class Limits(Result, frozen=True):
    """What the host accepts on this connection."""

    max_message_bytes: int
    max_in_flight: int


class RlmCapabilities(Result, frozen=True):
    """Our part of the initialize result, under `capabilities.experimental.rlm`."""

    protocol: ProtocolRange
    schema_revision: int
    methods: tuple[str, ...]
    limits: Limits


class InitializeResult(Result, frozen=True):
    """LSP InitializeResult."""

    capabilities: dict[str, Any]
    server_info: ServerInfo


class QueueStatus(Result, frozen=True):
    """Unsent bytes of all attachments, and bytes dropped for slow ones since the start."""

    bytes: Count
    dropped: Count


class HostStatusResult(Result, frozen=True):
    """What the host holds now."""

    version: str
    pid: int
    uptime_ms: Count
    sessions: Count
    kernels: Count
    runs: Count
    queues: QueueStatus
    rss_bytes: Count
    home: str


class HostStopParams(Params, frozen=True):
    """Stop everything: after the answer no provider request starts."""

    session_id: Id | None = None
    idempotency_key: IdempotencyKey | None = None


class HostStopResult(Result, frozen=True):
    """What was stopped."""

    sessions: Count


class SchemaResult(Result, frozen=True):
    """The OpenRPC document of this host."""

    openrpc: dict[str, Any]


class SetTraceParams(Loose, frozen=True):
    """LSP `$/setTrace`."""

    value: Literal["off", "messages", "verbose"]


class CancelParams(Loose, frozen=True):
    """LSP `$/cancelRequest`."""

    id: int | str


class ArtifactReadParams(Params, frozen=True):
    """Read a piece of an artifact. Offsets and limits are bytes."""

    session_id: Id
    id: Id
    offset: Count = 0
    limit: Count = 256 * 1024


class ArtifactReadResult(Result, frozen=True):
    """UTF-8 text is given as `text`, cut at a character; anything else as base64 `data`."""

    size_bytes: Count
    offset: Count
    next_offset: Count | None = None
    text: str | None = None
    data: bytes | None = None


Decision = Literal["allow", "deny", "expired", "cancelled"]
"""How an approval ended. Only `allow` allows."""


class ApprovalRequest(Params, frozen=True):
    """
    Host -> client: may this happen? The first answer of any client wins.

    Every client of the session and of its ancestors is asked, again when it attaches. `detail` of a
    cell is `{code}`, of a spawn `{prompt, options}`, of a tool `{name, arguments}`.
    """

    session_id: str
    approval_id: str
    what: Literal["cell", "spawn", "tool"]
    detail: dict[str, Any]
    expires_at_ms: AtMs


class ApprovalAnswer(Params, frozen=True):
    """A client's answer."""

    decision: Literal["allow", "deny"]
    reason: str | None = None


class ApprovalResolved(SessionNotification, frozen=True):
    """The approval is settled; nobody needs to answer any more. Told to all who were asked."""

    approval_id: str
    decision: Decision


class ToolCallRequest(Params, frozen=True):
    """
    Host -> client: run one of the client's tools for a cell. It is asked once, and never again.

    The client that declared the tools is asked, else the first that knows this method. The
    arguments fit the tool's `inputSchema`. `call_id` is the id of the `toolCall` item.
    """

    session_id: str
    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolCallAnswer(Params, frozen=True):
    """The tool's value, or what went wrong."""

    result: Any = None
    error: str | None = None
