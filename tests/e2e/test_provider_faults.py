"""Every way in which a vendor fails, on every dialect: the kind, what may be retried, nothing runs."""

import contextlib
import itertools
import socket
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import anyio
import pytest

from rlm_host.models.credentials import CredentialState
from rlm_host.models.provider import Call, Done, ErrorKind, Event, ProviderError
from rlm_host.models.registry import Models
from rlm_protocol.errors import AuthRequired
from support.mock_vendors import SELECTORS, Answer, Asked, MockVendors
from support.vendor_models import ask, calls_of, done_of, open_models, request, text_of

every_dialect = pytest.mark.parametrize(("dialect", "selector"), list(SELECTORS.items()))
TEXT = Answer(text="hello world, hello world")
CALL = Answer(text="So: ", calls=(("python", {"code": "print(12345678)"}),))
TWO_CALLS = replace(CALL, calls=(*CALL.calls, ("python", {"code": "second"})))


async def try_once(models: Models, selector: str) -> tuple[list[Event], ProviderError | None]:
    """Send one request; give its events, and the error if it failed."""
    seen: list[Event] = []
    _, provider = models.provider_for(selector)
    try:
        async with contextlib.aclosing(provider.stream(request(selector, "hi"))) as events:
            async for event in events:
                seen.append(event)
    except ProviderError as failed:
        error = failed
    else:
        return seen, None
    assert not any(isinstance(event, Call | Done) for event in seen), "a call of a broken answer"
    assert error.partial == bool(seen)
    return seen, error


async def fail(
    vendors: MockVendors, selector: str, **common: Any
) -> tuple[list[Event], ProviderError]:
    """Send one request that must fail."""
    async with open_models(vendors, **common) as models:
        seen, failed = await try_once(models, selector)
    assert failed is not None, seen
    return seen, failed


def overflow(dialect: str) -> Answer:
    code = "" if dialect == "messages" else "context_length_exceeded"
    words = "prompt is too long: 208310 tokens > 200000 maximum"
    return Answer(
        status=400, error_type="invalid_request_error", error_code=code, error_message=words
    )


