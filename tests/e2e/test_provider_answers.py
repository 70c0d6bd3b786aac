"""What a vendor answers, through the seam: events, usage, the transcript there and back."""

import contextlib
from typing import Any

import anyio
import pytest

from rlm_host.models.provider import (
    AssistantMessage,
    Call,
    Done,
    Message,
    Text,
    Think,
    Thinking,
    ToolResult,
    UserMessage,
)
from support.mock_dialects import Usage
from support.mock_vendors import SELECTORS, Answer, Asked, MockVendors, growth
from support.vendor_models import (
    answer_of,
    ask,
    calls_of,
    done_of,
    open_models,
    request,
    text_of,
    thinking_of,
)

every_dialect = pytest.mark.parametrize(("dialect", "selector"), list(SELECTORS.items()))
RICH = Answer(
    think="let me think about it",
    text="I will look.",
    calls=(("python", {"code": "print(1)"}), ("python", {"code": 'print("zwei")'})),
    usage=Usage(input=1000, output=50, cache_read=400),
)


@every_dialect
def test_an_answer_streams_and_its_calls_come_whole_at_the_end(dialect: str, selector: str) -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            events = await ask(models, request(selector, "hi", instructions="Be brief."))
        kinds = [type(event) for event in events]
        assert text_of(events) == RICH.text
        assert thinking_of(events) == RICH.think
        assert [(call.name, call.arguments) for call in calls_of(events)] == list(RICH.calls)
        assert len({call.id for call in calls_of(events)}) == 2
        assert kinds.count(Text) > 1
        assert kinds.count(Think) > 1
        assert kinds[-3:] == [Call, Call, Done]
        assert done_of(events).stop == "tool_calls"

    with MockVendors([RICH]) as vendors:
        anyio.run(main)
    (asked,) = vendors.requests
    assert asked.dialect == dialect
    assert asked.model == selector.partition("/")[2]
    assert b"Be brief." in asked.raw
    assert vendors.hung_up == 0


@pytest.mark.parametrize(
    ("selector", "cost"),
    [
        ("chatty/chat-1", 600 * 1000 + 400 * 500 + 50 * 2000),
        ("openai/gpt-6.1-sol", 600 * 2000 + 400 * 100 + 50 * 10_000),
        ("anthropic/claude-sonnet-5-5", 600 * 2000 + 400 * 100 + 50 * 10_000),
        ("chatty/chat-2", None),
    ],
)
def test_usage_is_counted_and_priced_and_an_unknown_price_is_not_zero(
    selector: str, cost: int | None
) -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            usage = done_of(await ask(models, request(selector, "hi"))).usage
        assert (usage.input_tokens, usage.output_tokens) == (1000, 50)
        assert (usage.cache_read_tokens, usage.cache_write_tokens) == (400, 0)
        assert usage.measured
        assert usage.cost_nano_usd == cost

    with MockVendors([RICH]) as vendors:
        anyio.run(main)


def test_tokens_written_to_the_cache_are_priced_as_such() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            asked = request("anthropic/claude-sonnet-5-5", "hi")
            usage = done_of(await ask(models, asked)).usage
        assert (usage.input_tokens, usage.cache_write_tokens) == (1000, 900)
        assert usage.cost_nano_usd == 100 * 2000 + 900 * 2500 + 20 * 10_000

    with MockVendors([Answer(text="x", usage=Usage(input=1000, cache_write=900))]) as vendors:
        anyio.run(main)


@every_dialect
def test_no_usage_is_unmeasured_and_never_zero_cost(dialect: str, selector: str) -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            usage = done_of(await ask(models, request(selector, "hi"))).usage
        assert not usage.measured
        assert usage.cost_nano_usd is None

    silent = Usage(input=0, output=0) if dialect == "messages" else None
    with MockVendors([Answer(text="hello", usage=silent)]) as vendors:
        anyio.run(main)


