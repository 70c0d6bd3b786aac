"""What two vendors say on the wire, as lists of server-sent events. Pure: an answer in, bytes out."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Dialect = Literal["chat", "responses", "messages"]
Stop = Literal["end", "tool_calls", "length", "content_filter"]

PIECE = 6


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens as the test means them: `input` is the whole prompt, the cached ones are parts of it."""

    input: int = 100
    output: int = 20
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """
    One complete answer, and after it the ways in which it can go wrong.

    `events` counts from 0 in the list of events of the dialect. `stop` None takes what fits the
    calls. `raw_arguments` replaces the arguments of every call by this text.
    """

    text: str = ""
    think: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    stop: Stop | None = None
    usage: Usage | None = field(default_factory=Usage)
    raw_arguments: str | None = None

    body: bytes | None = None
    """Sent as it is in place of the events."""
    status: int = 200
    error_type: str = ""
    error_code: str = ""
    error_message: str = "the mock says so"
    headers: tuple[tuple[str, str], ...] = ()

    error_event_after: int | None = None
    """An error event takes the place of this event; the stream ends cleanly after it."""
    garbage_at: int | None = None
    """An event that is not JSON is put in before this one."""
    end_after: int | None = None
    """The stream ends cleanly after so many events."""
    drop_after: int | None = None
    """The connection is cut after so many events."""
    stall_after: int | None = None
    """Nothing more comes after so many events, until the client leaves."""
    pings: bool = False
    """While it stalls, it says that it is alive."""
    hang: bool = False
    """Not even headers come, until the client leaves."""
    wait_s: float = 0
    """Pause before every event."""

    @property
    def why(self) -> Stop:
        """Why it ends."""
        return self.stop or ("tool_calls" if self.calls else "end")

    def arguments(self, given: dict[str, Any]) -> str:
        """Give the arguments of a call as they go over the wire."""
        return json.dumps(given) if self.raw_arguments is None else self.raw_arguments


def events(dialect: Dialect, answer: Answer, model: str, turn: int) -> list[bytes]:
    """Give the events of an answer, its faults that lie in events included. `turn` makes ids new."""
    if answer.body is not None:
        return [answer.body]
    make = {"chat": _chat, "responses": _responses, "messages": _messages}[dialect]
    whole = list(make(answer, model, turn))
    if answer.error_event_after is not None:
        whole = [*whole[: answer.error_event_after], _error_event(dialect, answer)]
    if answer.garbage_at is not None:
        name = b"event: content_block_delta\n" if dialect == "messages" else b""
        whole.insert(answer.garbage_at, name + b'data: {"broken\n\n')
    if answer.end_after is not None:
        whole = whole[: answer.end_after]
    return whole


def error_body(dialect: Dialect, answer: Answer) -> dict[str, Any]:
    """Give the body of an HTTP error."""
    error = {"type": answer.error_type or "mock_error", "message": answer.error_message}
    if dialect == "messages":
        return {"type": "error", "error": error}
    return {"error": {**error, "code": answer.error_code or None, "param": None}}


def _error_event(dialect: Dialect, answer: Answer) -> bytes:
    kind, code, message = answer.error_type, answer.error_code, answer.error_message
    if dialect == "messages":
        return _named("error", {"error": {"type": kind, "message": message}})
    if dialect == "responses":
        return _named("error", {"code": code or kind, "message": message, "param": None})
    return _data({"error": {"message": message, "type": kind, "code": code or None}})


def _cut(text: str) -> Iterator[str]:
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))


def _data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _named(kind: str, value: dict[str, Any]) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **value})


def _chat(answer: Answer, model: str, turn: int) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({**head, "choices": [choice]})

    head = {"id": f"c{turn}", "object": "chat.completion.chunk", "created": 1, "model": model}
    yield chunk({"role": "assistant", "content": ""})
    for piece in _cut(answer.think):
        yield chunk({"reasoning_content": piece})
    for piece in _cut(answer.text):
        yield chunk({"content": piece})
    for n, (name, given) in enumerate(answer.calls):
        function = {"name": name, "arguments": ""}
        call = {"index": n, "id": f"call_{turn}_{n}", "type": "function", "function": function}
        yield chunk({"tool_calls": [call]})
        for piece in _cut(answer.arguments(given)):
            yield chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
    yield chunk({}, "stop" if answer.why == "end" else answer.why)
    if answer.usage is not None:
        used = answer.usage
        counted = {
            "prompt_tokens": used.input,
            "completion_tokens": used.output,
            "total_tokens": used.input + used.output,
            "prompt_tokens_details": {"cached_tokens": used.cache_read},
        }
        yield _data({**head, "choices": [], "usage": counted})
    yield b"data: [DONE]\n\n"


