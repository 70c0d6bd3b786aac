"""The client that comes back by itself: nothing is missing, nothing comes twice."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_host.client import HostClient, HostNotification, Subscription
from rlm_protocol.errors import HostLost, RlmError
from rlm_protocol.session import SessionOptions
from support.cli import end, serve
from support.fake_client import DEADLINE_S
from support.told import heard_of, journal_of, told_by

pytestmark = pytest.mark.anyio


class Bridge:
    """A socket before a host's, whose connections a test can cut and refuse."""

    def __init__(self, path: Path, host: Path) -> None:
        self.path = path
        self._host = host
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        self.path.unlink(missing_ok=True)
        for writer in tuple(self._open):
            writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_host, to_host = await asyncio.open_unix_connection(self._host)
        self._open |= {writer, to_host}
        for source, sink in ((reader, to_host), (from_host, writer)):
            task = asyncio.ensure_future(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()
        self._open.discard(sink)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "host.sock"
    process = serve(tmp_path, path)
    try:
        yield path
    finally:
        end(process)


@pytest.fixture
async def bridge(tmp_path: Path, host: Path) -> AsyncIterator[Bridge]:
    made = Bridge(tmp_path / "bridge.sock", host)
    await made.open()
    try:
        yield made
    finally:
        await made.cut()


async def steps(client: HostClient, tmp_path: Path) -> str:
    made = await client.session.create(cwd=str(tmp_path), model="scripted/steps")
    return made.session.id


async def until(events: Subscription, method: str) -> list[HostNotification]:
    """Give everything up to the first of this method."""
    heard = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in events:
            heard.append(event)
            if event.method == method:
                break
    return heard


async def test_hosts_are_killed_and_the_stream_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "host.sock"
    process = serve(tmp_path, path)
    try:
        async with HostClient.attach(path) as client, client.notifications() as events:
            session_id = await steps(client, tmp_path)
            play = json.dumps([{"text": "now"}, {"call": "print('x' * 2000)"}, {"text": "done"}])
            heard: list[HostNotification] = []
            for moment in ("turn/started", "item/delta", "item/completed", None):
                with contextlib.suppress(HostLost):
                    await client.run_turn(session_id, play)
                    if moment is None:
                        break
                turning = asyncio.ensure_future(client.run_turn(session_id, play))
                heard += await until(events, str(moment))
                end(process)
                with contextlib.suppress(HostLost):
                    await turning
                process = serve(tmp_path, path)
            await client.session.detach(session_id=session_id)
            assert client.connects == 4
            heard += await until(events, "session/quiet")
            while len(heard_of(heard)) < len(told_by(journal_of(tmp_path, session_id))):
                heard += await until(events, "turn/completed")
        assert heard_of(heard) == told_by(journal_of(tmp_path, session_id))
    finally:
        end(process)


async def test_a_cut_connection_repeats_no_text(tmp_path: Path, bridge: Bridge) -> None:
    async with HostClient.attach(bridge.path) as client:
        session_id = await steps(client, tmp_path)
        pieces = ["first " * 9, "second " * 9, "third"]
        play = [part for text in pieces for part in ({"text": text}, {"wait_ms": 700})]
        async with client.notifications(session_id=session_id) as events:
            ended = asyncio.ensure_future(client.run_turn(session_id, json.dumps(play)))
            heard = await until(events, "item/delta")
            await bridge.cut()
            await bridge.open()
            heard += await until(events, "session/quiet")
        assert (await ended).status == "completed"
    started = [e for e in heard if e.method == "item/started"]
    said = "".join(e.params["item"]["text"] for e in started)
    for event in heard:
        if event.method == "item/delta":
            assert event.params["offset"] == len(said), "a gap, or a repeat"
            said += event.params["text"]
    assert (len(started), said) == (1, "".join(pieces))


async def test_what_happened_to_a_session_meanwhile(
    tmp_path: Path, host: Path, bridge: Bridge
) -> None:
    async with HostClient.attach(bridge.path) as client, HostClient.attach(host) as other:
        gone, kept = await steps(client, tmp_path), await steps(client, tmp_path)
        async with client.notifications() as events:
            await bridge.cut()
            await other.session.delete(session_id=gone)
            await other.session.rename(session_id=kept, name="renamed")
            asked = asyncio.ensure_future(client.session.read(session_id=kept))
            await bridge.open()
            async with asyncio.timeout(DEADLINE_S):
                assert (await asked).session.name == "renamed"
                wanted = {("session/closed", gone, "deleted"), ("session/updated", kept, None)}
                while wanted:
                    told = await anext(events)
                    about = (told.method, told.params["sessionId"], told.params.get("reason"))
                    wanted.discard(about)
        assert client.pid == other.pid


async def test_a_host_that_stays_away_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "host.sock"
    process = serve(tmp_path, path)
    try:
        async with HostClient.attach(path, reconnect_s=0.3) as client:
            async with client.notifications() as events:
                end(process)
                with pytest.raises(HostLost):
                    await client.host.status()
                with pytest.raises(HostLost, match="did not come back"):
                    await anext(events)
            with pytest.raises(HostLost, match="did not come back"):
                await client.request("host/status")
    finally:
        end(process)


async def test_leaving_the_block_ends_the_way_back(tmp_path: Path) -> None:
    path = tmp_path / "host.sock"
    process = serve(tmp_path, path)
    try:
        async with asyncio.timeout(DEADLINE_S), HostClient.attach(path, reconnect_s=3600) as client:
            end(process)
            with pytest.raises(RlmError):
                await client.host.status()
    finally:
        end(process)


async def test_answers_that_no_host_gives_break_nothing(tmp_path: Path) -> None:
    """A host that says nonsense, in frames: what cannot be read is refused or left out."""
    path = tmp_path / "odd.sock"

    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def send(message: dict[str, Any]) -> None:
            body = json.dumps({"jsonrpc": "2.0", **message}).encode()
            writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

        about = {"capabilities": {}, "serverInfo": {"name": "odd", "version": "0"}}
        status = {"version": "0", "uptimeMs": 0, "sessions": 0, "kernels": 0, "runs": 0}
        status |= {"queues": {"bytes": 0, "dropped": 0}, "rssBytes": 0, "home": "", "pid": 1}
        answers = {"initialize": about, "host/status": status, "session/create": {"session": 3}}
        while header := await reader.readline():
            await reader.readline()
            asked = json.loads(await reader.readexactly(int(header.split()[1])))
            send({"method": "item/started", "params": [1]})
            send({"method": "item/delta", "params": {"sessionId": 5}})
            send({"method": "item/started", "params": {"sessionId": "s", "seq": "x"}})
            if "id" in asked:
                send({"id": asked["id"], "result": answers.get(asked["method"])})
        writer.close()

    server = await asyncio.start_unix_server(odd, path)
    try:
        async with HostClient.attach(path) as client:
            with pytest.raises(RlmError, match="cannot be read"):
                await client.session.create(cwd="/", options=SessionOptions(on_detach="keep"))
            assert (await client.host.status()).pid == 1
    finally:
        server.close()
