"""Sessions of a host that is killed: nothing acknowledged is lost, nothing is done twice."""

import asyncio
import contextlib
import functools
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlm_host.sessions.notifications import notification_of
from rlm_host.sessions.state import SessionState
from rlm_protocol import records as r
from rlm_protocol.errors import HostLost, RlmError, SessionLeased, Uncertain
from support.fake_client import FakeClient, spawned

pytestmark = pytest.mark.anyio
LASTING = ("turn/started", "item/completed", "turn/completed")
"""Notifications that are records: each is heard exactly once, however often a client comes back."""
KILLS = 10


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def journal_of(home: Path, session_id: str) -> list[r.Entry]:
    path = home / "rlm" / "sessions" / f"{session_id}.jsonl"
    decoded = [r.decode_line(line) for line in path.read_bytes().splitlines()]
    assert all(isinstance(one, r.Entry) for one in decoded), "damage"
    return [one for one in decoded if isinstance(one, r.Entry)]


def told_by(entries: list[r.Entry]) -> list[tuple[str, int, str]]:
    """What a client must have heard of these records."""
    state = SessionState()
    told = []
    for entry in entries:
        state.apply(entry)
        meant = notification_of(
            entry, state.id, functools.partial(state.view, journal_path=None, artifacts_path="")
        )
        if meant is not None and meant[0] in LASTING:
            told.append((meant[0], entry.seq, _id_of(meant[1])))
    return told


def _id_of(payload: Any) -> str:
    return str(payload.item.id if hasattr(payload, "item") else payload.turn_id)


