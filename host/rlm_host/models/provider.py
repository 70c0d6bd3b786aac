"""
The seam between a session and whatever answers it: one request in, a stream of events out.

Everything a session knows about models passes through here; vendors, keys and HTTP stay behind it.
The transcript is ours. What a vendor needs to see again (signatures, ids) rides along as opaque
bytes that only the provider of the same model reads.
"""

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol, get_args

import msgspec

Thinking = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
THINKING_LEVELS: tuple[Thinking, ...] = get_args(Thinking)
"""Every level, from least to most."""

Stop = Literal["end", "tool_calls", "length", "content_filter"]
"""Why a complete answer ended. A stream that breaks off has no `Done` and so no stop reason."""

ErrorKind = Literal[
    "auth",
    "rate_limit",
    "quota",
    "overloaded",
    "server",
    "connection",
    "timeout",
    "context_overflow",
    "not_found",
    "rejected",
    "content_filter",
    "bad_output",
    "unknown",
]

RETRYABLE: frozenset[ErrorKind] = frozenset(
    {"rate_limit", "overloaded", "server", "connection", "timeout", "bad_output"}
)
"""Kinds after which the same request can succeed unchanged. Whether to retry is the session's."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool that the model may call; `schema` is the JSON Schema of its arguments object."""

    name: str
    description: str
    schema: dict[str, Any]


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """The next piece of the answer's text. Never empty."""

    delta: str


class Think(msgspec.Struct, frozen=True, kw_only=True, tag="think"):
    """The next piece of the model's visible reasoning. Never empty."""

    delta: str


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """
    One complete tool call: `arguments` was a whole JSON object when it arrived.

    It may run only after `Done`: a stream that breaks off later takes its calls back. An answer cut
    off by its length or by a filter has no calls, lest half of its plan is executed.
    """

    id: str
    name: str
    arguments: dict[str, Any]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one answer took.

    `input_tokens` is the whole prompt, `cache_read_tokens` and `cache_write_tokens` are parts of
    it. `measured` is false when the vendor reported no usage: then every count is 0 and means
    nothing. `cost_nano_usd` is None when the usage or the price is unknown, never 0 in its place.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_nano_usd: int | None = None
    measured: bool = True


UNMEASURED = Usage(measured=False)


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """
    The answer is complete. Always the last event, exactly once, and absent after an error.

    `opaque` belongs into this turn's `AssistantMessage` unread; `b""` when the vendor needs
    nothing back.
    """

    stop: Stop
    usage: Usage
    opaque: bytes = b""


Event = Text | Think | Call | Done


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag="user"):
    """What a person, a parent or a notice said to the model."""

    text: str


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag="assistant"):
    """
    One complete answer of a model.

    `model` is the selector that produced it. `opaque` is that answer's `Done.opaque`; a provider
    reads it only when `model` is the model now asked, else it sends text and calls alone.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    opaque: bytes | None = None
    model: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, tag="tool_result"):
    """What came of one call. Every call of an answer has exactly one, before the next answer."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


Message = UserMessage | AssistantMessage | ToolResult


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """
    Everything one answer depends on, so that its canonical JSON can be hashed and compared.

    `model` is an exact `provider/model` selector. `thinking` None leaves the level to the model.
    """

    model: str
    messages: tuple[Message, ...]
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    thinking: Thinking | None = None
    max_output_tokens: int | None = None


class ProviderError(Exception):
    """
    A request that got no complete answer. Not a wire error: the session decides what it becomes.

    `kind` is what callers switch on, `retryable` follows from it. `retry_after_ms` is the vendor's
    own wish. `partial` says that events had already been yielded: they are void, and no call among
    them may run. `message` never contains a credential.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        retry_after_ms: int | None = None,
        status: int | None = None,
        partial: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.status = status
        self.partial = partial

    @property
    def retryable(self) -> bool:
        """Whether the same request can succeed later, unchanged."""
        return self.kind in RETRYABLE


class Provider(Protocol):
    """Answers requests. One object serves any number of requests side by side."""

    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """
        Send the request once and yield events as they arrive, `Done` last.

        It never retries by itself: one call is one request on the wire at most. Cancelling the
        task, or closing the generator, closes the request; iterate it inside
        `contextlib.aclosing`, so that an error of the consumer closes it at once too.

        Raises:
            ProviderError: there is no complete answer; a stream without its finish reason, or one
                that ends inside a call's arguments, counts as none.
        """
        ...