@every_dialect
@pytest.mark.parametrize(
    ("answer", "kind", "retryable"),
    [
        (Answer(status=401, error_type="authentication_error"), "auth", False),
        (Answer(status=403, error_type="permission_error"), "auth", False),
        (Answer(status=404, error_type="not_found_error"), "not_found", False),
        (Answer(status=400, error_type="invalid_request_error"), "rejected", False),
        (Answer(status=422, error_type="invalid_request_error"), "rejected", False),
        (Answer(status=405, error_type="api_error"), "rejected", False),
        (Answer(status=413, error_type="request_too_large"), "rejected", False),
        (Answer(status=409, error_type="api_error"), "server", True),
        (Answer(status=402, error_type="billing_error"), "quota", False),
        (Answer(status=429, error_type="rate_limit_error"), "rate_limit", True),
        (Answer(status=529, error_type="overloaded_error"), "overloaded", True),
        (Answer(status=503, error_type="api_error"), "overloaded", True),
        (Answer(status=500, error_type="api_error"), "server", True),
        (Answer(status=502, error_type="api_error"), "server", True),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else None,
)
def test_a_refusal_has_its_kind_and_is_sent_once(
    dialect: str, selector: str, answer: Answer, kind: ErrorKind, retryable: bool
) -> None:
    with MockVendors([answer]) as vendors:
        _, failed = anyio.run(fail, vendors, selector)
    assert (failed.kind, failed.retryable, failed.partial) == (kind, retryable, False)
    assert failed.status == answer.status
    assert failed.message == "the mock says so"
    assert len(vendors.requests) == 1, "retries are the session's"


@every_dialect
def test_an_overflow_of_the_context_is_told_from_other_rejections(
    dialect: str, selector: str
) -> None:
    with MockVendors([overflow(dialect)]) as vendors:
        _, failed = anyio.run(fail, vendors, selector)
    assert (failed.kind, failed.retryable) == ("context_overflow", False)


@pytest.mark.parametrize(
    "words",
    [
        "the request exceeds the available context size. try increasing the context size",
        "request (5008 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "This model's maximum context length is 4096 tokens. However, you requested 5008 tokens",
        "prompt is longer than the model's context window",
    ],
)
def test_a_local_servers_overflow_arrives_as_a_plain_rejection(words: str) -> None:
    answer = Answer(status=400, error_type="exceed_context_size_error", error_message=words)
    with MockVendors([answer]) as vendors:
        _, failed = anyio.run(fail, vendors, SELECTORS["chat"])
    assert failed.kind == "context_overflow"


def test_a_spent_quota_is_not_a_rate_limit() -> None:
    answer = Answer(status=429, error_type="insufficient_quota", error_code="insufficient_quota")
    with MockVendors([answer]) as vendors:
        _, failed = anyio.run(fail, vendors, SELECTORS["responses"])
    assert (failed.kind, failed.retryable) == ("quota", False)


@every_dialect
@pytest.mark.parametrize(
    ("header", "least_ms", "most_ms"),
    [
        (("retry-after", "7"), 7000, 7000),
        (("retry-after-ms", "1500"), 1500, 1500),
        (("retry-after", "date"), 50_000, 60_000),
        (("retry-after", "soon"), None, None),
    ],
)
def test_the_vendors_wish_to_wait_is_given_on(
    dialect: str, selector: str, header: tuple[str, str], least_ms: int | None, most_ms: int | None
) -> None:
    name, value = header
    value = formatdate(time.time() + 60, usegmt=True) if value == "date" else value
    answer = Answer(status=429, error_type="rate_limit_error", headers=((name, value),))
    with MockVendors([answer]) as vendors:
        _, failed = anyio.run(fail, vendors, selector)
    if least_ms is None or most_ms is None:
        assert failed.retry_after_ms is None
    else:
        assert failed.retry_after_ms is not None
        assert least_ms <= failed.retry_after_ms <= most_ms


@every_dialect
@pytest.mark.parametrize("after", [0, 1, 4, 6])
def test_a_dropped_connection_is_no_end_of_an_answer(
    dialect: str, selector: str, after: int
) -> None:
    with MockVendors([replace(TEXT, drop_after=after)]) as vendors:
        _, failed = anyio.run(fail, vendors, selector)
    assert (failed.kind, failed.retryable) == ("connection", True)


@every_dialect
@pytest.mark.parametrize("answer", [TEXT, CALL], ids=["text", "call"])
def test_a_clean_end_without_a_finish_reason_is_no_end_of_an_answer(
    dialect: str, selector: str, answer: Answer
) -> None:
    """Hole 1 of the library: it takes such a stream for complete."""

    async def main() -> None:
        async with open_models(vendors) as models:
            for after in itertools.count(1):
                cuts.append(after)
                seen, failed = await try_once(models, selector)
                if failed is None:
                    assert isinstance(seen[-1], Done)
                    return  # this many events include the finish reason
                assert (failed.kind, failed.retryable) == ("connection", True)

    cuts: list[int] = []
    with MockVendors(lambda asked: replace(answer, end_after=cuts[-1])) as vendors:
        anyio.run(main)
    assert len(cuts) > 5


@every_dialect
def test_arguments_that_are_no_object_never_become_a_call(dialect: str, selector: str) -> None:
    """Hole 2 of the library: it hands out {"INVALID_JSON": …}."""
    broken = ('{"code": "pri', '{"code": "a"} trailing', '["code"]', "5", "null", "{'code': 1}")

    async def main() -> None:
        async with open_models(vendors) as models:
            for raw in broken:
                _, failed = await try_once(models, selector)
                assert failed is not None, raw
                assert (failed.kind, failed.retryable) == ("bad_output", True), raw
                assert "'python'" in failed.message

    with MockVendors([replace(CALL, raw_arguments=raw) for raw in broken]) as vendors:
        anyio.run(main)


@every_dialect
def test_an_answer_cut_at_its_length_executes_nothing(dialect: str, selector: str) -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            events = await ask(models, request(selector, "hi"))
        assert done_of(events).stop == "length"
        assert text_of(events) == "So: "
        assert calls_of(events) == ()
        assert done_of(events).opaque == b"", "the cut call must not come back either"

    answer = replace(TWO_CALLS, stop="length", raw_arguments='{"code": "pri')
    with MockVendors([answer]) as vendors:
        anyio.run(main)


@every_dialect
def test_a_filtered_answer_says_so(dialect: str, selector: str) -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            events = await ask(models, request(selector, "hi"))
        assert (done_of(events).stop, text_of(events)) == ("content_filter", "So: ")
        assert calls_of(events) == ()

    with MockVendors([replace(CALL, stop="content_filter")]) as vendors:
        anyio.run(main)


def test_a_call_that_ends_with_stop_is_a_call_and_a_promise_without_one_is_bad() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            events = await ask(models, request(SELECTORS["chat"], "hi"))
        assert done_of(events).stop == "tool_calls"
        assert len(calls_of(events)) == 1

    with MockVendors([replace(CALL, stop="end")]) as vendors:
        anyio.run(main)
    for dialect in ("chat", "messages"):
        with MockVendors([replace(TEXT, stop="tool_calls")]) as vendors:
            _, failed = anyio.run(fail, vendors, SELECTORS[dialect])
        assert failed.kind == "bad_output"


@every_dialect
def test_a_chunk_that_is_not_json_is_bad_output(dialect: str, selector: str) -> None:
    """Hole 4 of the library: it raises its base class."""
    with MockVendors([replace(TEXT, garbage_at=4)]) as vendors:
        _, failed = anyio.run(fail, vendors, selector)
    assert (failed.kind, failed.retryable) == ("bad_output", True)


@every_dialect
@pytest.mark.parametrize(
    ("kind_of_event", "code", "kind"),
    [
        ("overloaded_error", "overloaded", "overloaded"),
        ("rate_limit_error", "rate_limit_exceeded", "rate_limit"),
        ("api_error", "server_error", "server"),
    ],
)
def test_an_error_event_in_the_stream_is_an_error(
    dialect: str, selector: str, kind_of_event: str, code: str, kind: ErrorKind
) -> None:
    answer = replace(TEXT, error_event_after=6, error_type=kind_of_event, error_code=code)
    with MockVendors([answer]) as vendors:
        seen, failed = anyio.run(fail, vendors, selector)
    assert seen
    assert (failed.kind, failed.retryable) == (kind, True)


@every_dialect
@pytest.mark.parametrize(
    "answer",
    [
        Answer(hang=True),
        replace(TEXT, stall_after=1),
        replace(TEXT, stall_after=1, pings=True),
        replace(TEXT, stall_after=6),
    ],
    ids=["no headers", "no output", "pings only", "in the middle"],
)
def test_silence_ends_in_a_timeout_and_closes_the_request(
    dialect: str, selector: str, answer: Answer
) -> None:
    async def main() -> None:
        _, failed = await fail(vendors, selector, idle_timeout_ms=400)
        assert (failed.kind, failed.retryable) == ("timeout", True)
        await anyio.to_thread.run_sync(vendors.wait, lambda: vendors.hung_up == 1)

    with MockVendors([answer]) as vendors:
        anyio.run(main)


@every_dialect
@pytest.mark.parametrize("answer", [Answer(hang=True), replace(TEXT, stall_after=6)])
def test_cancelling_closes_the_request_at_once(dialect: str, selector: str, answer: Answer) -> None:
    async def main() -> None:
        async with open_models(vendors) as models, anyio.create_task_group() as tasks:
            tasks.start_soon(ask, models, request(selector, "hi"))
            await anyio.to_thread.run_sync(vendors.wait, lambda: len(vendors.requests) == 1)
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(vendors.wait, lambda: vendors.hung_up == 1)

    with MockVendors([answer]) as vendors:
        anyio.run(main)


@every_dialect
def test_nobody_listens(dialect: str, selector: str) -> None:
    with MockVendors([]) as vendors:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        names = {"chat": "chatty", "responses": "openai", "messages": "anthropic"}
        url = f"http://127.0.0.1:{port}/v1"
        table: dict[str, object] = {"base_url": url}
        if dialect == "chat":
            table |= {"kind": "openai", "models": ["chat-1"]}
        tables = {names[dialect]: table}

        async def main() -> None:
            _, failed = await fail(vendors, selector, tables=tables)
            assert (failed.kind, failed.retryable) == ("connection", True)

        anyio.run(main)


def test_a_stream_without_any_event_is_an_error() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            for selector in SELECTORS.values():
                _, failed = await try_once(models, selector)
                assert failed is not None
                assert failed.kind in ("connection", "bad_output")

    with MockVendors(lambda asked: replace(TEXT, end_after=0)) as vendors:
        anyio.run(main)


@every_dialect
def test_a_401_kills_that_key_until_it_changes_and_never_shows_it(
    dialect: str, selector: str, tmp_path: Path
) -> None:
    def script(asked: Asked) -> Answer:
        if asked.key.startswith("sk-new"):
            return Answer(text="welcome")
        words = f"Incorrect API key provided: {asked.key}."
        return Answer(status=401, error_type="authentication_error", error_message=words)

    async def main() -> None:
        provider = selector.partition("/")[0]
        async with open_models(vendors, auth_file=tmp_path / "auth.json") as models:
            assert selector in [model.selector for model in models.find(selector)]
            _, stale = models.provider_for(selector)
            with pytest.raises(ProviderError) as failed:
                await ask(models, request(selector, "hi"))
            assert failed.value.kind == "auth"
            assert "Incorrect API key provided: ***" in failed.value.message
            state = models.credentials.state(provider)
            assert isinstance(state, CredentialState)
            assert state.status == "rejected"
            assert models.find(selector) == []
            with pytest.raises(AuthRequired, match="refused the key"):
                models.resolve(selector)
            with pytest.raises(ProviderError, match="refused the key"):
                await anext(stale.stream(request(selector, "hi")))
            assert len(vendors.requests) == 1, "a dead key is not sent again"
            models.credentials.set(provider, "sk-new")
            assert text_of(await ask(models, request(selector, "hi"))) == "welcome"

    with MockVendors(script) as vendors:
        anyio.run(main)


def test_a_403_does_not_kill_the_key() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            with pytest.raises(ProviderError):
                await ask(models, request(SELECTORS["messages"], "hi"))
            assert models.usable("anthropic")

    with MockVendors([Answer(status=403, error_type="permission_error")]) as vendors:
        anyio.run(main)
