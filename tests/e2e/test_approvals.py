"""Approvals over the wire: real hosts, several clients, and what a crash makes of a question."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol.errors import RlmError
from support.fake_client import FakeClient, attached, spawned

pytestmark = pytest.mark.anyio

TOOL = {"name": "touch", "description": "Leaves a trace.", "inputSchema": {}}
SPAWN = "await rlm('say hi', model='scripted/echo', unguarded=True, name='kid')"
TURN = [{"type": "text", "text": json.dumps([{"call": SPAWN}, {"text": "done"}])}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """One person's client: its questions lie there until they are decided."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.cancelled = asyncio.Event()
        self.came = asyncio.Event()
        self.decision: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(params)
        self.came.set()
        try:
            return {"decision": await asyncio.shield(self.decision)}
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(params)
        return {"result": "done"}

    @property
    def handlers(self) -> Any:
        return {"approval/request": self.ask, "tool/call": self.call}

    def decide(self, decision: str) -> None:
        self.decision.set_result(decision)


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


async def create(client: FakeClient, home: Path, **options: Any) -> str:
    params = {"cwd": str(home), "model": "scripted/steps", "options": options}
    return str((await client.request("session/create", params))["session"]["id"])


async def run(client: FakeClient, session_id: str, code: str) -> dict[str, Any]:
    params = {"sessionId": session_id, "code": code}
    outcome: dict[str, Any] = await client.request("repl/execute", params)
    return outcome


def socket_of(home: Path, session_id: str) -> Path:
    record = home / "rlm" / "sessions" / f"{session_id}.owner"
    return Path(json.loads(record.read_text())["socket"])


async def test_a_denied_spawn_raises_and_leaves_nothing(tmp_path: Path) -> None:
    desk = Desk()
    desk.decide("deny")
    async with spawned(tmp_path, handlers=desk.handlers) as client:
        session_id = await create(client, tmp_path, approvals={"spawns": "ask"})
        outcome = await run(client, session_id, SPAWN)
        assert outcome["error"]["ename"] == "ApprovalDenied"
        [asked] = desk.asked
        assert (asked["what"], asked["detail"]["prompt"]) == ("spawn", "say hi")
        assert asked["detail"]["options"]["name"] == "kid"
        listed = await client.request("agent/list", {"sessionId": session_id})
        assert listed["agents"] == []
        code = f"try:\n  {SPAWN}\nexcept rlm.ApprovalDenied as why:\n  print(why.data['decision'])"
        await run(client, session_id, code)
        await client.until("item/delta", lambda p: p["text"] == "deny\n")


async def test_nobody_is_asked_for_a_spawn_that_is_refused_anyway(tmp_path: Path) -> None:
    desk = Desk()
    async with spawned(tmp_path, handlers=desk.handlers) as client:
        session_id = await create(client, tmp_path, approvals={"spawns": "ask"})
        outcome = await run(client, session_id, "await rlm('x', model='scripted/echo')")
        assert outcome["error"]["ename"] == "HostError"
        assert desk.asked == []


async def test_a_clients_own_spawn_waits_for_nobody(tmp_path: Path) -> None:
    desk = Desk()
    async with spawned(tmp_path, handlers=desk.handlers) as client:
        session_id = await create(client, tmp_path, approvals={"spawns": "ask", "cells": "ask"})
        options = {"model": "scripted/echo", "unguarded": True}
        params = {"sessionId": session_id, "prompt": "hi", "options": options}
        await client.request("agent/spawn", params)
        assert (await run(client, session_id, "6 * 7"))["result"] == "42"
        assert desk.asked == []


async def test_of_two_clients_one_decides_and_both_are_told(tmp_path: Path) -> None:
    one, two = Desk(), Desk()
    async with spawned(tmp_path, handlers=one.handlers) as first:
        options = {"approvals": {"tools": "ask"}, "tools": [TOOL]}
        session_id = await create(first, tmp_path, **options)
        async with attached(socket_of(tmp_path, session_id), handlers=two.handlers) as second:
            await second.request("session/resume", {"sessionId": session_id})
            running = asyncio.ensure_future(run(first, session_id, "await tools.touch()"))
            await soon(one.came)
            await soon(two.came)
            one.decide("allow")
            two.decide("deny")  # at once: either may be first, and exactly one counts
            outcome = await running
            told = [
                (await client.until("approval/resolved"))["decision"] for client in (first, second)
            ]
            assert told[0] == told[1]
            assert (told[0] == "allow") == (outcome["result"] == "'done'")
            assert len(one.calls) == (told[0] == "allow")
            assert two.calls == []


