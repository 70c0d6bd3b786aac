"""
A client for tests: `HostClient` with waits that end met, unmet or unmeetable, each with the story.

A wait is *met* when its condition holds, *unmet* at its deadline, *unmeetable* as soon as it cannot
be met any more (the host is gone). The last two fail the test and print the whole exchange.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlm_host.client import HostClient, HostNotification
from rlm_protocol.errors import HostLost, RlmError

DEADLINE_S = 30.0
TESTS = Path(__file__).parents[1]
MISBEHAVING = (sys.executable, "-m", "support.rpc_host")


class Unmet(AssertionError):
    """A wait was not met; the text holds the exchange."""


def host_env(home: Path, **more: str) -> dict[str, str]:
    """The environment of a host under test: its own home, our support modules importable."""
    keep = {k: os.environ[k] for k in ("PATH", "LANG", "TMPDIR") if k in os.environ}
    return {
        **keep,
        "HOME": str(home),
        "RLM_HOME": str(home / "rlm"),
        "PYTHONPATH": str(TESTS),
        "RLM_KERNEL_PYTHON": sys.executable,
        **more,
    }


class FakeClient:
    """One client and everything it has said and heard."""

    def __init__(self, client: HostClient) -> None:
        self.client = client
        self.heard: list[HostNotification] = []
        self.story: list[str] = []
        self._gone: RlmError | None = None
        self._news = asyncio.Event()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Ask, within the deadline; the answer becomes part of the story."""
        self.story.append(f"--> {method} {_short(params)}")
        try:
            async with asyncio.timeout(DEADLINE_S):
                result = await self.client.request(method, params)
        except TimeoutError:
            raise Unmet(self._told(f"no answer to {method} within {DEADLINE_S} s")) from None
        except RlmError as error:
            self.story.append(f"<-- {method} refused: {error}")
            raise
        self.story.append(f"<-- {method} {_short(result)}")
        return result

    async def until(
        self,
        method: str,
        condition: Callable[[dict[str, Any]], bool] = lambda _params: True,
        *,
        start: int = 0,
        deadline_s: float = DEADLINE_S,
    ) -> dict[str, Any]:
        """Wait for a notification, from the `start`-th heard on; give its params."""
        end = time.monotonic() + deadline_s
        while True:
            for event in self.heard[start:]:
                if event.method == method and condition(event.params):
                    return event.params
            start = len(self.heard)
            if self._gone is not None:
                raise Unmet(self._told(f"{method} cannot come any more: {self._gone}"))
            self._news.clear()
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    await self._news.wait()
            except TimeoutError:
                raise Unmet(self._told(f"no such {method} within {deadline_s} s")) from None

    def names(self) -> list[str]:
        """Names of the notifications heard so far, in order."""
        return [event.method for event in self.heard]

    async def listen(self) -> None:
        """Collect notifications until the connection ends."""
        async with self.client.notifications() as events:
            try:
                async for event in events:
                    self.heard.append(event)
                    self.story.append(f"<-- {event.method} {_short(event.params)}")
                    self._news.set()
            except HostLost as gone:
                self._gone = gone
                self._news.set()

    def _told(self, what: str) -> str:
        process = self.client.process
        stderr = f"\nstderr: {process.stderr_tail}" if process is not None else ""
        return "\n".join([what, "the exchange:", *self.story[-200:]]) + stderr


@contextlib.asynccontextmanager
async def spawned(
    home: Path,
    *,
    command: Sequence[str] | None = None,
    handlers: Mapping[str, Callable[[dict[str, Any]], Awaitable[Any]]] | None = None,
    **env: str,
) -> AsyncIterator[FakeClient]:
    """Own a host and a client of it for the length of the block."""
    async with HostClient.spawn(
        command=command, env=host_env(home, **env), handlers=handlers
    ) as client:
        fake = FakeClient(client)
        listening = asyncio.create_task(fake.listen())
        await asyncio.sleep(0)  # the subscription is made in the task's first step
        try:
            yield fake
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening


@contextlib.asynccontextmanager
async def attached(
    socket: Path,
    *,
    handlers: Mapping[str, Callable[[dict[str, Any]], Awaitable[Any]]] | None = None,
) -> AsyncIterator[FakeClient]:
    """Own a client of a host that serves on a socket."""
    async with HostClient.attach(socket, handlers=handlers) as client:
        fake = FakeClient(client)
        listening = asyncio.create_task(fake.listen())
        await asyncio.sleep(0)
        try:
            yield fake
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"
