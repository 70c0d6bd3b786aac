"""A client that stops reading while its session floods it: the others do not notice."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from rlm_host.client import HostClient
from rlm_protocol.limits import ATTACHMENT_SOFT_BYTES
from support.cli import DEADLINE_S, serving
from support.fake_client import FakeClient, attached
from support.raw_host import INITIALIZE, frame, notification, request

pytestmark = pytest.mark.anyio
REQUESTS, CANCELS, TRIES = 200, 5, 3
FLOOD = """
import threading, time
def run():
    while go:
        print('x' * 65536)
        time.sleep(0.01)
go = True
threading.Thread(target=run, daemon=True).start()
"""
NOISE_S = 0.02
"""What a busy machine adds to one of two hundred round trips."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def p99_s(client: HostClient) -> float:
    took = []
    for _ in range(REQUESTS):
        began = time.monotonic()
        await client.request("host/status")
        took.append(time.monotonic() - began)
    return sorted(took)[REQUESTS * 99 // 100]


async def cancelled_s(other: FakeClient, session_id: str) -> float:
    """Give the seconds from a cancel to the news that the cell has ended."""
    start = len(other.heard)
    asked = {"sessionId": session_id, "code": "import time; time.sleep(60)"}
    running = asyncio.create_task(other.client.request("repl/execute", asked))
    await other.until("item/started", start=start)
    began = time.monotonic()
    running.cancel()
    told = await other.until("item/completed", start=start)
    took = time.monotonic() - began
    assert told["item"]["status"] == "interrupted"
    await asyncio.wait([running])
    return took


async def until_stalled(other: FakeClient) -> None:
    """Wait until so much waits for the client that what may be dropped is dropped."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        queues = (await other.request("host/status"))["queues"]
        if queues["dropped"] > 0 and queues["bytes"] > ATTACHMENT_SOFT_BYTES // 2:
            return
        assert time.monotonic() < end_s, queues
        await asyncio.sleep(0.05)


async def test_others_are_answered_and_cancelled_as_if_it_were_not_there(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as served:
        await compare(served, tmp_path)


async def compare(served: Path, folder: Path) -> None:
    """Measure a client beside one that has stalled, and then alone."""
    async with attached(served) as other:
        params = {"cwd": str(folder), "model": "scripted/echo"}
        mine = (await other.request("session/create", params))["session"]["id"]
        flooded = (await other.request("session/create", params))["session"]["id"]
        await other.request("session/detach", {"sessionId": flooded})
        await other.request("repl/execute", {"sessionId": mine, "code": "1"})
        with socket.socket(socket.AF_UNIX) as stalled:
            stalled.connect(str(served))
            flood = {"sessionId": flooded, "code": FLOOD}
            for message in (
                request(0, "initialize", INITIALIZE),
                notification("initialized"),
                request(1, "session/resume", {"sessionId": flooded}),
                request(2, "repl/execute", flood),
            ):
                stalled.sendall(frame(message))
            await until_stalled(other)
            slow, slow_cancels = [], []
            for _ in range(TRIES):  # side by side with what it is compared to, as far as that goes
                slow.append(await p99_s(other.client))
                slow_cancels += [await cancelled_s(other, mine) for _ in range(CANCELS)]
            status = await other.request("host/status")
            await other.request("repl/execute", {"sessionId": flooded, "code": "go = False"})
        free = [await p99_s(other.client) for _ in range(TRIES)]
    assert status["queues"]["bytes"] < 2 * ATTACHMENT_SOFT_BYTES
    assert min(slow) <= 2 * min(free) + NOISE_S, (slow, free)
    assert sorted(slow_cancels)[len(slow_cancels) // 2] <= 0.1 + NOISE_S, slow_cancels