async def test_a_client_that_leaves_is_asked_again_and_another_one_decides(tmp_path: Path) -> None:
    one, two, again = Desk(), Desk(), Desk()
    async with spawned(tmp_path, handlers=one.handlers) as first:
        session_id = await create(first, tmp_path, approvals={"spawns": "ask"})
        socket = socket_of(tmp_path, session_id)
        started = await first.request("turn/start", {"sessionId": session_id, "input": TURN})
        await soon(one.came)
        async with attached(socket, handlers=two.handlers) as second:
            await second.request("session/resume", {"sessionId": session_id})
            await soon(two.came)
        async with attached(socket, handlers=again.handlers) as back:
            await back.request("session/resume", {"sessionId": session_id})
            await soon(again.came)
            assert again.asked == two.asked == one.asked
            again.decide("allow")
            await first.until("turn/completed", lambda p: p["turnId"] == started["turnId"])
            await soon(one.cancelled)
        listed = await first.request("agent/list", {"sessionId": session_id})
        assert [agent["name"] for agent in listed["agents"]] == ["kid"]


async def test_an_interrupt_takes_the_question_back(tmp_path: Path) -> None:
    desk = Desk()
    async with spawned(tmp_path, handlers=desk.handlers) as client:
        session_id = await create(client, tmp_path, approvals={"spawns": "ask"})
        where = {"sessionId": session_id}
        await client.request("turn/start", {**where, "input": TURN})
        await soon(desk.came)
        await create(client, tmp_path)  # what waits for a person blocks nobody else
        listed = await client.request("session/list")
        assert {one["status"] for one in listed["sessions"]} == {"idle", "running"}
        await client.request("turn/interrupt", where)
        assert (await client.until("turn/completed"))["status"] == "interrupted"
        assert (await client.until("approval/resolved"))["decision"] == "cancelled"
        await soon(desk.cancelled)
        desk.decide("allow")  # late
        assert (await run(client, session_id, "1"))["result"] == "1"
        assert (await client.request("agent/list", where))["agents"] == []


async def test_a_childs_question_reaches_the_clients_of_its_root(tmp_path: Path) -> None:
    desk = Desk()
    async with spawned(tmp_path, handlers=desk.handlers) as client:
        session_id = await create(client, tmp_path, approvals={"cells": "ask"})
        child = json.dumps([{"call": "'child' + 'ish'"}, {"text": "done"}])
        options = {"model": "scripted/steps", "unguarded": True}
        spawn = {"sessionId": session_id, "prompt": child, "options": options}
        agent = (await client.request("agent/spawn", spawn))["agent"]
        await soon(desk.came)
        [asked] = desk.asked
        assert asked["sessionId"] == agent["sessionId"]
        assert asked["detail"] == {"code": "'child' + 'ish'"}
        desk.decide("allow")
        told = await client.until("approval/resolved")
        assert (told["sessionId"], told["decision"]) == (agent["sessionId"], "allow")
        await client.until("agent/changed", lambda p: p["agent"]["status"] == "completed")
        page = await client.request("session/items", {"sessionId": agent["sessionId"]})
        [cell] = [one for one in page["items"] if one["type"] == "replCell"]
        assert cell["result"] == "'childish'"


async def test_a_host_killed_while_it_asks_does_nothing_when_it_is_back(tmp_path: Path) -> None:
    desk, later = Desk(), Desk()
    async with spawned(tmp_path, handlers=desk.handlers) as client:
        session_id = await create(client, tmp_path, approvals={"spawns": "ask"})
        await client.request("turn/start", {"sessionId": session_id, "input": TURN})
        await soon(desk.came)
        os.kill(client.client.pid, signal.SIGKILL)
        with contextlib.suppress(RlmError):
            await client.request("host/status")
    async with spawned(tmp_path, handlers=later.handlers) as client:
        cursor = {"gen": 1, "seq": 1}
        await client.request("session/resume", {"sessionId": session_id, "cursor": cursor})
        assert (await client.until("approval/resolved"))["decision"] == "cancelled"
        assert (await client.until("turn/completed"))["status"] == "interrupted"
        assert (await run(client, session_id, "1"))["result"] == "1"
        assert later.asked == []
        listed = await client.request("agent/list", {"sessionId": session_id})
        assert listed["agents"] == []
