"""A server that says what no dialect allows: each has its kind, and nothing of it can spoil a session."""

import json
import math
from typing import Any

import anyio
import pytest

from rlm_host.models.failures import RETRY_AFTER_MAX_MS
from rlm_host.models.provider import Done, ErrorKind, Event, ProviderError
from support.mock_vendors import SELECTORS, Answer, MockVendors
from support.vendor_models import ask, done_of, open_models, request, text_of

# The library warns of numbers that it cannot use; what we make of them is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::Warning")
CHAT = SELECTORS["chat"]


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: object, finish: str | None = None, usage: object = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**head, "choices": [choice], **({"usage": usage} if usage else {})})


def calls(*given: dict[str, Any]) -> Answer:
    made = [{"index": i, "function": call, "id": call.pop("id")} for i, call in enumerate(given)]
    return Answer(body=chunk({"tool_calls": made}) + chunk({}, "tool_calls"))


def call(arguments: str, name: str = "python", call_id: str = "c1") -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "id": call_id}


async def get(vendors: MockVendors, selector: str = CHAT) -> list[Event]:
    async with open_models(vendors) as models:
        return await ask(models, request(selector, "hi"))


def refused(answer: Answer) -> ProviderError:
    with MockVendors([answer]) as vendors, pytest.raises(ProviderError) as failed:
        anyio.run(get, vendors)
    failed.value.message.encode()
    return failed.value


def answered(answer: Answer) -> list[Event]:
    with MockVendors([answer]) as vendors:
        return anyio.run(get, vendors)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (calls(call('{"code": NaN}')), "bad_output"),
        (calls(call('{"code": 1e999}')), "bad_output"),
        (calls(call('{"code": "\\ud800"}')), "bad_output"),
        (calls(call('{"code": ' + "[" * 100_000 + "]" * 100_000 + "}")), "bad_output"),
        (calls(call('{"code": ' + "9" * 5000 + "}")), "bad_output"),
        (calls(call('["code"]')), "bad_output"),
        (calls(call("{}", name="")), "bad_output"),
        (calls(call("{}", name="python\n")), "bad_output"),
        (calls(call("{}", name="p" * 65)), "bad_output"),
        (calls(call("{}"), call("{}")), "bad_output"),
        (Answer(body=event(None)), "bad_output"),
        (Answer(body=event([1])), "bad_output"),
        (Answer(body=event(3)), "bad_output"),
        (Answer(body=event("text")), "bad_output"),
        (Answer(body=b"<html>Please log in</html>"), "bad_output"),
        (Answer(body=b""), "bad_output"),
        (Answer(body=chunk({"content": "a"}, "because")), "bad_output"),
        (Answer(body=b'data: {"choices": "\xff"}\n\n'), "bad_output"),
        (Answer(status=400, error_message="a\ud800"), "rejected"),
    ],
)
def test_what_no_vendor_would_take_back_is_bad_output_and_never_a_call(
    answer: Answer, kind: ErrorKind
) -> None:
    assert refused(answer).kind == kind


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("a\ud800b", "a\N{REPLACEMENT CHARACTER}b"),
        ("\udf78", "\N{REPLACEMENT CHARACTER}"),
        ("\ud83c\udf78", "🍸"),
        ("a\x00b\u2028\x85", "a\x00b\u2028\x85"),
    ],
)
@pytest.mark.parametrize("part", ["content", "reasoning_content"])
def test_text_is_always_text_that_can_be_written_down(sent: str, text: str, part: str) -> None:
    events = answered(Answer(body=chunk({part: sent}) + chunk({"content": "."}, "stop")))
    said = "".join(getattr(one, "delta", "") for one in events)
    assert said == text + "."


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": -7, "total_tokens": -12},
        {"prompt_tokens": 10**30, "completion_tokens": 1, "total_tokens": 1},
        {"prompt_tokens": 5.5, "completion_tokens": 1, "total_tokens": 6},
        {"prompt_tokens": "many", "completion_tokens": None},
        {"prompt_tokens": True, "completion_tokens": 1, "total_tokens": 2},
        {
            "prompt_tokens": 5,
            "completion_tokens": 1,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 50},
        },
    ],
    ids=["negative", "huge", "fraction", "text", "bool", "more-cached-than-sent"],
)
def test_numbers_that_cannot_be_token_counts_are_unmeasured_and_cost_nothing_known(
    usage: dict[str, Any],
) -> None:
    events = answered(Answer(body=chunk({"content": "a"}) + chunk({}, "stop", usage)))
    assert text_of(events) == "a"
    used = done_of(events).usage
    if isinstance(usage["prompt_tokens"], bool):  # JSON's true is read as 1 by the library
        assert type(used.input_tokens) is int
    else:
        assert (used.measured, used.cost_nano_usd, used.input_tokens) == (False, None, 0)


@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
@pytest.mark.parametrize(
    "wish",
    ["inf", "nan", "-5", "1e400", "soon", "9" * 20, "Wed, 21 Oct 9999 07:28:00 GMT", "", "0"],
)
def test_no_wish_to_wait_can_silence_a_key_for_ever(header: str, wish: str) -> None:
    failed = refused(Answer(status=429, headers=((header, wish),)))
    assert failed.kind == "rate_limit"
    waits = failed.retry_after_ms
    assert waits is None or (math.isfinite(waits) and 0 <= waits <= RETRY_AFTER_MAX_MS)


@pytest.mark.parametrize("selector", SELECTORS.values())
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_with_the_key(selector: str, status: int) -> None:
    with MockVendors([Answer(text="stolen")]) as elsewhere:
        there = (("location", f"{elsewhere.openai_url}/chat/completions"),)
        with (
            MockVendors([Answer(status=status, headers=there)]) as vendors,
            pytest.raises(ProviderError, match="base_url") as failed,
        ):
            anyio.run(get, vendors, selector)
    assert elsewhere.requests == []
    assert (failed.value.kind, failed.value.retryable) == ("rejected", False)


def test_an_answer_without_anything_in_it_is_still_an_end() -> None:
    events = answered(Answer(body=chunk(None) + chunk({}, "stop")))
    assert [type(one) for one in events] == [Done]
