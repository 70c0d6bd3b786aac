"""A session as its client sees it: a real host process, a real kernel, a scripted model."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol.errors import (
    InvalidParams,
    KernelDied,
    RequestCancelled,
    SessionNotFound,
    TurnBusy,
    TurnMismatch,
)
from support.fake_client import FakeClient, spawned

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def play(*steps: dict[str, Any]) -> list[dict[str, str]]:
    """The input that makes `scripted/steps` answer with these steps."""
    return [{"type": "text", "text": json.dumps(steps)}]


async def create(client: FakeClient, cwd: Path, **more: Any) -> str:
    params = {"cwd": str(cwd), "model": "scripted/steps", **more}
    return str((await client.request("session/create", params))["session"]["id"])


async def start(client: FakeClient, session_id: str, *steps: dict[str, Any], **more: Any) -> str:
    params = {"sessionId": session_id, "input": play(*steps), **more}
    return str((await client.request("turn/start", params))["turnId"])


async def ended(client: FakeClient, turn_id: str) -> dict[str, Any]:
    return await client.until("turn/completed", lambda p: p["turnId"] == turn_id)


def items(client: FakeClient, kind: str) -> list[dict[str, Any]]:
    done = (e.params["item"] for e in client.heard if e.method == "item/completed")
    return [item for item in done if item["type"] == kind]


async def test_a_turn_with_a_cell(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path)
        turn_id = await start(client, session_id, {"call": "print(6 * 7)"}, {"text": "done"})
        done = await ended(client, turn_id)
        assert (done["status"], done["usage"]["responses"]) == ("completed", 2)
        [cell] = items(client, "replCell")
        assert (cell["stdout"], cell["status"], cell["author"]) == ("42\n", "completed", "model")
        assert (cell["kernel"], cell["ordinal"]) == (1, 1)
        lasting = [
            (e.method, e.params.get("item", {}).get("type"))
            for e in client.heard
            if e.method.startswith(("turn/", "item/")) and e.method != "item/delta"
        ]
        assert lasting == [
            ("turn/started", None),
            ("item/completed", "userMessage"),
            ("item/started", "replCell"),
            ("item/completed", "replCell"),
            ("item/started", "agentMessage"),
            ("item/completed", "agentMessage"),
            ("turn/completed", None),
        ]
        usage = await client.request("usage/read", {"sessionId": session_id})
        assert usage["own"] == usage["subtree"] == done["usage"]
        await client.until("session/quiet")
        view = (await client.request("session/read", {"sessionId": session_id}))["session"]
        assert (view["status"], view["turns"]) == ("idle", 1)


async def test_usage_is_told_with_the_budget_that_it_is_held_to(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        budget = {"tokens": 10_000_000, "usd": 2.5}
        session_id = await create(client, tmp_path, options={"budget": budget})
        await ended(client, await start(client, session_id, {"text": "done"}))
        told = await client.until("usage/updated")
        read = await client.request("usage/read", {"sessionId": session_id})
        assert {name: told[name] for name in read} == read
        assert told["subtree"]["responses"] == 1
        assert {name: value for name, value in told["budget"].items() if value} == budget


async def test_people_use_the_same_kernel(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path)
        where = {"sessionId": session_id}
        run = await client.request("repl/execute", {**where, "code": "x = 20\nprint('hi')\nx + 1"})
        assert (run["status"], run["result"]) == ("ok", "21")
        failed = await client.request("repl/execute", {**where, "code": "1 / 0"})
        assert (failed["status"], failed["error"]["ename"]) == ("error", "ZeroDivisionError")
        silent = await client.request("repl/execute", {**where, "code": "y = 1", "silent": True})
        assert silent["status"] == "ok"
        names = await client.request("repl/names", {**where, "detail": True})
        assert names["names"] == ["x", "y"]
        completed = await client.request("repl/complete", {**where, "code": "x.bit_l", "cursor": 7})
        assert "bit_length" in str(completed["matches"])
        seen = await client.request("repl/inspect", {**where, "code": "x", "cursor": 1})
        assert seen["found"]
        turn_id = await start(client, session_id, {"call": "x * 2"})
        await ended(client, turn_id)
        told = items(client, "notice")
        assert told[0]["text"] == "A person ran cells."
        cells = items(client, "replCell")
        assert [one["author"] for one in cells] == ["client", "client", "model"]
        assert cells[-1]["result"] == "40"
        await client.request("repl/restart", {**where, "restore": False})
        gone = await client.request("repl/execute", {**where, "code": "x"})
        assert gone["error"]["ename"] == "NameError"


@pytest.mark.parametrize(
    ("steps", "phase"),
    [
        ([{"wait_ms": 60_000}, {"text": "late"}], "turn/started"),
        ([{"text": "some words to begin with"}, {"wait_ms": 60_000}], "item/delta"),
        ([{"call": "import time\nprint('begun', flush=True)\ntime.sleep(60)"}], "item/delta"),
        ([{"call": "print('begun', flush=True)\nwhile True: pass"}], "item/delta"),
        ([{"error": "overloaded", "times": 9, "retry_after_ms": 60_000}], "item/completed"),
    ],
    ids=["waiting", "streaming", "sleeping cell", "busy cell", "between tries"],
)
async def test_an_interrupt_ends_a_turn(tmp_path: Path, steps: list[Any], phase: str) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path)
        await client.request("repl/execute", {"sessionId": session_id, "code": "1"})
        before = len(client.heard)
        turn_id = await start(client, session_id, *steps)
        await client.until(
            phase,
            lambda p: p.get("item", {}).get("type", "notice") == "notice",
            start=before,
        )
        with pytest.raises(TurnMismatch):
            await client.request("turn/interrupt", {"sessionId": session_id, "turnId": "other"})
        began = time.monotonic()
        answer = await client.request("turn/interrupt", {"sessionId": session_id})
        assert answer == {"turnId": turn_id}
        done = await ended(client, turn_id)
        assert done["status"] == "interrupted"
        assert time.monotonic() - began < 10, "a second, and what a loaded machine adds"
        again = await start(client, session_id, {"text": "fine"})
        assert (await ended(client, again))["status"] == "completed"
        left = await client.request("repl/execute", {"sessionId": session_id, "code": "2"})
        assert left["result"] == "2"


async def test_a_cell_that_kills_its_kernel(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path)
        where = {"sessionId": session_id}
        kill = "import os, sys\nsys.stderr.write('last words'); sys.stderr.flush()\nos.kill(os.getpid(), 9)"
        with pytest.raises(KernelDied) as died:
            await client.request("repl/execute", {**where, "code": kill})
        assert died.value.data["signal"] == "SIGKILL"
        turn_id = await start(client, session_id, {"call": kill}, {"call": "1 + 1"}, {"text": "ok"})
        assert (await ended(client, turn_id))["status"] == "completed"
        statuses = [one["status"] for one in items(client, "replCell")]
        assert statuses == ["failed", "failed", "completed"]


async def test_an_interrupted_request_interrupts_its_cell(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path)
        where = {"sessionId": session_id}
        code = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
        running = asyncio.ensure_future(client.request("repl/execute", {**where, "code": code}))
        await client.until("item/delta")
        assert (await client.request("repl/interrupt", where))["interrupted"]
        assert (await running)["status"] == "interrupted"
        running = asyncio.ensure_future(client.request("repl/execute", {**where, "code": code}))
        await client.until("item/delta", start=len(client.heard))
        running.cancel()
        with pytest.raises((asyncio.CancelledError, RequestCancelled)):
            await running
        [_, cell] = [
            await client.until("item/completed", lambda p, n=n: items(client, "replCell")[n:] != [])
            for n in (0, 1)
        ]
        assert cell["item"]["status"] == "interrupted"


async def test_steering_and_follow_ups(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path, model="scripted/echo")
        where = {"sessionId": session_id}
        gate = tmp_path / "gate"
        await client.request("model/set", {**where, "model": "scripted/steps"})
        wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
        turn_id = await start(client, session_id, {"call": wait})
        await client.until("item/started", lambda p: p["item"]["type"] == "replCell")
        with pytest.raises(TurnBusy):
            await start(client, session_id, {"text": "no"})
        steer = {"input": [{"type": "text", "text": "left"}]}
        with pytest.raises(TurnMismatch):
            await client.request("turn/steer", {**where, **steer, "expectedTurnId": "x"})
        await client.request("turn/steer", {**where, **steer, "expectedTurnId": turn_id})
        follow = {"input": play({"text": "second turn"})}
        first = await client.request("turn/queue", {**where, **follow})
        gone = await client.request("turn/queue", {**where, **follow})
        await client.request("turn/queueRemove", {**where, "queueId": gone["queueId"]})
        with pytest.raises(InvalidParams):
            await client.request("turn/queueRemove", {**where, "queueId": gone["queueId"]})
        waiting = await client.request("turn/queueList", where)
        assert [one["queueId"] for one in waiting["queued"]] == [first["queueId"]]
        gate.touch()
        await ended(client, turn_id)
        second = await client.until("turn/completed", lambda p: p["turnId"] != turn_id)
        assert second["status"] == "completed"
        said = [(one["turnId"], one["text"]) for one in items(client, "userMessage")]
        assert said[1] == (turn_id, "left")
        assert said[2][0] == second["turnId"]


async def test_an_output_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"]}
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path)
        turn_id = await start(client, session_id, {"text": '{"n": 5}'}, outputSchema=schema)
        assert (await ended(client, turn_id))["output"] == {"n": 5}
        with pytest.raises(InvalidParams):
            await start(client, session_id, {"text": "x"}, outputSchema={"type": 7})


async def test_long_output_is_an_artifact(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path)
        where = {"sessionId": session_id}
        code = "for n in range(100_000): print(n, '€')"
        run = await client.request("repl/execute", {**where, "code": code})
        assert run["truncated"]
        text, offset = "", 0
        while offset is not None:
            piece = await client.request(
                "artifact/read", {**where, "id": run["artifact"], "offset": offset}
            )
            text, offset = text + piece["text"], piece["nextOffset"]
        assert text == "".join(f"{n} €\n" for n in range(100_000))
        deltas = [e.params for e in client.heard if e.method == "item/delta"]
        assert sum(len(one["text"].encode()) for one in deltas) <= 256 * 1024


async def test_the_life_of_a_session_over_the_wire(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        session_id = await create(client, tmp_path, name="first")
        where = {"sessionId": session_id}
        await ended(client, await start(client, session_id, {"text": "one"}))
        renamed = await client.request("session/rename", {**where, "name": "second"})
        assert renamed["session"]["name"] == "second"
        options = {"labels": {"team": "x"}, "approvals": {"spawns": "ask"}}
        await client.request("session/configure", {**where, "options": options})
        fork = (await client.request("session/fork", where))["session"]
        assert (fork["turns"], fork["name"]) == (1, "second (fork)")
        turn_id = await start(client, fork["id"], {"text": "other way"})
        await ended(client, turn_id)
        listed = await client.request("session/list")
        assert [one["id"] for one in listed["sessions"]] == [fork["id"], session_id]
        await client.request("session/archive", where)
        listed = await client.request("session/list", {"archived": True})
        assert [one["id"] for one in listed["sessions"]] == [session_id]
        await client.request("session/unarchive", where)
        page = await client.request("session/items", {**where, "limit": 1})
        assert page["items"][0]["type"] == "userMessage"
        assert page["nextCursor"]
        await client.request("session/detach", where)
        before = len(client.heard)
        await start(client, session_id, {"text": "unheard"})
        await client.request("session/delete", {"sessionId": fork["id"]})
        await client.until("session/closed", lambda p: p["sessionId"] == fork["id"])
        assert {e.params["sessionId"] for e in client.heard[before:]} == {fork["id"]}
        with pytest.raises(SessionNotFound):
            await client.request("session/read", {"sessionId": fork["id"]})


async def test_models_are_listed_and_set(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        listed = await client.request("model/list", {"query": "scripted"})
        assert {one["selector"] for one in listed["models"]} >= {"scripted/steps", "scripted/echo"}
        assert all(one["scripted"] and one["available"] for one in listed["models"])
        assert listed["default"] == "scripted/demo"
        states = (await client.request("auth/state"))["providers"]
        assert {one["provider"] for one in states} >= {"anthropic", "openai", "scripted"}


async def test_a_person_is_asked_before_a_cell_runs(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def decide(params: dict[str, Any]) -> dict[str, str]:
        asked.append(params)
        return {"decision": "allow" if "fine" in params["detail"]["code"] else "deny"}

    async with spawned(tmp_path, handlers={"approval/request": decide}) as client:
        options = {"approvals": {"cells": "ask"}}
        session_id = await create(client, tmp_path, options=options)
        turn_id = await start(client, session_id, {"call": "'fine'"}, {"call": "'bad'"})
        assert (await ended(client, turn_id))["status"] == "completed"
        cells = items(client, "replCell")
        assert [(one["status"], one["result"]) for one in cells] == [
            ("completed", "'fine'"),
            ("failed", None),
        ]
        assert [one["what"] for one in asked] == ["cell", "cell"]
        await client.until("approval/resolved", lambda p: p["decision"] == "deny")
