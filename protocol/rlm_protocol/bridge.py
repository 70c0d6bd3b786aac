"""
What a cell may ask its host: `await rlm.host_request(type, payload)` and the reply's shape.

The envelope is `{"type": T, "payload": {...}}`; a payload key named `type` or `status` can never
reroute a request, because it lies one level below. Fields are snake_case: this is Python's side.
"""

from typing import Any, Literal

import msgspec

from .errors import RlmError


class Payload(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base of request payloads: an unknown field is an error, never ignored."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of reply results."""


class Run(Payload, frozen=True):
    """`rlm.run`: spawn a child. The host checks `options`; one error names all unknown ones."""

    prompt: str
    options: dict[str, Any] = {}


class Handle(Reply, frozen=True):
    """What `rlm()`, `list_subagents()` and `delete_subagent()` return (seed: Python API)."""

    rlm_child_id: str
    name: str
    session_dir: str
    model: str
    status: Literal["queued", "running", "completed", "error", "cancelled", "deleted"]
    active_session_id: str | None = None
    session_id: str | None = None
    result_path: str | None = None


class Handles(Reply, frozen=True):
    """`rlm.list_subagents`: direct children."""

    subagents: tuple[Handle, ...]


class FindModels(Payload, frozen=True):
    """`rlm.find_models`: usable models that match `query`."""

    query: str = ""
    limit: int = 8


class Model(Reply, frozen=True):
    """A model that a spawn may name."""

    selector: str
    name: str
    provider: str
    context_window: int | None = None
    thinking_levels: tuple[str, ...] = ()
    input_nano_usd_per_token: int | None = None
    output_nano_usd_per_token: int | None = None


class Models(Reply, frozen=True):
    """Bounded answer of `rlm.find_models`."""

    models: tuple[Model, ...]


class Empty(Payload, frozen=True):
    """A request without fields: `rlm.list_subagents`, `rlm.family`."""


class FamilyMember(Reply, frozen=True):
    """One agent within reach of messages."""

    relationship: Literal["parent", "sibling", "child"]
    name: str
    id: str
    depth: int
    status: str
    replied_since_task: bool | None = None


class Family(Reply, frozen=True):
    """`rlm.family`: who may be written to; parent first, then siblings, then children, by name."""

    current: FamilyMember | None
    entries: tuple[FamilyMember, ...]


class SendParent(Payload, frozen=True):
    """`rlm.send_parent`."""

    message: str


class SendNamed(Payload, frozen=True):
    """`rlm.send_sibling` and `rlm.send_child`; `name` is a name or an id."""

    name: str
    message: str


class Receipt(Reply, frozen=True):
    """Where a message went."""

    id: str
    target: str
    delivery_status: Literal["delivered", "queued"]
    at_ms: int


class Observe(Payload, frozen=True):
    """`rlm.observe`: the last messages of a child."""

    target: str
    limit: int = 8
    max_chars: int = 800


class ObservedMessage(Reply, frozen=True):
    """One message, cut to `max_chars` code points."""

    index: int
    role: str
    text: str
    truncated: bool = False
    tools: tuple[str, ...] = ()


class Observation(Reply, frozen=True):
    """Summary of a child and its last messages."""

    agent: Handle
    messages: tuple[ObservedMessage, ...]


class Target(Payload, frozen=True):
    """`rlm.info`, `rlm.delete_subagent`: a child by id, session id or unique name."""

    target: str


class SubmitResult(Payload, frozen=True):
    """`rlm.submit_result`: hand in this task's result, once."""

    value: Any


class Submitted(Reply, frozen=True):
    """The stored result."""

    generation: int
    sha256: str
    size_bytes: int


class GetResult(Payload, frozen=True):
    """`rlm.get_result`: read a child's stored result through its contract."""

    target: str
    fields: tuple[str, ...] | None = None
    generation: int | None = None


class ChildResult(Reply, frozen=True):
    """The projected value."""

    value: Any
    generation: int


class CallTool(Payload, frozen=True):
    """`tool.call`: run a tool of the client, `await tools.NAME(...)`."""

    name: str
    arguments: dict[str, Any]


class ToolValue(Reply, frozen=True):
    """What the tool gave."""

    value: Any


class BashFinished(Payload, frozen=True):
    """`bash.finished`: an unobserved background command ended."""

    handle_id: str
    pid: int
    exit_code: int
    duration_ms: int


class BashObserved(Payload, frozen=True):
    """`bash.observed`: the cell has looked at a finished command; its notice is not needed."""

    handle_id: str


class CancelRequest(Payload, frozen=True):
    """`bridge.cancel`: the cell stopped waiting for request `id`."""

    id: str


class Acknowledged(Reply, frozen=True):
    """Nothing to say but that it was taken."""


class BridgeType(msgspec.Struct, frozen=True):
    """One row: a request type, its payload and its reply."""

    name: str
    payload: type[Payload]
    reply: type[Reply]


BRIDGE: dict[str, BridgeType] = {
    row.name: row
    for row in (
        BridgeType("rlm.run", Run, Handle),
        BridgeType("rlm.find_models", FindModels, Models),
        BridgeType("rlm.list_subagents", Empty, Handles),
        BridgeType("rlm.family", Empty, Family),
        BridgeType("rlm.send_parent", SendParent, Receipt),
        BridgeType("rlm.send_sibling", SendNamed, Receipt),
        BridgeType("rlm.send_child", SendNamed, Receipt),
        BridgeType("rlm.observe", Observe, Observation),
        BridgeType("rlm.info", Target, Handle),
        BridgeType("rlm.delete_subagent", Target, Handle),
        BridgeType("rlm.submit_result", SubmitResult, Submitted),
        BridgeType("rlm.get_result", GetResult, ChildResult),
        BridgeType("tool.call", CallTool, ToolValue),
        BridgeType("bash.finished", BashFinished, Acknowledged),
        BridgeType("bash.observed", BashObserved, Acknowledged),
        BridgeType("bridge.cancel", CancelRequest, Acknowledged),
    )
}


def ok(result: object) -> dict[str, Any]:
    """Give the envelope of a successful reply."""
    return {"status": "ok", "result": msgspec.to_builtins(result)}


def failed(error: RlmError) -> dict[str, Any]:
    """Give the envelope of a refused request; the cell raises `rlm.HostError` from it."""
    return {
        "status": "error",
        "error": str(error.message),
        "code": error.code,
        "data": {"kind": error.kind, "retryable": error.retryable, **error.data},
    }
