"""Tools of a client with a real host and a real kernel: in a cell they are Python functions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.fake_client import FakeClient, attached, spawned

pytestmark = pytest.mark.anyio

DOUBLE = {
    "name": "double",
    "description": "Doubles n.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "What is doubled."},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["n"],
        "additionalProperties": False,
    },
}
SLOW = {"name": "slow", "description": "Never ends.", "inputSchema": {}}
FAILING = {"name": "failing", "description": "Fails.", "inputSchema": {}}
OPTIONS = {"tools": [DOUBLE, SLOW, FAILING]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Tools:
    """The client's side: what was asked, and whether `slow` was told to stop."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.running = asyncio.Event()
        self.stopped = asyncio.Event()

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(params)
        if params["name"] == "failing":
            return {"error": "It is raining."}
        if params["name"] == "slow":
            self.running.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
        return {"result": 2 * params["arguments"].get("n", 0)}


async def create(client: FakeClient, home: Path, **more: Any) -> str:
    params = {"cwd": str(home), "model": "scripted/steps", **more}
    session: dict[str, Any] = (await client.request("session/create", params))["session"]
    return str(session["id"])


async def run(client: FakeClient, session_id: str, code: str) -> dict[str, Any]:
    params = {"sessionId": session_id, "code": code}
    result: dict[str, Any] = await client.request("repl/execute", params)
    return result


async def test_a_tool_is_a_function_of_the_namespace(tmp_path: Path) -> None:
    tools = Tools()
    async with spawned(tmp_path, handlers={"tool/call": tools.call}) as client:
        session_id = await create(client, tmp_path, options=OPTIONS)
        where = {"sessionId": session_id}

        async def result(code: str) -> str | None:
            outcome = await run(client, session_id, code)
            return outcome["result"] or (outcome["error"] or {}).get("ename")

        async def error(code: str) -> tuple[str, str]:
            raised = (await run(client, session_id, code))["error"]
            return raised["ename"], raised["evalue"]

        assert await result("await tools.double(n=21)") == "42"
        told = await client.until("repl/status", lambda p: p["status"] == "idle")
        assert await result("import os; os.getpid()") == str(told["pid"])
        assert (
            await result("sum(await asyncio.gather(*(tools.double(n=i) for i in range(50))))")
            == "2450"
        )
        assert [one["arguments"] for one in tools.asked[:1]] == [{"n": 21}]
        asked = len(tools.asked)

        name, said = await error("await tools.treble(n=1)")
        assert name == "AttributeError"
        assert "double, failing, slow" in said
        assert (await error("await tools.double(21)"))[0] == "TypeError"
        name, said = await error("await tools.double()")
        assert (name, "'n' is a required property" in said) == ("TypeError", True)
        name, said = await error("await tools.double(n=1, m=2)")
        assert (name, "'m' was unexpected" in said) == ("TypeError", True)
        assert (await error("await tools.double(n='x')"))[0] == "TypeError"
        name, said = await error("await tools.double(n=1, unit='K')")
        assert (name, "tools.double at $.unit" in said) == ("ValueError", True)
        assert (await error("await tools.double(n={1})"))[0] == "ValueError"
        assert len(tools.asked) == asked

        name, said = await error("await tools.failing()")
        assert (name, said) == ("ToolError", "It is raining.")
        assert await result("dir(tools)") == "['double', 'failing', 'slow']"
        await run(client, session_id, "import inspect; print(inspect.signature(tools.double))")
        signature = "(*, n: 'int', unit: \"Literal['C', 'F']\" = Ellipsis)\n"
        await client.until("item/delta", lambda p: p["text"] == signature)

        code = "tools.dou"
        found = await client.request("repl/complete", {**where, "code": code, "cursor": len(code)})
        assert found["matches"] == ["double"]
        found = await client.request(
            "repl/inspect", {**where, "code": "tools.double", "cursor": 12}
        )
        assert found["text"] == (
            "async def double(*, n: int, unit: Literal['C', 'F'] = ...)\n\n"
            "Doubles n.\n\nArguments:\n    n: What is doubled."
        )
        assert (await client.request("repl/names", where))["names"] == ["inspect", "os"]

        page = await client.request("session/items", {**where, "limit": 1000})
        calls = [one for one in page["items"] if one["type"] == "toolCall"]
        assert len(calls) == 52
        cells = {one["id"]: one for one in page["items"] if one["type"] == "replCell"}
        assert calls[0]["cellId"] in cells
        assert (calls[0]["result"], calls[0]["status"]) == (42, "completed")


async def test_a_cell_that_is_interrupted_stops_its_tool(tmp_path: Path) -> None:
    tools = Tools()
    async with spawned(tmp_path, handlers={"tool/call": tools.call}) as client:
        session_id = await create(client, tmp_path, options=OPTIONS)
        running = asyncio.ensure_future(run(client, session_id, "await tools.slow()"))
        async with asyncio.timeout(60):
            await tools.running.wait()
        await client.request("repl/interrupt", {"sessionId": session_id})
        assert (await running)["status"] == "interrupted"
        async with asyncio.timeout(30):
            await tools.stopped.wait()
        call = await client.until("item/completed", lambda p: p["item"]["type"] == "toolCall")
        assert call["item"]["status"] == "interrupted"


