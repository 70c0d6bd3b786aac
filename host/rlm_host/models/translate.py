"""
Our transcript to the vendors' library and its answers back. Imports the library when it is used.

The library's types do not leave models/. What a vendor must see again, such as a signature, goes
into the transcript as opaque bytes: the library's own JSON of that answer.
"""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from .failures import Fault, clean
from .prices import Price, cost_nano_usd
from .provider import (
    UNMEASURED,
    AssistantMessage,
    Call,
    Done,
    Event,
    Request,
    Stop,
    Text,
    Think,
    ToolResult,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from pydantic_ai import messages as library
    from pydantic_ai.usage import RequestUsage

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every vendor takes as a tool's name: another one would have all later requests refused."""
TOKENS_MAX = 2**53
"""A count beyond this is no count of tokens: JSON readers would not even agree on it."""


def to_library(request: Request) -> "list[library.ModelMessage]":
    """
    Give the conversation as the library takes it.

    Results come before what a person said meanwhile: the vendors want them next to their calls.
    The same transcript always gives the same messages, so a longer one begins with a shorter one.
    """
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    given: list[library.ModelMessage] = []
    results: list[library.ModelRequestPart] = []
    said: list[library.ModelRequestPart] = []

    def flush() -> None:
        if results or said:
            parts = [*results, *said]
            given.append(ModelRequest(parts=parts, instructions=request.instructions or None))
            results.clear()
            said.clear()

    for message in request.messages:
        match message:
            case UserMessage():
                said.append(UserPromptPart(content=message.text))
            case ToolResult():
                results.append(
                    ToolReturnPart(
                        tool_name=message.name,
                        content=message.text,
                        tool_call_id=message.call_id,
                        outcome="failed" if message.is_error else "success",
                    )
                )
            case AssistantMessage():
                flush()
                given.append(_answer_to_library(message, request.model))
    flush()
    return given


def deltas(event: object) -> Iterator[Event]:
    """Give the text and the thinking in one event of the library; calls come with the end."""
    from pydantic_ai.messages import (
        PartDeltaEvent,
        PartStartEvent,
        TextPart,
        TextPartDelta,
        ThinkingPart,
        ThinkingPartDelta,
    )

    match event:
        case PartStartEvent(part=TextPart(content=text)) if text:
            yield Text(delta=clean(text))
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
            yield Text(delta=clean(text))
        case PartStartEvent(part=ThinkingPart(content=thought)) if thought:
            yield Think(delta=clean(thought))
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=thought)) if thought:
            yield Think(delta=clean(thought))


def ending(response: "library.ModelResponse", prices: tuple[Price, ...]) -> list[Event]:
    """
    Give the calls of a stream that ended cleanly, and `Done`.

    Calls wait for this place because only the finish reason says that their arguments are whole.
    An answer that was cut off executes nothing, so it gives no calls.

    Raises:
        Fault: `connection` without a finish reason; `bad_output` for arguments that are no
            JSON object, for a call that no vendor would take back in the next request, and for a
            promised one that did not come; `server` for a failed answer.
    """
    stop = _stop(response)
    calls = [] if stop in ("length", "content_filter") else _calls(response)
    if stop == "tool_calls" and not calls:
        raise Fault("bad_output", "The answer promised a call and made none.")
    if calls:
        stop = "tool_calls"  # some servers say "stop" after a call
    opaque = _opaque(response, calls) if stop in ("end", "tool_calls") else b""
    return [*calls, Done(stop=stop, usage=_usage(response.usage, prices), opaque=opaque)]


def _stop(response: "library.ModelResponse") -> Stop:
    said = (response.provider_details or {}).get("finish_reason")
    if not said and response.finish_reason != "content_filter":
        # The library takes a stream that just ends for a complete one.
        raise Fault("connection", "The stream ended without a finish reason.")
    match response.finish_reason:
        case "stop":
            return "end"
        case "tool_call":
            return "tool_calls"
        case "length" | "content_filter":
            return response.finish_reason
        case "error":
            raise Fault("server", "The vendor says that the answer failed.")
        case None:
            raise Fault("bad_output", f"The finish reason {said!r} is unknown.")


