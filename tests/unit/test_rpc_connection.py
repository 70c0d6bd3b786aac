"""One connection over a real socket, in this process: how its answers leave."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rlm_host.rpc.attachment import BURST_BYTES
from rlm_host.rpc.connection import Connection
from rlm_host.rpc.context import Context, Handler
from rlm_host.rpc.endpoint import Endpoint
from rlm_host.rpc.services import Services
from rlm_host.rpc.workers import Workers
from rlm_protocol.framing import HeaderReceiver, encode_headers
from rlm_protocol.item import ItemDelta
from rlm_protocol.limits import MIB
from rlm_protocol.repl import ReplExecuteParams, ReplExecuteResult

pytestmark = pytest.mark.anyio
DEADLINE_S = 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Counted(Endpoint):
    """An endpoint that counts its writes."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        super().__init__(read_fd, write_fd)
        self.writes: list[int] = []

    def write(self, data: memoryview) -> int:
        self.writes.append(super().write(data))
        return self.writes[-1]


class Client:
    """The other end of a connection."""

    def __init__(self, sock: socket.socket, endpoint: Counted) -> None:
        self._sock, self.endpoint = sock, endpoint
        self._frames = HeaderReceiver(max_frame_bytes=MIB, max_header_bytes=MIB)

    async def say(self, *messages: dict[str, Any]) -> None:
        data = b"".join(
            encode_headers(json.dumps({"jsonrpc": "2.0", **one}).encode()) for one in messages
        )
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def hear(self, count: int) -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []
        while len(heard) < count:
            frame = self._frames.next_frame()
            if isinstance(frame, bytes):
                heard.append(json.loads(frame))
            else:
                loop = asyncio.get_running_loop()
                data = await asyncio.wait_for(loop.sock_recv(self._sock, MIB), DEADLINE_S)
                assert data, "the connection has ended"
                self._frames.receive_data(data)
        return heard


def cell(id_: int, code: str) -> dict[str, Any]:
    return {"id": id_, "method": "repl/execute", "params": {"sessionId": "s", "code": code}}


@contextlib.asynccontextmanager
async def connected(execute: Callable[..., Any]) -> AsyncIterator[Client]:
    nothing = cast(Any, None)
    services = Services(
        home=Path("/"),
        config_file=nothing,
        now_ms=lambda: 0,
        uptime_ms=lambda: 0,
        stop=lambda _: None,
        agents=nothing,
        loops=nothing,
        loop_clients=nothing,
    )
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    fd = ours.detach()
    endpoint = Counted(fd, fd)
    async with Workers() as workers:
        connection = Connection(
            endpoint,
            services=services,
            handlers={"repl/execute": cast(Handler, execute)},
            workers=workers,
            on_end=lambda _: None,
        )
        connection.start()
        client = Client(theirs, endpoint)
        initialize = {"processId": None, "rootUri": None, "capabilities": {}}
        await client.say({"id": 0, "method": "initialize", "params": initialize})
        await client.hear(1)
        endpoint.writes.clear()
        yield client
        await connection.settle()
        await connection.close()
        theirs.close()


async def echo(context: Context, params: ReplExecuteParams) -> ReplExecuteResult:
    return ReplExecuteResult(cell_id="c", status="ok", result=params.code)


async def test_what_one_write_asks_is_answered_in_one_write() -> None:
    async with connected(echo) as client:
        await client.say(*(cell(n, f"{n}") for n in range(50)), {"id": 50, "method": "no/such"})
        heard = await client.hear(51)
    assert {m["id"] for m in heard} == set(range(51))
    assert len(client.endpoint.writes) == 1


async def test_what_one_pass_of_the_loop_tells_leaves_in_one_write_behind_nothing_later() -> None:
    """Also from a handler that has waited: its notifications, then its answer."""

    async def waited(context: Context, params: ReplExecuteParams) -> ReplExecuteResult:
        await asyncio.sleep(0.01)
        for n in range(20):
            context.attachment.notify("item/delta", delta(n, "x"))
        return await echo(context, params)

    async with connected(waited) as client:
        await client.say(cell(1, "1"))
        heard = await client.hear(21)
    assert [m.get("method") for m in heard] == ["item/delta"] * 20 + [None]
    assert len(client.endpoint.writes) == 1


async def test_a_burst_does_not_wait_for_the_end_of_the_pass() -> None:
    """Nothing is merged or dropped for a client that reads, however much one handler says."""
    size, count = BURST_BYTES // 4, 40
    seen = []

    async def burst(context: Context, params: ReplExecuteParams) -> ReplExecuteResult:
        for n in range(count):
            context.attachment.notify("item/delta", delta(n * size, "x" * size))
        seen.append(len(client.endpoint.writes))
        return await echo(context, params)

    async with connected(burst) as client:
        await client.say(cell(1, "1"))
        heard = await client.hear(count + 1)
    assert seen[0] >= 1
    text = "".join(m["params"]["text"] for m in heard[:-1])
    assert len(text) == size * count


async def test_a_request_that_does_not_wait_is_done_in_the_pass_that_read_it() -> None:
    tasks = []

    async def look(context: Context, params: ReplExecuteParams) -> ReplExecuteResult:
        tasks.append(asyncio.current_task())
        return await echo(context, params)

    async with connected(look) as client:
        for n in range(5):
            await client.say(cell(n, ""))
            await client.hear(1)
    assert len({id(task) for task in tasks}) == 1


def delta(offset: int, text: str) -> ItemDelta:
    return ItemDelta(
        session_id="s", seq=1, gen=1, item_id="i", channel="text", offset=offset, text=text
    )
