"""The provider without a key: deterministic, streaming, counted to the token, and it says so."""

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.models.provider import (
    AssistantMessage,
    Call,
    Done,
    Event,
    Message,
    ProviderError,
    Request,
    Text,
    Think,
    Tool,
    ToolResult,
    Usage,
    UserMessage,
)
from rlm_host.models.scripted import ScriptedProvider, Step, answers
from rlm_host.models.scripts import MARK, SCRIPTS, load_script
from rlm_protocol.errors import ConfigInvalid

CELL = Tool(
    name="ipython",
    description="Run code.",
    schema={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)


class Slept:
    """Stands for `anyio.sleep`: remembers what was asked of it, and lets others run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await anyio.lowlevel.checkpoint()


def request(script: str, *messages: Message | str, **more: Any) -> Request:
    said = [UserMessage(text=m) if isinstance(m, str) else m for m in messages]
    return Request(model=f"scripted/{script}", messages=tuple(said), tools=(CELL,), **more)


def ask(provider: ScriptedProvider, asked: Request) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in provider.stream(asked)]

    return anyio.run(collect)


def provider(**scripts: Any) -> ScriptedProvider:
    return ScriptedProvider({**SCRIPTS, **scripts}, sleep=Slept())


def text_of(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, Text))


def calls_of(events: list[Event]) -> tuple[Call, ...]:
    return tuple(event for event in events if isinstance(event, Call))


def play(script: str, prompt: str, *, results: list[str], limit: int = 20) -> list[str]:
    """Be the session: run calls by handing out `results`, until an answer calls nothing."""
    shown: list[Message] = [UserMessage(text=prompt)]
    left, seen, one = list(results), [], provider()
    for _ in range(limit):
        events = ask(one, request(script, *shown))
        assert isinstance(events[-1], Done)
        calls = calls_of(events)
        seen += [str(call.arguments.get("code")) for call in calls] or [text_of(events)]
        shown.append(
            AssistantMessage(text=text_of(events), calls=calls, model=f"scripted/{script}")
        )
        if not calls:
            assert events[-1].stop == "end"
            return seen
        assert events[-1].stop == "tool_calls"
        for call in calls:
            shown.append(ToolResult(call_id=call.id, name=call.name, text=left.pop(0)))
    raise AssertionError("the script never ended its turn")


@pytest.mark.parametrize("script", list(SCRIPTS))
def test_every_script_says_that_it_is_scripted(script: str) -> None:
    assert "scripted" in text_of(ask(provider(), request(script, "what is in README.md?")))


@pytest.mark.parametrize("script", ["echo", "python", "steps"])
def test_a_script_with_nothing_to_do_gives_back_what_it_was_asked(script: str) -> None:
    said = text_of(ask(provider(), request(script, "what is in README.md?")))
    assert said.startswith(MARK)
    assert "what is in README.md?" in said


def test_python_runs_what_follows_run_and_answers_with_the_result() -> None:
    assert play("python", "run: 6 * 7", results=["42"]) == ["6 * 7", MARK + "42"]


def test_python_runs_fenced_blocks_one_after_the_other() -> None:
    prompt = "First this:\n```python\nx = 1\n```\nthen\n```py\nx + 1\n```\n"
    assert play("python", prompt, results=["", "2"]) == ["x = 1\n", "x + 1\n", MARK + "\n2"]


def test_the_call_goes_to_the_tool_that_takes_code_whatever_it_is_named() -> None:
    (call,) = calls_of(ask(provider(), request("python", "run: 1")))
    assert (call.name, call.arguments) == ("ipython", {"code": "1"})


def test_steering_with_new_code_replaces_the_rest_of_the_turn() -> None:
    first = Call(id="call_1", name="ipython", arguments={"code": "a"})
    shown = (
        UserMessage(text="```python\na\n```\n```python\nb\n```"),
        AssistantMessage(calls=(first,), model="scripted/python"),
        ToolResult(call_id="call_1", name="ipython", text="interrupted", is_error=True),
        UserMessage(text="run: c"),
    )
    (call,) = calls_of(ask(provider(), request("python", *shown)))
    assert call.arguments == {"code": "c"}
    assert call.id == "call_2", "ids are unique within a conversation"


def test_a_new_turn_does_not_repeat_the_code_of_the_last_one() -> None:
    shown = (
        UserMessage(text="run: 1"),
        AssistantMessage(text=MARK + "1", model="scripted/python"),
        UserMessage(text="thank you"),
    )
    events = ask(provider(), request("python", *shown))
    assert not calls_of(events)
    assert "thank you" in text_of(events)


def test_cells_that_the_host_tells_of_are_not_run_again() -> None:
    told = "[A person ran these cells in this REPL since your last answer:]\n```python\na\n```\n"
    shown = (UserMessage(text="run: b"), UserMessage(text=told))
    (call,) = calls_of(ask(provider(), request("python", *shown)))
    assert call.arguments == {"code": "b"}


def test_steps_play_a_whole_turn_out_of_the_message() -> None:
    script = [{"think": "hm"}, {"call": "a"}, {"call": "b"}, {"text": "so"}, {"call": "c"}]
    prompt = f"Please play {json.dumps(script)} and submit the result."
    assert play("steps", prompt, results=["1", "2", "3"]) == ["a", "b", "c", MARK + "1\n2\n3"]


def test_calls_in_a_row_are_one_answer_unless_a_stop_lies_between() -> None:
    a, b, stop = Step(call="a"), Step(call="b"), Step(stop="tool_calls")
    usage, text = Step(usage=Usage(input_tokens=1)), Step(text="t")
    assert answers([a, b, text]) == [[a, b], [text]]
    assert answers([a, stop, b]) == [[a, stop], [b]]
    assert answers([a, usage, text]) == [[a, usage], [text]]
    assert answers([]) == []


def test_steps_give_thinking_usage_stop_and_other_tools() -> None:
    script = [
        {"think": "let me see"},
        {"text": "half an answ"},
        {"call": {"name": "grep", "arguments": {"pattern": "x"}}},
        {"usage": {"input_tokens": 1000, "output_tokens": 10, "cache_read_tokens": 600}},
        {"stop": "length"},
    ]
    events = ask(provider(), request("steps", json.dumps(script)))
    thought = "".join(e.delta for e in events if isinstance(e, Think))
    assert (thought, text_of(events)) == ("let me see", "half an answ")
    assert calls_of(events) == (Call(id="call_1", name="grep", arguments={"pattern": "x"}),)
    assert isinstance(events[-1], Done)
    assert events[-1].stop == "length"
    # 400 plain at 1000, 600 cached at 100, 10 out at 4000 nano-USD a token.
    assert events[-1].usage.cost_nano_usd == 400 * 1000 + 600 * 100 + 10 * 4000


def test_an_error_fails_the_first_tries_of_the_same_request_then_lets_it_pass() -> None:
    script = [
        {"error": "rate_limit", "retry_after_ms": 1500, "status": 429, "times": 2},
        {"text": "begun "},
        {"error": "connection", "message": "cut"},
        {"text": "done"},
    ]
    one, asked = provider(), request("steps", json.dumps(script))
    seen = []
    for _ in range(4):
        try:
            seen.append(text_of(ask(one, asked)))
        except ProviderError as failed:
            seen.append((failed.kind, failed.retry_after_ms, failed.status, failed.partial))
    limited = ("rate_limit", 1500, 429, False)
    assert seen == [limited, limited, ("connection", None, None, True), "begun done"]
    with pytest.raises(ProviderError):  # and the next time from the start
        ask(one, asked)


def test_waits_go_through_the_given_sleep_and_long_text_is_cut_into_few_pieces() -> None:
    slept = Slept()
    one = ScriptedProvider(
        {"x": lambda _: [Step(wait_ms=250), Step(text="y" * 10**6)]}, sleep=slept
    )
    events = ask(one, request("x", "go"))
    assert slept.seconds[0] == 0.25
    assert set(slept.seconds[1:]) == {0.0}
    assert text_of(events) == "y" * 10**6
    assert len(events) <= 65


def test_a_scripted_stream_can_be_cancelled_between_two_pieces() -> None:
    async def main() -> list[Event]:
        got: list[Event] = []
        with anyio.CancelScope() as scope:
            async for event in provider().stream(request("echo", "x" * 10_000)):
                got.append(event)
                scope.cancel()
        return got

    assert len(anyio.run(main)) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "exactly one thing"),
        ({"text": "a", "call": "b"}, "exactly one thing"),
        ({"text": "a", "times": 2}, "belong to an error"),
        ({"text": 5}, "Expected `str | null`"),
        ({"say": "a"}, "unknown field"),
        ({"error": "bad mood"}, "Invalid enum value"),
    ],
)
def test_a_wrong_step_is_refused_with_its_number(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ProviderError, match=f"Step 2 of the script: .*{why}") as failed:
        ask(provider(), request("steps", json.dumps([{"text": "fine"}, given])))
    assert failed.value.kind == "rejected"
    assert not failed.value.retryable


def test_an_unknown_script_and_a_script_that_raises_are_provider_errors() -> None:
    with pytest.raises(ProviderError, match="no script named 'nobody'") as failed:
        ask(provider(), request("nobody", "hi"))
    assert failed.value.kind == "not_found"
    with pytest.raises(ProviderError, match="ZeroDivisionError") as failed:
        ask(provider(bad=lambda _: [1 // 0]), request("bad", "hi"))
    assert failed.value.kind == "unknown"


def test_usage_is_counted_by_characters_and_the_old_prefix_is_cached() -> None:
    shown: list[Message] = [UserMessage(text="u" * 400)]
    first = ask(provider(), request("echo", *shown))[-1]
    shown += [AssistantMessage(text="a" * 40, model="scripted/echo"), UserMessage(text="v" * 40)]
    second = ask(provider(), request("echo", *shown))[-1]
    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert first.usage.cache_read_tokens == 0
    assert second.usage.cache_read_tokens == first.usage.input_tokens
    assert second.usage.input_tokens == first.usage.input_tokens + 20
    assert first.usage.output_tokens == (400 + len(MARK)) // 4 + 1
    assert first.usage.cost_nano_usd == (
        first.usage.input_tokens * 1000 + first.usage.output_tokens * 4000
    )


steps_st = st.lists(
    st.one_of(
        st.builds(Step, text=st.text(max_size=200)),
        st.builds(Step, think=st.text(max_size=50)),
        st.builds(Step, call=st.text(max_size=50)),
    ),
    max_size=8,
)


@given(steps_st)
def test_the_same_request_gives_the_same_events_and_loses_nothing(script: list[Step]) -> None:
    asked = request("x", "go")
    once = ask(provider(x=lambda _: script), asked)
    assert once == ask(provider(x=lambda _: script), asked)
    assert text_of(once) == "".join(step.text or "" for step in script)
    assert [c.arguments["code"] for c in calls_of(once)] == [
        step.call for step in script if step.call is not None
    ]
    assert [type(e) is Done for e in once] == [False] * (len(once) - 1) + [True]


@given(steps_st)
def test_the_json_form_of_a_step_is_the_step(script: list[Step]) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(script))
    assert msgspec.convert(sent, list[Step]) == script


def test_a_script_file_answers(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def respond(request):\n    return [{'text': request.messages[-1].text.upper()}]\n"
    )
    one = provider(mine=load_script(file))
    assert text_of(ask(one, request("mine", "hello"))) == "HELLO"


def test_a_json_file_is_played_over_the_whole_conversation(tmp_path: Path) -> None:
    file = tmp_path / "play.json"
    file.write_text('[{"text": "one"}, {"stop": "end"}, {"text": "two"}]')
    one, shown, said = provider(play=load_script(file)), [], []
    for prompt in ("a", "b", "c"):
        shown.append(UserMessage(text=prompt))
        said.append(text_of(ask(one, request("play", *shown))))
        shown.append(AssistantMessage(text=said[-1], model="scripted/play"))
    assert said == ["one", "two", MARK + "The script is over."]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.py", "def respond(:"),
        ("b.py", "x = 1"),
        ("c.json", '[{"say": 1}]'),
        ("d.json", "{"),
        ("e.py", None),
    ],
)
def test_a_file_that_is_no_script_is_a_clear_error(
    tmp_path: Path, name: str, content: str | None
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigInvalid) as failed:
        load_script(tmp_path / name)
    assert failed.value.data == {"path": str(tmp_path / name)}
