"""The agent loop: what is durable when, what is tried again, and how an interrupt ends it."""

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlm_host.models.provider import (
    AssistantMessage,
    Call,
    Done,
    ProviderError,
    Text,
    Think,
    ToolResult,
    UserMessage,
)
from rlm_protocol import records as r
from rlm_protocol.errors import InvalidParams, TurnBusy, TurnMismatch, TurnNotActive
from rlm_protocol.item import AgentMessage, Notice, Reasoning, ReplCell, ToolCall
from rlm_protocol.item import UserMessage as UserItem
from rlm_protocol.session import SessionOptions
from support.journals import FaultyFiles
from support.processes import FakeClock
from support.sessions import (
    MODEL,
    USAGE,
    StubModels,
    answers,
    bench,
    finished,
    hanging,
    say,
    until,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def call(code: str, n: int = 1) -> Call:
    return Call(id=f"call{n}", name="python", arguments={"code": code})


def calling(*codes: str) -> list[Any]:
    calls = [call(code, n) for n, code in enumerate(codes, 1)]
    return [*calls, Done(stop="tool_calls", usage=USAGE)]


def last(records: list[r.Record]) -> r.TurnCompleted:
    ended = [one for one in records if isinstance(one, r.TurnCompleted)]
    assert len(ended) == 1, "exactly one terminal event"
    assert records[-1] is ended[0], "and nothing after it"
    return ended[0]


# --- the way of a turn ----------------------------------------------------------------------------


async def test_a_turn_without_calls(tmp_path: Path) -> None:
    async with bench(tmp_path, answers([Think(delta="hm"), *say("hello")])) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("hi", client_message_id="m1"))
        assert b.kinds(actor) == [
            "SessionOpened",
            "TurnAccepted",
            "ItemCompleted",
            "ProviderIntent",
            "ProviderOutcome",
            "ItemCompleted",
            "ItemCompleted",
            "TurnCompleted",
        ]
        user, thought, said = await b.items(actor)
        assert (type(user), user.text, user.client_message_id) == (UserItem, "hi", "m1")
        assert (type(thought), thought.text) == (Reasoning, "hm")
        assert (type(said), said.text, said.status) == (AgentMessage, "hello", "completed")
        assert actor.state.own == last(b.records(actor)).usage
        assert (actor.state.own.responses, actor.state.own.cost_nano_usd) == (1, 5)


