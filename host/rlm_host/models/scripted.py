"""
The provider that needs no key: a script answers in a model's place, the same way every time.

A script maps what the conversation has shown so far to steps. Everything around it is real:
streaming, calls, usage, cost, errors. What it says is marked as scripted, never as a model's.
"""

import hashlib
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from .prices import Price, cost_nano_usd
from .provider import (
    AssistantMessage,
    Call,
    Done,
    ErrorKind,
    Event,
    Message,
    ProviderError,
    Request,
    Stop,
    Text,
    Think,
    ToolResult,
    Usage,
    UserMessage,
)

PROVIDER = "scripted"
CHARS_PER_TOKEN = 4
PRICES = (
    Price(
        input_nano_usd_per_mtok=1_000_000_000,
        output_nano_usd_per_mtok=4_000_000_000,
        cache_read_nano_usd_per_mtok=100_000_000,
    ),
)
"""Made-up prices of a small hosted model, so that costs and budgets have something to count."""
PIECES = 64
PIECE_CHARS = 16
FAILURES_REMEMBERED = 1000


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of any tool, where a step's plain string calls the one that runs code."""

    name: str
    arguments: dict[str, Any] = {}


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One step: exactly one of `text`, `think`, `call`, `wait_ms`, `usage`, `stop`, `error`.

    `call` is code for the tool that takes code, or a `ToolUse`. `usage` replaces the counted usage
    of this answer; without a cost it is priced. `error` fails the request, together with
    `retry_after_ms`, `status` and `message`; it does so for the first `times` tries of the same
    request and is passed over after that, so that a script can say "fails twice, then answers".
    """

    text: str | None = None
    think: str | None = None
    call: str | ToolUse | None = None
    wait_ms: int | None = None
    usage: Usage | None = None
    stop: Stop | None = None
    error: ErrorKind | None = None
    retry_after_ms: int | None = None
    status: int | None = None
    message: str | None = None
    times: int = 1

    def __post_init__(self) -> None:
        acts = (self.text, self.think, self.call, self.wait_ms, self.usage, self.stop, self.error)
        if sum(act is not None for act in acts) != 1:
            raise ValueError("a step does exactly one thing")
        if self.error is None and (self.retry_after_ms, self.status, self.message, self.times) != (
            None,
            None,
            None,
            1,
        ):
            raise ValueError("retry_after_ms, status, message and times belong to an error")


Script = Callable[[Request], Iterable[Step | dict[str, Any]]]
"""Gives the steps of the next answer. A dict is a `Step` in its JSON form."""


class ScriptedProvider:
    """
    Answers `scripted/NAME` with the script of that name.

    `sleep` waits that many seconds; it is also called with 0 between pieces, so that a scripted
    stream can be cancelled like a real one. The provider remembers how often a request has failed,
    by its content, and nothing else: two identical requests share their failures.
    """

    def __init__(
        self, scripts: Mapping[str, Script], *, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._scripts = {name.lower(): script for name, script in scripts.items()}
        self._sleep = sleep
        self._failures: dict[bytes, int] = {}

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """
        Play the script's steps as a stream of events.

        Raises:
            ProviderError: a step says so; `not_found` for an unknown script; `rejected` for steps
                that are none; `unknown` for a script that raises.
        """
        steps = self._steps(request)
        due = self._due_error(request, steps)
        calls_before = sum(len(_calls_of(message)) for message in request.messages)
        usage, stop, said_chars, calls = None, None, 0, 0
        for step in steps:
            if step is due:
                raise ProviderError(
                    step.error or "unknown",
                    step.message or f"The script says so: {step.error}.",
                    retry_after_ms=step.retry_after_ms,
                    status=step.status,
                    partial=said_chars > 0,
                )
            usage, stop = step.usage or usage, step.stop or stop
            await self._sleep((step.wait_ms or 0) / 1000)
            for event in _events(step, request, call_id=f"call_{calls_before + calls + 1}"):
                calls += isinstance(event, Call)
                said_chars += _event_chars(event)
                yield event
                await self._sleep(0)
        yield Done(
            stop=stop or ("tool_calls" if calls else "end"),
            usage=_priced(usage or count_usage(request, said_chars)),
        )

    def _steps(self, request: Request) -> list[Step]:
        name = request.model.partition("/")[2].lower()
        if name not in self._scripts:
            raise ProviderError("not_found", f"There is no script named {name!r}.", status=404)
        try:
            given = list(self._scripts[name](request))
        except ProviderError:
            raise
        except Exception as why:
            raise ProviderError(
                "unknown", f"The script {name!r} failed: {type(why).__name__}: {why}"
            ) from why
        return read_steps(given)

    def _due_error(self, request: Request, steps: list[Step]) -> Step | None:
        """Give the error that this try of the request runs into, and count the try."""
        errors = [step for step in steps if step.error is not None]
        if not errors:
            return None
        digest = _digest(request)
        tries = passed = self._failures.pop(digest, 0)
        for step in errors:
            if passed < step.times:
                self._failures[digest] = tries + 1
                if len(self._failures) > FAILURES_REMEMBERED:
                    del self._failures[next(iter(self._failures))]
                return step
            passed -= step.times
        return None


def read_steps(given: Iterable[object]) -> list[Step]:
    """
    Give the steps that a script, a file or a message holds.

    Raises:
        ProviderError: `rejected`, and which step is wrong in what.
    """
    steps = []
    for number, one in enumerate(given, 1):
        try:
            steps.append(one if isinstance(one, Step) else msgspec.convert(one, Step))
        except msgspec.ValidationError as why:
            raise ProviderError("rejected", f"Step {number} of the script: {why}") from why
    return steps


def answers(steps: Iterable[Step]) -> list[list[Step]]:
    """
    Cut a play for several answers into its answers.

    An answer ends with its `stop`, and with its last call, for the model has to see the results.
    Calls in a row belong to one answer; a `stop` between them makes it two.
    """
    cut: list[list[Step]] = [[]]
    for step in steps:
        belongs = step.call is not None or step.usage is not None or step.stop is not None
        called = any(earlier.call is not None for earlier in cut[-1])
        stopped = any(earlier.stop is not None for earlier in cut[-1])
        if stopped or (called and not belongs):
            cut.append([])
        cut[-1].append(step)
    return [answer for answer in cut if answer]


def this_turn(request: Request) -> list[Message]:
    """Give the messages since the last answer that called nothing."""
    messages = list(request.messages)
    for at in reversed(range(len(messages))):
        message = messages[at]
        if isinstance(message, AssistantMessage) and not message.calls:
            return messages[at + 1 :]
    return messages


def last_user_text(request: Request) -> str:
    """Give what was said to the model last, "" when nothing was."""
    said = (m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
    return next(said, "")


def code_tool(request: Request) -> str:
    """Give the name of the tool that takes code, whatever the host calls it."""
    takes_code = (t.name for t in request.tools if "code" in t.schema.get("properties", {}))
    return next(takes_code, "python")


def count_usage(request: Request, said_chars: int) -> Usage:
    """Count tokens by characters. What stood before the last answer was sent before: cached."""
    chars = [len(request.instructions) + len(msgspec.json.encode(request.tools))]
    cached_chars = 0
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            cached_chars = sum(chars)
        chars.append(_chars_of(message))
    return Usage(
        input_tokens=_tokens(sum(chars)),
        output_tokens=_tokens(said_chars),
        cache_read_tokens=_tokens(cached_chars),
    )


def _events(step: Step, request: Request, *, call_id: str) -> Iterator[Event]:
    if step.text is not None:
        yield from (Text(delta=piece) for piece in _pieces(step.text))
    elif step.think is not None:
        yield from (Think(delta=piece) for piece in _pieces(step.think))
    elif isinstance(step.call, ToolUse):
        yield Call(id=call_id, name=step.call.name, arguments=step.call.arguments)
    elif step.call is not None:
        yield Call(id=call_id, name=code_tool(request), arguments={"code": step.call})


def _event_chars(event: Event) -> int:
    match event:
        case Text() | Think():
            return len(event.delta)
        case Call():
            return _call_chars(event)
        case Done():
            return 0


def _call_chars(call: Call) -> int:
    return len(call.name) + len(json.dumps(call.arguments))


def _priced(usage: Usage) -> Usage:
    if usage.cost_nano_usd is not None:
        return usage
    return msgspec.structs.replace(usage, cost_nano_usd=cost_nano_usd(PRICES, usage))


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def _calls_of(message: Message) -> tuple[Call, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


def _chars_of(message: Message) -> int:
    match message:
        case UserMessage() | ToolResult():
            return len(message.text)
        case AssistantMessage():
            calls = sum(map(_call_chars, message.calls))
            return len(message.text) + len(message.thinking) + calls


def _digest(request: Request) -> bytes:
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).digest()


def _pieces(text: str) -> list[str]:
    """Cut like a stream arrives, into at most `PIECES` pieces however long the text is."""
    size = max(PIECE_CHARS, -(-len(text) // PIECES))
    return re.findall(rf".{{1,{size}}}", text, re.DOTALL)