async def converse(vendors: MockVendors, selector: str, other: str | None = None) -> list[Message]:
    """Hold a conversation with calls, an error, steering and a second turn; give the transcript."""
    shown: list[Message] = [UserMessage(text="Look at it.")]
    async with open_models(vendors) as models:
        for number in range(4):
            model = other or selector if number == 3 else selector
            events = await ask(models, request(model, *shown, instructions="Be brief."))
            shown.append(answer_of(events, model))
            for n, call in enumerate(calls_of(events)):
                failed = n == 1
                text = "NameError: zwei" if failed else f"result {number}"
                shown.append(
                    ToolResult(call_id=call.id, name=call.name, text=text, is_error=failed)
                )
            shown.append(UserMessage(text=f"And then {number}?"))
    return shown


@every_dialect
def test_a_conversation_goes_back_with_its_signatures_and_only_grows(
    dialect: str, selector: str
) -> None:
    with MockVendors([RICH, RICH, Answer(text="So."), Answer(text="Done.")]) as vendors:
        shown = anyio.run(converse, vendors, selector)
    assert isinstance(shown[-2], AssistantMessage)
    assert shown[-2].text == "Done."
    first, *_, last = vendors.requests
    for before, after in zip(vendors.requests, vendors.requests[1:], strict=False):
        assert growth(before, after) == 1.0
        assert len(after.prompt()) > len(before.prompt())
    sent = last.raw.decode()
    for text in ("Look at it.", "I will look.", "result 0", "NameError: zwei", "And then 2?"):
        assert text in sent
    assert "INVALID" not in sent
    signature = {"messages": "signed-0", "responses": "sealed-0", "chat": "let me think"}[dialect]
    assert (signature in sent) == (signature not in first.raw.decode())
    if dialect == "messages":
        results = [b for m in last.messages for b in m["content"] if b["type"] == "tool_result"]
        assert [bool(b.get("is_error")) for b in results] == [False, True, False, True]


@every_dialect
def test_another_model_gets_text_and_calls_without_the_first_ones_secrets(
    dialect: str, selector: str
) -> None:
    others = {
        "chat": "chatty/chat-2",
        "responses": "openai/gpt-6-luna",
        "messages": "anthropic/claude-haiku-5-5",
    }
    answers = [RICH, RICH, Answer(think="hm", text="So."), Answer(text="Done.")]
    with MockVendors(answers) as vendors:
        anyio.run(converse, vendors, selector, others[dialect])
    sent = vendors.requests[-1].raw.decode()
    assert "I will look." in sent
    assert "result 1" in sent
    for secret in ("signed-", "sealed-", "let me think", "rs_0", "msg_0"):
        assert secret not in sent


def test_results_stand_next_to_their_calls_whatever_was_said_meanwhile() -> None:
    async def main() -> None:
        call = Call(id="c1", name="python", arguments={"code": "1"})
        shown: list[Message | str] = [
            "Look.",
            AssistantMessage(calls=(call,), model=SELECTORS["messages"]),
            UserMessage(text="Hurry!"),
            ToolResult(call_id="c1", name="python", text="1"),
        ]
        async with open_models(vendors) as models:
            await ask(models, request(SELECTORS["messages"], *shown))

    with MockVendors([Answer(text="x")]) as vendors:
        anyio.run(main)
    kinds = [block["type"] for block in vendors.requests[0].messages[-1]["content"]]
    assert kinds == ["tool_result", "text"]


def test_a_conversation_moves_between_all_vendors() -> None:
    async def main() -> None:
        shown: list[Message] = [UserMessage(text="Look at it.")]
        async with open_models(vendors) as models:
            for selector in [*SELECTORS.values(), *SELECTORS.values(), "scripted/echo"]:
                events = await ask(models, request(selector, *shown))
                shown.append(answer_of(events, selector))
                shown += [ToolResult(call_id=c.id, name=c.name, text="1") for c in calls_of(events)]
                shown.append(UserMessage(text="Go on."))

    with MockVendors(lambda asked: RICH) as vendors:
        anyio.run(main)
    assert len(vendors.requests) == 6


def test_an_opaque_part_that_cannot_be_read_is_left_out() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            for opaque in (b"\xff", b"[]", b"{}", b'[{"kind": "request", "parts": []}]', b"[1, 2]"):
                old = AssistantMessage(text="kept", opaque=opaque, model=selector)
                await ask(models, request(selector, "a", old, "b"))

    selector = SELECTORS["messages"]
    with MockVendors(lambda asked: Answer(text="x")) as vendors:
        anyio.run(main)
    assert all(b"kept" in asked.raw for asked in vendors.requests)