def _calls(response: "library.ModelResponse") -> list[Call]:
    from pydantic_ai.messages import ToolCallPart

    parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
    if len({part.tool_call_id for part in parts}) < len(parts):
        raise Fault("bad_output", "Two calls of the answer have the same id.")
    calls = []
    for part in parts:
        if not TOOL_NAME.fullmatch(part.tool_name):
            raise Fault("bad_output", f"No tool can be called {clean(part.tool_name)[:80]!r}.")
        calls.append(Call(id=part.tool_call_id, name=part.tool_name, arguments=_arguments(part)))
    return calls


def _arguments(part: "library.ToolCallPart") -> dict[str, Any]:
    try:
        arguments = part.args_as_dict(raise_if_invalid=True)
        # The library also takes NaN, and would hand out {"INVALID_JSON": …} for broken text.
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, AssertionError, RecursionError) as why:
        raise Fault(
            "bad_output",
            f"The arguments of the call of {part.tool_name!r} are not a JSON object.",
        ) from why
    return arguments


def _usage(used: "RequestUsage", prices: tuple[Price, ...]) -> Usage:
    cached = (used.cache_read_tokens, used.cache_write_tokens)
    counts = (used.input_tokens, used.output_tokens, *cached)
    if not all(type(count) is int and 0 <= count <= TOKENS_MAX for count in counts):
        return UNMEASURED  # the library passes on whatever number the server says
    if used.unmeasured_requests or not any(counts[:2]) or sum(cached) > used.input_tokens:
        return UNMEASURED
    counted = Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
    )
    return msgspec.structs.replace(counted, cost_nano_usd=cost_nano_usd(prices, counted))


def _answer_to_library(message: AssistantMessage, model: str) -> "library.ModelResponse":
    from pydantic import ValidationError
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    if message.opaque and message.model.lower() == model.lower():
        try:
            (kept,) = ModelMessagesTypeAdapter.validate_json(message.opaque)
        except (ValidationError, ValueError):
            kept = None  # written by another version of the library: text and calls remain
        if isinstance(kept, ModelResponse):
            return kept
    return ModelResponse(parts=_plain_parts(message.text, message.calls))


def _plain_parts(text: str, calls: tuple[Call, ...]) -> "list[library.ModelResponsePart]":
    from pydantic_ai.messages import TextPart, ToolCallPart

    parts: list[library.ModelResponsePart] = [TextPart(content=text)] if text else []
    parts += [
        ToolCallPart(tool_name=call.name, args=call.arguments, tool_call_id=call.id)
        for call in calls
    ]
    return parts


def _opaque(response: "library.ModelResponse", calls: list[Call]) -> bytes:
    """Give what the transcript itself cannot hold, b"" when it holds everything."""
    from dataclasses import replace
    from datetime import UTC, datetime

    from pydantic_ai.messages import ModelMessagesTypeAdapter, TextPart, ThinkingPart, ToolCallPart
    from pydantic_ai.usage import RequestUsage

    def kept_part(part: "library.ModelResponsePart") -> "library.ModelResponsePart":
        if isinstance(part, TextPart | ThinkingPart):
            return replace(part, content=clean(part.content))
        if type(part) is ToolCallPart and part.provider_name is part.id is None:
            return ToolCallPart(part.tool_name, part.args_as_dict(), part.tool_call_id)
        return part

    parts = [kept_part(part) for part in response.parts]
    text = "".join(part.content for part in parts if isinstance(part, TextPart))
    if parts == _plain_parts(text, tuple(calls)):
        return b""
    # Time and usage are the session's records; without them the same answer gives the same bytes.
    kept = replace(
        response, parts=parts, usage=RequestUsage(), timestamp=datetime.fromtimestamp(0, UTC)
    )
    return ModelMessagesTypeAdapter.dump_json([kept], exclude_none=True)
