"""Tools of the client: what may be offered, who is asked, and what becomes of each call."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rlm_host.models.provider import UserMessage
from rlm_host.processes.spawn import Processes
from rlm_host.sessions.checking import Checker
from rlm_host.sessions.ports import SessionPorts
from rlm_host.sessions.session import SessionActor
from rlm_host.sessions.tools import ClientTools
from rlm_protocol import records as r
from rlm_protocol.base import Cursor
from rlm_protocol.errors import (
    ApprovalDenied,
    HostLost,
    InvalidParams,
    MethodNotFound,
    RequestFailed,
    StoreFull,
    TooLarge,
    ToolFailed,
    ToolUnavailable,
)
from rlm_protocol.item import Notice, ToolCall
from rlm_protocol.limits import OUTPUT_INLINE_BYTES, TOOL_CALL_MS, TOOL_RESULT_BYTES
from rlm_protocol.session import Approvals, ClientTool, SessionOptions
from rlm_protocol.tool import documentation, signature
from rlm_protocol.usage import Budget
from support.journals import FaultyFiles
from support.processes import FakeClock
from support.sessions import (
    Bench,
    Person,
    StubModels,
    answers,
    bench,
    deciding,
    finished,
    say,
    until,
)

pytestmark = pytest.mark.anyio

NEVER = 10**9
N = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"]}
DOUBLE = ClientTool(name="double", description="Doubles n.", input_schema=N)
TOOLS = SessionOptions(tools=(DOUBLE,))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def tool_bench(home: Path, **more: Any) -> AsyncIterator[Bench]:
    ports = SessionPorts()
    ClientTools(Checker(Processes(None))).install(ports)
    async with bench(home, ports=ports, **more) as b:
        yield b


def client(answer: Any = None, name: str = "") -> Person:
    """A client that gives `answer` to every tool call."""
    return Person(lambda *_: answer, name)


async def call(actor: SessionActor, cell_id: str | None = None, **arguments: Any) -> Any:
    """What a cell does that awaits `tools.double`."""
    payload = {"name": "double", "arguments": arguments}
    return (await actor.ports.answer(actor, "tool.call", payload, cell_id)).value


async def calls(b: Bench, actor: SessionActor) -> list[ToolCall]:
    return [one for one in await b.items(actor) if isinstance(one, ToolCall)]


# --- what may be offered --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "schema", "path", "said"),
    [
        ("two words", N, "name", "identifier"),
        ("class", N, "name", "identifier"),
        ("_private", N, "name", "identifier"),
        ("double", N, "name", "Two tools"),
        ("x", {"type": "strange"}, "inputSchema", "is not valid at"),
        ("x", {"type": "array"}, "inputSchema", "keyword arguments"),
        ("x", {"$ref": "https://example.invalid/schema"}, "inputSchema", "outside itself"),
        ("x", {"$ref": "#"}, "inputSchema", "without end"),
        ("x", {"description": "x" * 65_536}, "inputSchema", "65536 are admitted"),
        ("x", {"$schema": "http://json-schema.org/draft-07/schema#"}, "inputSchema", "dialect"),
        ("x", {"properties": {"a": {"pattern": "("}}}, "inputSchema", "pattern"),
    ],
)
async def test_a_tool_that_cannot_be_offered_is_refused_and_nothing_is_left(
    tmp_path: Path, name: str, schema: dict[str, Any], path: str, said: str
) -> None:
    tools = (DOUBLE, ClientTool(name=name, description="", input_schema=schema))
    async with tool_bench(tmp_path) as b:
        with pytest.raises(InvalidParams, match=said) as caught:
            await b.create(options=SessionOptions(tools=tools))
        assert caught.value.data == {"path": f"$.options.tools[1].{path}"}
        assert b.store.loaded() == ()
        actor = await b.create(options=TOOLS)
        before = b.records(actor)
        with pytest.raises(InvalidParams, match=said):
            await actor.configure(SessionOptions(tools=tools))
        assert b.records(actor) == before


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (N, "(*, n: int, **more)"),
        ({**N, "additionalProperties": False}, "(*, n: int)"),
        ({}, "(**more)"),
        ({"additionalProperties": False}, "()"),
        (
            {
                "properties": {
                    "unit": {"enum": ["C", "F"]},
                    "a": {"type": ["string", "null"]},
                    "any": {},
                    "not-python": {"type": "string"},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
            "(*, a: str | None, unit: Literal['C', 'F'] = ..., any=..., **more)",
        ),
        ({"properties": {"e": {"enum": ["x" * 50]}}, "additionalProperties": False}, "(*, e=...)"),
        ({"properties": {"e": True}, "additionalProperties": False}, "(*, e=...)"),
    ],
)
def test_a_schema_reads_as_a_signature(schema: dict[str, Any], text: str) -> None:
    assert signature(schema) == text


def test_the_documentation_says_what_the_schema_says() -> None:
    schema = {"properties": {"n": {"description": "A\nnumber.", "default": 3}, "m": {}}}
    tool = ClientTool(name="t", description=" Counts. ", input_schema=schema)
    assert documentation(tool) == "Counts.\n\nArguments:\n    n: A number. (default 3)"


# --- a call ---------------------------------------------------------------------------------------


async def test_a_call_is_recorded_asked_once_and_answered(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        person = client({"result": {"value": [42]}})
        await actor.attach(person)
        assert await call(actor, "cell-1", n=21) == {"value": [42]}
        [asked] = person.asked
        assert (asked.session_id, asked.name) == (actor.id, "double")
        assert asked.arguments == {"n": 21}
        [item] = await calls(b, actor)
        assert (item.id, item.status, item.cell_id) == (asked.call_id, "completed", "cell-1")
        assert (item.arguments, item.result) == ({"n": 21}, {"value": [42]})
        assert b.kinds(actor)[1:] == ["ToolCallStarted", "ItemCompleted"]
        assert [name for name, _ in person.heard] == ["item/started", "item/completed"]


@pytest.mark.parametrize(
    ("arguments", "path", "rule"),
    [
        ({}, "$", "required"),
        ({"n": "x"}, "$.n", "type"),
        ({"n": -1}, "$.n", "minimum"),
        ({"n": 1.5}, "$.n", "type"),
    ],
)
async def test_arguments_that_do_not_fit_reach_nobody(
    tmp_path: Path, arguments: dict[str, Any], path: str, rule: str
) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        person = client({"result": 1})
        await actor.attach(person)
        with pytest.raises(InvalidParams) as caught:
            await call(actor, **arguments)
        assert caught.value.data == {"path": path, "rule": rule}
        assert (person.asked, b.kinds(actor)[1:]) == ([], [])


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ({"error": "No such file."}, ToolFailed, "No such file."),
        (RequestFailed("Bad day."), ToolFailed, "Bad day."),
        ({"value": 1}, ToolFailed, "unknown field"),
        ([1], ToolFailed, "none to `tool/call`"),
        (HostLost("gone"), ToolUnavailable, "not known"),
        (MethodNotFound(), ToolUnavailable, "No client"),
        ({"result": "x" * TOOL_RESULT_BYTES}, TooLarge, "write a file"),
    ],
    ids=["fails", "refuses", "field", "list", "goes", "unknown", "large"],
)
async def test_what_goes_wrong_at_the_client_is_an_error_and_an_item(
    tmp_path: Path, answer: Any, error: type[Exception], said: str
) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        await actor.attach(client(answer))
        with pytest.raises(error, match=said):
            await call(actor, n=1)
        [item] = await calls(b, actor)
        assert (item.status, item.result) == ("failed", None)
        assert item.error is not None
        assert item.error.kind == error.kind  # type: ignore[attr-defined]


async def test_without_a_client_a_tool_is_unavailable_at_once(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        with pytest.raises(ToolUnavailable, match="attached"):
            await call(actor, n=1)


async def test_a_tool_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        payload = {"name": "treble", "arguments": {}}
        with pytest.raises(ToolUnavailable, match="there are: double"):
            await actor.ports.answer(actor, "tool.call", payload, None)


async def test_a_call_has_its_time_and_the_client_is_told(tmp_path: Path) -> None:
    clock = FakeClock()
    async with tool_bench(tmp_path, clock=clock) as b:
        actor = await b.create(options=TOOLS)
        person = client()
        await actor.attach(person)
        calling = asyncio.ensure_future(call(actor, n=1))
        await until(lambda: person.asked and clock.sleepers)
        clock.advance(TOOL_CALL_MS)
        with pytest.raises(ToolUnavailable, match="600 s"):
            await calling
        assert person.cancelled == person.asked


async def test_a_cancelled_call_is_cancelled_at_the_client_and_recorded(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        person = client()
        await actor.attach(person)
        calling = asyncio.ensure_future(call(actor, n=1))
        await until(lambda: person.asked)
        calling.cancel()
        await until(lambda: person.cancelled and person.told("item/completed"))
        [item] = await calls(b, actor)
        assert item.status == "interrupted"


async def test_whoever_declared_the_tools_is_asked(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        first, declarer = client({"result": 1}), client({"result": 2})
        await actor.attach(first)
        await actor.attach(declarer)
        assert await call(actor, n=1) == 1
        actor.tool_client = declarer.client_id
        assert await call(actor, n=1) == 2
        actor.detach(declarer)
        assert await call(actor, n=1) == 1


async def test_the_next_client_is_asked_when_one_does_not_know_the_method(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        for answer in (MethodNotFound(), {"result": 7}, {"result": 8}):
            await actor.attach(client(answer))
        assert await call(actor, n=1) == 7


async def test_a_call_that_is_long_lies_in_an_artifact(tmp_path: Path) -> None:
    long = "x" * OUTPUT_INLINE_BYTES
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        await actor.attach(client({"result": long}))
        assert await call(actor, n=1) == long
        [item] = await calls(b, actor)
        assert (item.arguments, item.result, item.truncated) == ({}, None, True)
        kept = json.loads((actor.artifacts_path / "artifacts" / f"{item.artifact}").read_text())
        assert kept == {"arguments": {"n": 1}, "result": long}


async def test_arguments_that_are_long_do_not_swell_the_journal(tmp_path: Path) -> None:
    long = "x" * OUTPUT_INLINE_BYTES
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        person = client({"result": 2})
        await actor.attach(person)
        assert await call(actor, n=1, more=long) == 2
        assert person.asked[0].arguments == {"n": 1, "more": long}
        started, completed = b.records(actor)[1:]
        assert isinstance(started, r.ToolCallStarted)
        assert isinstance(completed, r.ItemCompleted)
        assert started.arguments == {}
        assert started.artifact == completed.item.artifact  # type: ignore[union-attr]


async def test_a_call_that_a_crash_cut_off_is_closed_and_never_asked_again(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        person = client()
        await actor.attach(person)
        calling = asyncio.ensure_future(call(actor, "cell-1", n=1))
        await until(lambda: person.asked)
        path = b.home / "rlm" / "sessions" / f"{actor.id}.jsonl"
        crashed, session_id = path.read_bytes(), actor.id
        calling.cancel()
    path.write_bytes(crashed)
    path.with_suffix(".checkpoint").unlink(missing_ok=True)
    async with tool_bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        back = client({"result": 1})
        await actor.attach(back, Cursor(gen=1, seq=1))
        [item] = await calls(b, actor)
        assert (item.status, item.cell_id, back.asked) == ("interrupted", "cell-1", [])
        assert item.error is not None
        assert "not known" in item.error.message
        assert actor.state.open_calls == {}


async def test_what_cannot_be_recorded_is_not_asked(tmp_path: Path) -> None:
    files = FaultyFiles(NEVER, "enospc", persist=True)
    async with tool_bench(tmp_path, files=files) as b:
        actor = await b.create(options=TOOLS)
        person = client({"result": 1})
        await actor.attach(person)
        files.left = 1
        with pytest.raises(StoreFull):
            await call(actor, n=1)
        files.left = NEVER
        assert person.asked == []
        assert await call(actor, n=1) == 1


async def test_a_client_that_attaches_sees_the_open_call(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        person, late = client(), client()
        await actor.attach(person)
        calling = asyncio.ensure_future(call(actor, n=1))
        await until(lambda: person.asked)
        await actor.attach(late)
        [started] = late.told("item/started")
        assert (started.item.id, started.item.status) == (person.asked[0].call_id, "inProgress")
        calling.cancel()


async def test_a_denied_call_reaches_nobody(tmp_path: Path) -> None:
    options = SessionOptions(tools=(DOUBLE,), approvals=Approvals(tools="ask"))
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=options)
        person = deciding("deny")
        await actor.attach(person)
        with pytest.raises(ApprovalDenied, match=r"a person did not allow it. Because\."):
            await call(actor, n=21)
        [asked] = person.asked
        assert asked.detail == {"name": "double", "arguments": {"n": 21}}
        assert await calls(b, actor) == []


# --- what the model and the kernel are told -------------------------------------------------------


async def test_the_model_is_told_and_its_prompts_only_grow(tmp_path: Path) -> None:
    models = StubModels(answers(say("one"), say("two")))
    async with tool_bench(tmp_path, models=models) as b:
        actor = await b.create(options=TOOLS)
        await finished(actor, actor.start_turn("go"))
        treble = ClientTool(name="treble", description="Trebles.", input_schema={})
        await actor.configure(SessionOptions(tools=(DOUBLE, treble)))
        await actor.configure(SessionOptions(tools=(DOUBLE, treble)))  # the same: nothing to say
        await finished(actor, actor.start_turn("on"))
        first, second = models.requests
        assert "- `await tools.double(*, n: int, **more)`\n  Doubles n." in first.instructions
        assert "treble" not in first.instructions
        assert second.instructions == first.instructions
        assert second.messages[: len(first.messages)] == first.messages
        told = second.messages[-2]
        assert isinstance(told, UserMessage)
        assert "await tools.treble(**more)`\n  Trebles." in told.text
        notices = [one.text for one in await b.items(actor) if isinstance(one, Notice)]
        assert notices == ["The client's tools are now: double, treble."]


async def test_a_kernel_is_told_now_and_at_its_start(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create(options=TOOLS)
        [kernel] = b.kernels
        assert '"double"' in kernel.given["bootstrap"]()
        await actor.configure(SessionOptions(labels={"a": "1"}))
        assert kernel.bound == []
        await actor.configure(SessionOptions(tools=()))
        assert kernel.bound == [kernel.given["bootstrap"]()]
        assert "double" not in kernel.bound[0]


async def test_every_option_is_journaled_read_and_kept(tmp_path: Path) -> None:
    given = {
        "tools": (DOUBLE,),
        "approvals": Approvals(tools="ask"),
        "on_detach": "keep",
        "labels": {"a": "1"},
        "instructions": "Be brief.",
        "budget": Budget(tokens=1000, usd=0.5),
    }
    async with tool_bench(tmp_path) as b:
        actor = await b.create()
        for name, value in given.items():
            await actor.configure(SessionOptions(**{name: value}))
        assert actor.view().options == SessionOptions(**given)
        session_id = actor.id
    async with tool_bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        assert actor.view().options == SessionOptions(**given)
        assert actor.summary().options is None


async def test_two_configures_at_once_lose_nothing(tmp_path: Path) -> None:
    async with tool_bench(tmp_path) as b:
        actor = await b.create()
        await asyncio.gather(
            actor.configure(SessionOptions(tools=(DOUBLE,), instructions="x")),
            actor.configure(SessionOptions(labels={"a": "1"})),
            actor.configure(SessionOptions(approvals=Approvals(spawns="ask"))),
        )
        assert actor.state.options == SessionOptions(
            tools=(DOUBLE,),
            instructions="x",
            labels={"a": "1"},
            approvals=Approvals(spawns="ask"),
        )