def _messages(answer: Answer, model: str, turn: int) -> Iterator[bytes]:
    def block(index: int, content: dict[str, Any], deltas: list[dict[str, Any]]) -> Iterator[bytes]:
        yield _named("content_block_start", {"index": index, "content_block": content})
        for delta in deltas:
            yield _named("content_block_delta", {"index": index, "delta": delta})
        yield _named("content_block_stop", {"index": index})

    used = answer.usage or Usage(input=0, output=0)
    counted = {
        "input_tokens": used.input - used.cache_read - used.cache_write,
        "cache_read_input_tokens": used.cache_read,
        "cache_creation_input_tokens": used.cache_write,
        "output_tokens": 1,
    }
    message = {
        "id": f"m{turn}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counted,
    }
    yield _named("message_start", {"message": message})
    index = 0
    if answer.think:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(answer.think)]
        deltas.append({"type": "signature_delta", "signature": f"signed-{turn}"})
        yield from block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if answer.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in _cut(answer.text)]
        yield from block(index, {"type": "text", "text": ""}, deltas)
        index += 1
    for n, (name, given) in enumerate(answer.calls):
        call = {"type": "tool_use", "id": f"toolu_{turn}_{n}", "name": name, "input": {}}
        deltas = [
            {"type": "input_json_delta", "partial_json": piece}
            for piece in _cut(answer.arguments(given))
        ]
        yield from block(index, call, deltas)
        index += 1
    reasons = {"end": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    reason = reasons.get(answer.why, "refusal")
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield _named("message_delta", {"delta": delta, "usage": {"output_tokens": used.output}})
    yield _named("message_stop", {})


def _responses(answer: Answer, model: str, turn: int) -> Iterator[bytes]:
    head: dict[str, Any] = {
        "id": f"resp_{turn}",
        "object": "response",
        "created_at": 1,
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    number = iter(range(10**9))

    def event(kind: str, **fields: Any) -> bytes:
        return _named(kind, {"sequence_number": next(number), **fields})

    yield event("response.created", response={**head, "status": "in_progress"})
    done: list[dict[str, Any]] = []
    if answer.think:
        item = {"type": "reasoning", "id": f"rs_{turn}", "summary": [], "status": "in_progress"}
        at = {"item_id": item["id"], "output_index": len(done), "summary_index": 0}
        part = {"type": "summary_text", "text": ""}
        yield event("response.output_item.added", output_index=len(done), item=item)
        yield event("response.reasoning_summary_part.added", **at, part=part)
        for piece in _cut(answer.think):
            yield event("response.reasoning_summary_text.delta", **at, delta=piece)
        yield event("response.reasoning_summary_text.done", **at, text=answer.think)
        whole = {"type": "summary_text", "text": answer.think}
        yield event("response.reasoning_summary_part.done", **at, part=whole)
        item = {**item, "summary": [whole], "encrypted_content": f"sealed-{turn}"}
        yield event("response.output_item.done", output_index=len(done), item=item)
        done.append(item)
    if answer.text:
        item = {"type": "message", "id": f"msg_{turn}", "role": "assistant", "content": []}
        item["status"] = "in_progress"
        at = {"item_id": item["id"], "output_index": len(done), "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": []}
        yield event("response.output_item.added", output_index=len(done), item=item)
        yield event("response.content_part.added", **at, part=part)
        for piece in _cut(answer.text):
            yield event("response.output_text.delta", **at, delta=piece, logprobs=[])
        yield event("response.output_text.done", **at, text=answer.text, logprobs=[])
        part = {**part, "text": answer.text}
        yield event("response.content_part.done", **at, part=part)
        item = {**item, "content": [part], "status": "completed"}
        yield event("response.output_item.done", output_index=len(done), item=item)
        done.append(item)
    for n, (name, given) in enumerate(answer.calls):
        item = {"type": "function_call", "id": f"fc_{turn}_{n}", "call_id": f"call_{turn}_{n}"}
        item |= {"name": name, "arguments": "", "status": "in_progress"}
        at = {"item_id": item["id"], "output_index": len(done)}
        arguments = answer.arguments(given)
        yield event("response.output_item.added", output_index=len(done), item=item)
        for piece in _cut(arguments):
            yield event("response.function_call_arguments.delta", **at, delta=piece)
        if answer.why != "length":
            yield event("response.function_call_arguments.done", **at, arguments=arguments)
            item = {**item, "arguments": arguments, "status": "completed"}
            yield event("response.output_item.done", output_index=len(done), item=item)
        done.append(item)
    complete = answer.why in ("end", "tool_calls")
    last = {**head, "output": done, "status": "completed" if complete else "incomplete"}
    if not complete:
        reason = "max_output_tokens" if answer.why == "length" else "content_filter"
        last["incomplete_details"] = {"reason": reason}
    if answer.usage is not None:
        used = answer.usage
        last["usage"] = {
            "input_tokens": used.input,
            "input_tokens_details": {"cached_tokens": used.cache_read},
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.input + used.output,
        }
    yield event(f"response.{last['status']}", response=last)
