"""Sessions of a host that is killed: nothing acknowledged is lost, nothing is done twice."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol import records as r
from rlm_protocol.errors import HostLost, RlmError, SessionLeased, Uncertain
from support.fake_client import FakeClient, spawned
from support.told import Told, heard_of, journal_of, told_by

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def kill(client: FakeClient) -> None:
    os.kill(client.client.pid, signal.SIGKILL)
    with contextlib.suppress(RlmError):
        await client.request("host/status")


async def work(client: FakeClient, session_id: str, ran: Path, life: int) -> None:
    """Turn after turn, each with two cells; the first notes in `ran` that it ran."""
    for n in range(10_000):
        code = f"open({str(ran)!r}, 'a').write('{life}.{n}\\n')"
        steps = [{"text": "now"}, {"call": code}, {"call": "print('x' * 2000)"}, {"text": "done"}]
        started = await client.request(
            "turn/start",
            {"sessionId": session_id, "input": [{"type": "text", "text": json.dumps(steps)}]},
        )
        await client.until("turn/completed", lambda p, t=started: p["turnId"] == t["turnId"])


async def some_items(client: FakeClient, count: int) -> None:
    """Wait until so many items are complete."""
    seen = itertools.count(1)
    if count > 0:
        await client.until("item/completed", lambda _: next(seen) >= count, deadline_s=300)


@pytest.mark.parametrize(
    ("kills", "items"), [(10, 0), pytest.param(50, 10_000, marks=pytest.mark.long)]
)
async def test_killed_at_many_moments_the_client_has_exactly_the_journal(
    tmp_path: Path, kills: int, items: int
) -> None:
    chance = random.Random(11)
    told: list[Told] = []
    session_id, cursor = "", None
    ran = tmp_path / "ran"
    ran.touch()
    for life in range(kills + 1):
        async with spawned(tmp_path) as client:
            if not session_id:
                params = {"cwd": str(tmp_path), "model": "scripted/steps"}
                session_id = (await client.request("session/create", params))["session"]["id"]
            else:
                assert (await client.client.resume(session_id, cursor)).replay == "complete"
            working = asyncio.ensure_future(work(client, session_id, ran, life))
            if life == kills:
                await some_items(client, items - completed(told))
                await client.until("turn/completed", start=len(client.heard))
                working.cancel()
            else:
                await some_items(client, int(chance.random() * 2 * items / kills))
                moment = chance.choice(
                    ["turn/started", "item/started", "item/delta", "repl/status"]
                )
                await client.until(moment, start=len(client.heard))
                await asyncio.sleep(chance.random() * 0.05)  # somewhere in the middle of things
                await kill(client)
            with contextlib.suppress(asyncio.CancelledError, HostLost, AssertionError):
                await working
            if life == kills:
                await client.request("session/detach", {"sessionId": session_id})
            told += heard_of(client.heard)
            cursor = client.client.cursors[session_id]
    entries = journal_of(tmp_path, session_id)
    assert completed(told) >= items
    assert told == [one for one in told_by(entries) if one[1] <= told[-1][1]]
    records = [entry.record for entry in entries]
    intents = Counter(
        (one.turn_id, one.attempt) for one in records if isinstance(one, r.ProviderIntent)
    )
    assert set(intents.values()) == {1}, "a provider turn was executed twice"
    ends = Counter(one.turn_id for one in records if isinstance(one, r.TurnCompleted))
    assert {ends[turn_id] for turn_id, _ in intents} == {1}
    lines = ran.read_text().split()
    assert len(lines) == len(set(lines)), "a cell ran twice"
    statuses = Counter(one.status for one in records if isinstance(one, r.TurnCompleted))
    assert statuses["interrupted"] >= kills // 2, "the kills hit running turns"
    print(
        f"{kills} kills, {completed(told)} items in {len(ends)} turns ({dict(statuses)}), "
        f"{len(entries)} records, {len(told)} of them told: equal"
    )


def completed(told: list[Told]) -> int:
    return sum(method == "item/completed" for method, _, _ in told)


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