async def test_the_intent_is_on_disk_when_the_request_goes_out(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    async with bench(tmp_path) as b:
        actor = await b.create()

        async def look() -> None:
            seen.append(b.kinds(actor))

        actor.models = StubModels(answers([look, *say("x")]))
        await finished(actor, actor.start_turn("hi"))
        assert seen[0][-1] == "ProviderIntent"


async def test_calls_run_in_order_and_their_results_go_back(tmp_path: Path) -> None:
    models = StubModels(answers(calling("say one", "value 2"), say("done")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        assert b.kernels[0].cells == ["say one", "value 2"]
        first, second = models.requests
        assert second.messages[: len(first.messages)] == first.messages
        assert second.messages[-2:] == (
            ToolResult(call_id="call1", name="python", text="one"),
            ToolResult(call_id="call2", name="python", text="2"),
        )
        intents = [one for one in b.records(actor) if isinstance(one, r.ProviderIntent)]
        encode = msgspec.json.Encoder(order="deterministic").encode
        assert [one.sha256 for one in intents] == [
            hashlib.sha256(encode(request)).hexdigest() for request in models.requests
        ]


async def test_no_call_runs_before_the_answer_is_complete_and_durable(tmp_path: Path) -> None:
    cells: list[list[str]] = []
    async with bench(tmp_path) as b:
        actor = await b.create()

        async def look() -> None:
            cells.append(list(b.kernels[0].cells))

        actor.models = StubModels(
            answers([call("say x"), look, Done(stop="tool_calls", usage=USAGE)], say("done"))
        )
        await finished(actor, actor.start_turn("go"))
        assert cells == [[]]
        kinds = b.kinds(actor)
        assert kinds.index("ProviderOutcome") < kinds.index("CellStarted")


@pytest.mark.parametrize(
    "broken",
    [
        [Text(delta="almost")],
        [Text(delta="almost"), call("say x")],
        [call("say x"), ProviderError("connection", "cut", partial=True)],
    ],
    ids=["no end", "no end after a call", "cut after a call"],
)
async def test_a_broken_answer_executes_nothing_and_is_tried_again(
    tmp_path: Path, broken: list[Any]
) -> None:
    clock = FakeClock()
    async with bench(tmp_path, answers(broken, say("whole")), clock=clock) as b:
        actor = await b.create()
        await actor.start_turn("go")
        await until(lambda: clock.sleepers)
        clock.advance(1000)
        await finished(actor)
        assert b.kernels[0].cells == []
        items = await b.items(actor)
        assert [one.text for one in items if isinstance(one, AgentMessage)][-1] == "whole"
        assert all(one.status == "failed" for one in items[:-1] if isinstance(one, AgentMessage))
        assert last(b.records(actor)).status == "completed"


# --- trying again ---------------------------------------------------------------------------------


async def test_an_overloaded_provider_is_asked_again_and_it_shows(tmp_path: Path) -> None:
    clock = FakeClock()
    busy = ProviderError("overloaded", "The provider is overloaded.")
    models = StubModels(answers([busy], [busy], say("at last")))
    async with bench(tmp_path, models=models, clock=clock) as b:
        actor = await b.create()
        await actor.start_turn("go")
        for wait_ms in (500, 1000):
            await until(lambda: [due for due, _ in clock.sleepers if due > clock.time_ms])
            due_ms = clock.sleepers[0][0] - clock.time_ms
            assert wait_ms / 2 <= due_ms <= wait_ms
            clock.advance(wait_ms)
        await finished(actor)
        notices = [one.text for one in await b.items(actor) if isinstance(one, Notice)]
        assert ["attempt 2 of 5" in notices[0], "attempt 3 of 5" in notices[1]] == [True, True]
        assert len({request.messages for request in models.requests}) == 1, "notices are not shown"
        attempts = [one.attempt for one in b.records(actor) if isinstance(one, r.ProviderIntent)]
        assert attempts == [1, 2, 3]


async def test_it_gives_up_after_five_tries(tmp_path: Path) -> None:
    clock = FakeClock()
    busy = ProviderError("rate_limit", "Slow down.", retry_after_ms=3000)
    models = StubModels(answers(*[[busy]] * 9))
    async with bench(tmp_path, models=models, clock=clock) as b:
        actor = await b.create()
        await actor.start_turn("go")
        for _ in range(4):
            await until(lambda: [due for due, _ in clock.sleepers if due > clock.time_ms])
            assert clock.sleepers[0][0] - clock.time_ms >= 3000, "the vendor's wish is obeyed"
            clock.advance(60_000)
        await finished(actor)
        assert len(models.requests) == 5
        ended = last(b.records(actor))
        assert ended.status == "failed"
        assert ended.error is not None
        assert (ended.error.kind, ended.error.message) == ("providerFailed", "Slow down.")


@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        ("auth", "authRequired"),
        ("not_found", "modelUnavailable"),
        ("rejected", "providerFailed"),
        ("quota", "providerFailed"),
        ("context_overflow", "providerFailed"),
    ],
)
async def test_what_cannot_get_better_is_not_tried_again(
    tmp_path: Path, kind: Any, becomes: str
) -> None:
    models = StubModels(answers([ProviderError(kind, "No.")]))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        assert len(models.requests) == 1
        ended = last(b.records(actor))
        assert ended.error is not None
        assert (ended.status, ended.error.kind) == ("failed", becomes)


async def test_a_bug_ends_the_turn_with_a_token_and_the_session_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path, answers([ValueError("oops")], say("fine")), bugs=True) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        ended = last(b.records(actor))
        assert ended.error is not None
        assert ended.error.kind == "internalError"
        assert "oops" not in ended.error.message
        assert "oops" in caplog.text
        await finished(actor, actor.start_turn("again"))
        assert actor.state.last_status == "completed"


async def test_stops_that_are_not_whole_answers(tmp_path: Path) -> None:
    cut = [Text(delta="an"), Done(stop="length", usage=USAGE)]
    filtered = [Text(delta="an"), Done(stop="content_filter", usage=USAGE)]
    async with bench(tmp_path, answers(cut, filtered)) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        assert actor.state.last_status == "completed"
        [notice] = [one for one in await b.items(actor) if isinstance(one, Notice)]
        assert "output limit" in notice.text
        await finished(actor, actor.start_turn("go"))
        assert actor.state.last_status == "failed"


