"""`Models` over the mock vendors: one provider a dialect, each with its key, nothing of this machine."""

import contextlib
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio

from rlm_host.models.provider import (
    AssistantMessage,
    Call,
    Done,
    Event,
    Message,
    Request,
    Text,
    Think,
    Tool,
    UserMessage,
)
from rlm_host.models.registry import Models
from support.mock_vendors import KEYS, MockVendors

CELL = Tool(
    name="python",
    description="Run code.",
    schema={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)


@contextlib.asynccontextmanager
async def open_models(
    vendors: MockVendors,
    *,
    env: dict[str, str] = KEYS,
    tables: dict[str, dict[str, object]] | None = None,
    auth_file: Path = Path("/nonexistent/auth.json"),
    random: Callable[[], float] = lambda: 0.5,
    **common: object,
) -> AsyncIterator[Models]:
    """Own a `Models` whose providers are the mock; `common` goes into every provider's table."""
    providers = {**tomllib.loads(vendors.config())["providers"], **(tables or {})}
    models = Models(
        {name: {**table, **common} for name, table in providers.items()},
        base_dir=Path("/nonexistent"),
        auth_file=auth_file,
        env=env,
        now_ms=lambda: int(time.time() * 1000),
        monotonic_ms=lambda: int(time.monotonic() * 1000),
        random=random,
    )
    try:
        yield models
    finally:
        with anyio.CancelScope(shield=True):
            await models.aclose()


def request(selector: str, *messages: Message | str, **more: Any) -> Request:
    """Give a request with the one tool; a string is what the user says."""
    said = tuple(UserMessage(text=m) if isinstance(m, str) else m for m in messages)
    return Request(model=selector, messages=said, tools=(CELL,), **more)


async def ask(models: Models, asked: Request) -> list[Event]:
    """Send it and give every event."""
    _, provider = models.provider_for(asked.model)
    async with contextlib.aclosing(provider.stream(asked)) as events:
        return [event async for event in events]


def text_of(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, Text))


def thinking_of(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, Think))


def calls_of(events: list[Event]) -> tuple[Call, ...]:
    return tuple(event for event in events if isinstance(event, Call))


def done_of(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def answer_of(events: list[Event], selector: str) -> AssistantMessage:
    """Give what a session would keep of an answer."""
    return AssistantMessage(
        text=text_of(events),
        thinking=thinking_of(events),
        calls=calls_of(events),
        opaque=done_of(events).opaque or None,
        model=selector,
    )