class Record:
    """Everything that one client has heard, over all its connections."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, str]] = []
        self.cursor: dict[str, int] | None = None

    def take(self, client: FakeClient) -> None:
        for event in client.heard:
            params = event.params
            if "seq" not in params:
                continue
            if self.cursor is None or params["seq"] > self.cursor["seq"]:
                self.cursor = {"gen": params["gen"], "seq": params["seq"]}
            if event.method in LASTING:
                told_id = params["item"]["id"] if "item" in params else params["turnId"]
                self.told.append((event.method, params["seq"], told_id))


async def kill(client: FakeClient) -> None:
    os.kill(client.client.pid, signal.SIGKILL)
    with contextlib.suppress(RlmError):
        await client.request("host/status")


async def test_killed_at_many_moments_the_client_has_exactly_the_journal(tmp_path: Path) -> None:
    chance = random.Random(11)
    record, session_id = Record(), ""
    ran = tmp_path / "ran"
    ran.touch()
    for life in range(KILLS + 1):
        async with spawned(tmp_path) as client:
            if not session_id:
                params = {"cwd": str(tmp_path), "model": "scripted/steps"}
                session_id = (await client.request("session/create", params))["session"]["id"]
                record.cursor = {"gen": 1, "seq": 1}
            else:
                resumed = await client.request(
                    "session/resume", {"sessionId": session_id, "cursor": record.cursor}
                )
                assert resumed["replay"] == "complete"

            async def work(
                client: FakeClient = client, life: int = life, sid: str = session_id
            ) -> None:
                for n in range(1000):
                    code = f"open({str(ran)!r}, 'a').write('{life}.{n}\\n')"
                    steps = [{"text": "now"}, {"call": code}, {"call": "print('x' * 2000)"}]
                    text = json.dumps([*steps, {"text": "done"}])
                    turn = await client.request(
                        "turn/start",
                        {"sessionId": sid, "input": [{"type": "text", "text": text}]},
                    )
                    await client.until(
                        "turn/completed", lambda p, turn=turn: p["turnId"] == turn["turnId"]
                    )

            working = asyncio.ensure_future(work())
            if life == KILLS:
                await client.until("turn/completed", start=len(client.heard))
                working.cancel()
            else:
                moment = chance.choice(
                    ["turn/started", "item/started", "item/delta", "repl/status"]
                )
                await client.until(moment, start=len(client.heard))
                await asyncio.sleep(chance.random() * 0.05)  # somewhere in the middle of things
                await kill(client)
            with contextlib.suppress(asyncio.CancelledError, HostLost, AssertionError):
                await working
            if life == KILLS:
                await client.request("session/detach", {"sessionId": session_id})
            record.take(client)
    entries = journal_of(tmp_path, session_id)
    seen = record.told
    assert seen == [one for one in told_by(entries) if one[1] <= seen[-1][1]]
    records = [entry.record for entry in entries]
    intents = Counter(
        (one.turn_id, one.attempt) for one in records if isinstance(one, r.ProviderIntent)
    )
    assert set(intents.values()) == {1}, "a provider turn was executed twice"
    for turn_id in {turn_id for turn_id, _ in intents}:
        ends = [
            one for one in records if isinstance(one, r.TurnCompleted) and one.turn_id == turn_id
        ]
        assert len(ends) == 1, turn_id
    lines = ran.read_text().split()
    assert len(lines) == len(set(lines)), "a cell ran twice"
    statuses = Counter(one.status for one in records if isinstance(one, r.TurnCompleted))
    assert statuses["interrupted"] >= KILLS // 2, "the kills hit running turns"


async def test_a_request_that_was_cut_off_is_uncertain_and_not_repeated(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    params: dict[str, Any] = {
        "code": f"open({str(ran)!r}, 'a').write('x'); import time; time.sleep(60)",
        "idempotencyKey": "once",
    }
    async with spawned(tmp_path) as client:
        created = await client.request("session/create", {"cwd": str(tmp_path)})
        params["sessionId"] = created["session"]["id"]
        running = asyncio.ensure_future(client.request("repl/execute", params))
        async with asyncio.timeout(30):
            while not ran.exists():
                await asyncio.sleep(0.01)
        await kill(client)
        with pytest.raises(HostLost):
            await running
    async with spawned(tmp_path) as client:
        with pytest.raises(Uncertain):
            await client.request("repl/execute", params)
        fine = {**params, "code": "1 + 1", "idempotencyKey": "other"}
        first = await client.request("repl/execute", fine)
        assert first["result"] == "2"
        assert await client.request("repl/execute", fine) == first
    assert ran.read_text() == "x"


async def test_two_hosts_and_one_session(tmp_path: Path) -> None:
    async with spawned(tmp_path) as one, spawned(tmp_path) as two:
        created = await one.request("session/create", {"cwd": str(tmp_path)})
        where = {"sessionId": created["session"]["id"]}
        with pytest.raises(SessionLeased) as refused:
            await two.request("session/resume", where)
        assert refused.value.data["owner"]["pid"] == one.client.pid
        await kill(one)
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(SessionLeased):
                    await two.request("session/resume", where)
                    break
        run = await two.request("repl/execute", {**where, "code": "1 + 1"})
        assert run["result"] == "2"


async def test_names_come_back_on_another_day_and_the_model_is_told(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        created = await client.request(
            "session/create", {"cwd": str(tmp_path), "model": "scripted/steps"}
        )
        where = {"sessionId": created["session"]["id"]}
        await client.request("repl/execute", {**where, "code": "kept = 5"})
        saved = await client.request("repl/snapshot", where)
        assert saved["saved"] == ["kept"]
    async with spawned(tmp_path) as client:
        await client.request("session/resume", where)
        text = json.dumps([{"call": "kept + 1"}])
        turn = await client.request(
            "turn/start", {**where, "input": [{"type": "text", "text": text}]}
        )
        await client.until("turn/completed", lambda p: p["turnId"] == turn["turnId"])
        done = [e.params["item"] for e in client.heard if e.method == "item/completed"]
        [cell] = [one for one in done if one["type"] == "replCell"]
        assert (cell["result"], cell["kernel"]) == ("6", 2)
        [answer] = [one for one in done if one["type"] == "agentMessage"]
        assert "Names that came back: kept." in answer["text"]