# --- cells ----------------------------------------------------------------------------------------


async def test_an_unknown_tool_and_wrong_arguments_are_told_to_the_model(tmp_path: Path) -> None:
    wrong = [
        Call(id="1", name="bash", arguments={"cmd": "ls"}),
        Call(id="2", name="python", arguments={"code": 5}),
        Done(stop="tool_calls", usage=USAGE),
    ]
    models = StubModels(answers(wrong, say("sorry")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        assert b.kernels[0].cells == []
        results = models.requests[1].messages[-2:]
        assert [one.is_error for one in results if isinstance(one, ToolResult)] == [True, True]
        kinds = [type(one) for one in await b.items(actor)]
        assert kinds.count(ToolCall) == 2


async def test_a_dead_kernel_fails_its_cell_once_and_names_come_back(tmp_path: Path) -> None:
    models = StubModels(answers(calling("die"), calling("say x"), say("ok")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        died, after = (m for m in models.requests[2].messages if isinstance(m, ToolResult))
        assert died.is_error
        assert "SIGKILL" in died.text
        assert "last words" in died.text
        assert "Names that came back: a." in after.text
        assert after.text.endswith("x")
        cells = [one for one in await b.items(actor) if isinstance(one, ReplCell)]
        assert [one.status for one in cells] == ["failed", "completed"]
        assert cells[0].error is not None
        assert cells[0].error.ename == "KernelDied"
        assert cells[1].kernel == 1


async def test_without_any_kernel_the_turn_fails(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(calling("none"))) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        ended = last(b.records(actor))
        assert ended.error is not None
        assert ended.error.kind == "kernelUnavailable"


async def test_long_output_is_cut_for_the_model_and_whole_in_an_artifact(tmp_path: Path) -> None:
    long = "".join(f"{n}\n" for n in range(80_000))
    models = StubModels(answers(calling(f"say {long}"), say("ok")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        shown = models.requests[1].messages[-1]
        assert isinstance(shown, ToolResult)
        assert len(shown.text) < 19_000
        assert shown.text.startswith("0\n1\n")
        assert shown.text.endswith("79999\n".rstrip())
        [cell] = [one for one in await b.items(actor) if isinstance(one, ReplCell)]
        assert cell.truncated
        assert len(cell.stdout.encode()) <= 256 * 1024
        assert cell.artifact is not None
        assert cell.artifact in shown.text
        got, offset = b"", 0
        while offset is not None:
            piece = await actor.read_artifact(cell.artifact, offset, 100_001)
            got += (piece.text or "").encode()
            offset = piece.next_offset
        assert got.decode() == long


# --- what is said meanwhile -----------------------------------------------------------------------


async def test_steering_enters_before_the_next_request(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create()

        async def steer() -> None:
            assert actor.state.turn is not None
            await actor.steer(actor.state.turn.turn_id, "turn left")

        models = actor.models = StubModels(
            answers([call("say x"), steer, Done(stop="tool_calls", usage=USAGE)], say("ok"))
        )
        await finished(actor, actor.start_turn("go"))
        assert [type(m) for m in models.requests[1].messages] == [
            UserMessage,
            AssistantMessage,
            ToolResult,
            UserMessage,
        ]
        assert models.requests[1].messages[-1] == UserMessage(text="turn left")


async def test_steering_during_the_last_answer_leads_to_one_more(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create()

        async def steer() -> None:
            assert actor.state.turn is not None
            await actor.steer(actor.state.turn.turn_id, "one more thing")

        models = actor.models = StubModels(answers([steer, *say("bye")], say("right")))
        await finished(actor, actor.start_turn("go"))
        assert models.requests[1].messages[-2:] == (
            AssistantMessage(text="bye", model=MODEL),
            UserMessage(text="one more thing"),
        )
        assert actor.state.turns == 1


async def test_only_the_running_turn_is_steered_and_only_one_runs(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with bench(tmp_path, answers([gate.wait, *say("x")])) as b:
        actor = await b.create()
        with pytest.raises(TurnNotActive):
            await actor.steer("t", "x")
        turn_id = await actor.start_turn("go")
        with pytest.raises(TurnBusy) as busy:
            await actor.start_turn("me too")
        assert busy.value.data["turn_id"] == turn_id
        with pytest.raises(TurnMismatch):
            await actor.steer("another", "x")
        with pytest.raises(TurnMismatch):
            await actor.interrupt("another")
        gate.set()
        await finished(actor)
        assert actor.state.turns == 1


async def test_follow_ups_run_after_the_turn_one_by_one(tmp_path: Path) -> None:
    gate = asyncio.Event()
    models = StubModels(answers([gate.wait, *say("1")], say("2"), say("3")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await actor.start_turn("first")
        ids = [await actor.queue(text) for text in ("second", "dropped", "third")]
        assert [one.text for one in actor.queued()] == ["second", "dropped", "third"]
        assert await actor.withdraw(ids[1])
        assert not await actor.withdraw(ids[1])
        gate.set()
        await finished(actor)
        said = [m.text for m in models.requests[-1].messages if isinstance(m, UserMessage)]
        assert said == ["first", "second", "third"]
        assert (actor.state.turns, actor.queued()) == (3, ())


async def test_people_and_model_share_the_kernel_and_the_model_is_told(tmp_path: Path) -> None:
    models = StubModels(answers(say("1"), say("2")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go"))
        result = await actor.execute_cell("value = 5")
        assert result.status == "ok"
        await finished(actor, actor.start_turn("what is it?"))
        told = models.requests[1].messages[-1]
        assert isinstance(told, UserMessage)
        assert "value = 5" in told.text
        assert "define, change or delete: value" in told.text


# --- output schema --------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_an_output_that_fits_its_schema_is_in_the_terminal_event(tmp_path: Path) -> None:
    models = StubModels(answers(say('{"n": "x"}'), say('```json\n{"n": 3}\n```')))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go", output_schema=SCHEMA))
        assert last(b.records(actor)).output == {"n": 3}
        asked, again = models.requests[1].messages[0], models.requests[1].messages[-1]
        assert isinstance(asked, UserMessage)
        assert '"required": ["n"]' in asked.text
        assert isinstance(again, UserMessage)
        assert "$.n" in again.text
        assert (await b.items(actor))[0].text == "go", "the person's own words stay as they are"


async def test_an_output_that_never_fits_fails_the_turn(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(*[say("no json")] * 9)) as b:
        actor = await b.create()
        await finished(actor, actor.start_turn("go", output_schema=SCHEMA))
        ended = last(b.records(actor))
        assert ended.error is not None
        assert (ended.status, ended.error.kind) == ("failed", "resultInvalid")
        assert actor.state.own.responses == 3
        with pytest.raises(InvalidParams):
            await actor.start_turn("go", output_schema={"type": "no such type"})
        assert actor.state.turns == 1


# --- interrupts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "phase", "items"),
    [
        ([hanging], "request", []),
        ([Text(delta="so f"), hanging], "request", [("agentMessage", "interrupted")]),
        ([ProviderError("overloaded", "busy")], "request", [("notice", "completed")]),
        (calling("wait"), "cell", [("replCell", "interrupted")]),
        (calling("hang", "say never"), "cell", [("replCell", "interrupted")]),
    ],
    ids=["silent provider", "streaming", "between tries", "a cell", "a cell that hangs"],
)
async def test_an_interrupt_ends_the_turn_in_a_second_whatever_hangs(
    tmp_path: Path, script: list[Any], phase: str, items: list[tuple[str, str]]
) -> None:
    clock = FakeClock()
    models = StubModels(answers(script))
    async with bench(tmp_path, models=models, clock=clock) as b:
        actor = await b.create()
        await b.listen(actor)
        turn_id = await actor.start_turn("go")
        begun = "item/delta" if items and items[0][0] != "notice" else ""
        await until(
            lambda: (
                clock.sleepers
                or any(method == begun for method, _ in b.heard)
                or (not items and models.requests)
            )
        )
        began = time.monotonic()
        assert await actor.interrupt() == turn_id
        await until(lambda: any(method == "turn/completed" for method, _ in b.heard))
        assert time.monotonic() - began < 5, "1 s and what a loaded machine adds"
        ended = last(b.records(actor))
        assert (ended.status, ended.phase) == ("interrupted", phase)
        got = [(type(i).__struct_config__.tag, i.status) for i in (await b.items(actor))[1:]]
        assert got == items
        assert b.kernels[0].cells in ([], ["wait"], ["hang"])
        assert actor.state.turn is None


async def test_a_provider_that_fails_after_it_was_left_behind_is_no_bug_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.wait()  # it does not let go, and fails much later
        raise ProviderError("connection", "The line was cut.")

    models = StubModels(answers([Text(delta="so f"), stubborn], say("again")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await b.listen(actor)
        await actor.start_turn("go")
        await until(lambda: any(method == "item/delta" for method, _ in b.heard))
        await actor.interrupt()
        await finished(actor)
        gate.set()
        await finished(actor, actor.start_turn("go on"))
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


async def test_a_turn_is_interrupted_before_it_runs(tmp_path: Path) -> None:
    models = StubModels(answers())
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        starting = asyncio.ensure_future(actor.start_turn("go"))
        await asyncio.sleep(0)
        await actor.interrupt()
        await starting
        await finished(actor)
        assert models.requests == []
        ended = last(b.records(actor))
        assert (ended.status, ended.phase) == ("interrupted", "accepted")
        assert await actor.interrupt() is None


async def test_after_an_interrupt_the_next_request_is_well_formed(tmp_path: Path) -> None:
    models = StubModels(answers(calling("wait", "say never"), say("ok")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await b.listen(actor)
        await actor.start_turn("go")
        await until(lambda: any(method == "item/delta" for method, _ in b.heard))
        await actor.interrupt()
        await finished(actor)
        await finished(actor, actor.start_turn("go on"))
        kinds = [type(m) for m in models.requests[1].messages]
        assert kinds == [UserMessage, AssistantMessage, ToolResult, ToolResult, UserMessage]


async def test_a_stop_of_the_subtree_holds_what_waits_until_a_person_starts(
    tmp_path: Path,
) -> None:
    gate = asyncio.Event()
    models = StubModels(answers([gate.wait, *say("1")], say("2"), say("3")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await actor.start_turn("go")
        await actor.queue("later")
        await until(lambda: models.requests)
        await actor.interrupt(subtree=True)
        await finished(actor)
        notice = Notice(id="n1", level="info", text="done")
        assert await actor.deliver(notice, shown="done", origin="notice") == "queued"
        assert actor.state.turns == 1
        await finished(actor, actor.start_turn("now"))
        assert actor.state.turns == 3
        assert actor.queued() == ()


# --- the disk -------------------------------------------------------------------------------------


async def test_on_a_full_disk_the_turn_fails_and_its_end_waits_for_room(tmp_path: Path) -> None:
    clock, files = FakeClock(), FaultyFiles(0, "enospc", persist=True)
    files.left = 10**9
    async with bench(tmp_path, answers(say("x")), clock=clock, files=files) as b:
        actor = await b.create()
        await b.listen(actor)

        async def fill() -> None:
            files.left = 0

        actor.models = StubModels(answers([fill, *say("x")]))
        await actor.start_turn("go")
        await until(lambda: clock.sleepers)
        told = [p.item for m, p in b.heard if m == "item/completed" and p.item.id[:5] == "error"]
        assert told[-1].error.kind == "storeFull"
        assert not any(method == "turn/completed" for method, _ in b.heard)
        files.left = 10**9
        clock.advance(1000)
        await finished(actor)
        ended = last(b.records(actor))
        assert ended.error is not None
        assert ended.error.kind == "storeFull"
        assert actor.state.turn is None


# --- what a model is told first -------------------------------------------------------------------

GOLDEN = Path(__file__).with_name("golden_first_request.json")


async def test_the_first_request_is_the_golden_one(tmp_path: Path) -> None:
    """A change here changes what every agent is told, and empties every provider's cache."""
    models = StubModels(answers(say("ok")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create(options=SessionOptions(instructions="Be brief."))
        await finished(actor, actor.start_turn("hi"))
    request = json.loads(msgspec.json.encode(models.requests[0]))
    request["instructions"] = request["instructions"].splitlines()
    got = json.dumps(request, indent=1, ensure_ascii=False) + "\n"
    kept = GOLDEN.read_text() if GOLDEN.exists() else ""
    if not kept:
        GOLDEN.write_text(got)
    assert kept == got, f"if it is meant: delete {GOLDEN.name}, run this twice, commit the file"