async def test_tools_win_over_names_that_come_back_and_follow_configure(tmp_path: Path) -> None:
    tools = Tools()
    async with spawned(tmp_path, handlers={"tool/call": tools.call}) as client:
        session_id = await create(client, tmp_path)
        where = {"sessionId": session_id}
        assert (await run(client, session_id, "tools"))["error"]["ename"] == "NameError"
        await run(client, session_id, "tools, kept = 'mine', 1")
        await client.request("repl/snapshot", where)
        await client.request("session/configure", {**where, "options": {"tools": [DOUBLE]}})
        assert (await run(client, session_id, "await tools.double(n=2)"))["result"] == "4"
        await run(client, session_id, "f = tools.double")
        saved = await client.request("repl/snapshot", where)
        assert saved["saved"] == ["f", "kept"]
        await run(client, session_id, "del f, tools")
        await client.request("repl/restore", where)
        assert (await run(client, session_id, "await tools.double(n=3)"))["result"] == "6"
        assert (await run(client, session_id, "await f(n=kept)"))["result"] == "2"
        await client.request("repl/restart", {**where, "restore": True})
        assert (await run(client, session_id, "await tools.double(n=4)"))["result"] == "8"
        await client.request("session/configure", {**where, "options": {"tools": []}})
        assert (await run(client, session_id, "tools"))["error"]["ename"] == "NameError"
        name = (await run(client, session_id, "await f(n=1)"))["error"]["ename"]
        assert name == "ToolError"


async def test_a_child_gets_the_tools_that_its_spawn_names(tmp_path: Path) -> None:
    tools = Tools()
    task = "run: print(dir(tools), await tools.double(n=4))"
    async with spawned(tmp_path, handlers={"tool/call": tools.call}) as client:
        options = {**OPTIONS, "labels": {"team": "x"}, "approvals": {"cells": "never"}}
        session_id = await create(client, tmp_path, options=options)
        spawn = "await rlm({!r}, model='scripted/python', unguarded=True, name='kid', tools={})"
        refused = (await run(client, session_id, spawn.format(task, ["double", "treble"])))["error"]
        assert refused["ename"] == "HostError"
        assert "no tools named treble" in refused["evalue"]
        assert "double, failing, slow" in refused["evalue"]
        assert (await run(client, session_id, spawn.format(task, ["double"])))["status"] == "ok"
        ended = await client.until(
            "agent/changed", lambda p: p["agent"]["status"] in ("completed", "error")
        )
        assert ended["agent"]["status"] == "completed"
        child_id = ended["agent"]["sessionId"]
        page = await client.request("session/items", {"sessionId": child_id})
        [cell] = [one for one in page["items"] if one["type"] == "replCell"]
        assert cell["stdout"] == "['double'] 8\n"
        [asked] = tools.asked
        assert (asked["sessionId"], asked["arguments"]) == (child_id, {"n": 4})
        read = (await client.request("session/read", {"sessionId": child_id}))["session"]["options"]
        assert [tool["name"] for tool in read["tools"]] == ["double"]
        assert (read["labels"], read["approvals"]) == (options["labels"], {})


async def test_a_client_that_goes_during_a_call_makes_the_tool_unavailable(tmp_path: Path) -> None:
    """Whoever declared the tools is asked, though another one was there before."""
    leaving, staying = Tools(), Tools()
    async with spawned(tmp_path, handlers={"tool/call": staying.call}) as owner:
        session_id = await create(owner, tmp_path)
        await run(owner, session_id, "1")
        socket = await socket_of(owner, tmp_path, session_id)
        async with attached(socket, handlers={"tool/call": leaving.call}) as other:
            await other.request("session/resume", {"sessionId": session_id})
            options = {"tools": [SLOW, DOUBLE]}
            params = {"sessionId": session_id, "options": options}
            await other.request("session/configure", params)
            running = asyncio.ensure_future(run(owner, session_id, "await tools.slow()"))
            async with asyncio.timeout(30):
                await leaving.running.wait()
        outcome = await running
        assert outcome["error"]["ename"] == "ToolError"
        assert "not known" in outcome["error"]["evalue"]
        assert staying.asked == []
        assert (await run(owner, session_id, "await tools.double(n=1)"))["result"] == "2"
        assert len(staying.asked) == 1


async def socket_of(client: FakeClient, home: Path, session_id: str) -> Path:
    """Give the private socket of a session's owner, as its owner record names it."""
    import json

    record = home / "rlm" / "sessions" / f"{session_id}.owner"
    return Path(json.loads(record.read_text())["socket"])