def test_a_plain_answer_needs_no_opaque_bytes() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            events = await ask(models, request(SELECTORS["chat"], "hi"))
            assert done_of(events).opaque == b""

    with MockVendors([Answer(text="hello", calls=(("python", {"code": "1"}),))]) as vendors:
        anyio.run(main)


@pytest.mark.parametrize(
    ("selector", "level", "sent"),
    [
        ("openai/gpt-6.1-sol", "max", {"effort": "max"}),
        ("openai/gpt-6-luna", "off", {"effort": "none"}),
        ("anthropic/claude-sonnet-5-5", "xhigh", {"effort": "xhigh"}),
        ("chatty/chat-1", "low", {"reasoning_effort": "low"}),
    ],
)
def test_an_accepted_thinking_level_reaches_the_vendor_as_it_is(
    selector: str, level: Thinking, sent: Any
) -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            await ask(models, request(selector, "hi", thinking=level, max_output_tokens=777))

    with MockVendors([Answer(text="x")]) as vendors:
        anyio.run(main)
    body = vendors.requests[0].body
    found = body.get("reasoning") or body.get("output_config") or body
    assert found.items() >= sent.items()
    limits = ("max_output_tokens", "max_completion_tokens", "max_tokens")
    assert [body[limit] for limit in limits if limit in body] == [777]


def test_cache_breakpoints_are_set_and_openai_stores_nothing() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            for selector in SELECTORS.values():
                await ask(models, request(selector, "hi", instructions="Be brief."))

    with MockVendors(lambda asked: Answer(text="x")) as vendors:
        anyio.run(main)
    by_dialect = {asked.dialect: asked for asked in vendors.requests}
    assert b"cache_control" in by_dialect["messages"].raw
    assert by_dialect["responses"].body["store"] is False


def test_each_provider_gets_its_own_key_and_a_keyless_one_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        local = {"kind": "openai", "base_url": vendors.openai_url, "models": ["m"]}
        also = {"kind": "anthropic", "base_url": vendors.anthropic_url, "models": ["m"]}
        async with open_models(vendors, tables={"local": local, "also": also}) as models:
            for selector in [*SELECTORS.values(), "local/m", "also/m"]:
                await ask(models, request(selector, "hi"))

    # The vendors' libraries look here by themselves when nobody stops them.
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "sk-canary")
    with MockVendors(lambda asked: Answer(text="x")) as vendors:
        anyio.run(main)
    assert [asked.key for asked in vendors.requests] == [
        "sk-chatty",
        "sk-openai",
        "sk-ant",
        "none",
        "none",
    ]
    assert all("canary" not in str(asked.headers) for asked in vendors.requests)
    assert all(b"canary" not in asked.raw for asked in vendors.requests)


@every_dialect
def test_two_requests_run_side_by_side(dialect: str, selector: str) -> None:
    async def main() -> None:
        async with open_models(vendors) as models, anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(ask, models, request(selector, "hi"))
            await anyio.to_thread.run_sync(vendors.wait, lambda: vendors.busiest == 2)
            tasks.cancel_scope.cancel()

    with MockVendors(lambda asked: Answer(hang=True)) as vendors:
        anyio.run(main)


def test_leaving_the_stream_in_the_middle_closes_the_request() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            for n, selector in enumerate(SELECTORS.values(), 1):
                _, provider = models.provider_for(selector)
                async with contextlib.aclosing(provider.stream(request(selector, "hi"))) as events:
                    await anext(events)
                await anyio.to_thread.run_sync(vendors.wait, lambda n=n: vendors.hung_up == n)

    with MockVendors(lambda asked: Answer(text="x" * 3000, stall_after=9)) as vendors:
        anyio.run(main)


def test_a_script_sees_what_was_asked() -> None:
    def script(asked: Asked) -> Answer:
        return Answer(text=f"you said {asked.last_text}")

    async def main() -> None:
        async with open_models(vendors) as models:
            for selector in SELECTORS.values():
                assert text_of(await ask(models, request(selector, "hi"))) == "you said hi"

    with MockVendors(script) as vendors:
        anyio.run(main)
