"""Many sessions on one key: the vendor's limits are learned once and shared."""

import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rlm_host.models.limiter import GROWTH
from rlm_host.models.provider import ProviderError
from rlm_host.models.vendors import Vendor
from support.mock_vendors import KEYS, SELECTORS, Answer, MockVendors
from support.vendor_models import ask, open_models, request, text_of


@pytest.mark.parametrize("selector", [SELECTORS["chat"], SELECTORS["messages"]])
def test_a_hundred_sessions_finish_where_four_are_served_at_once(selector: str) -> None:
    tries: list[int] = []
    kinds: set[str] = set()

    async def session(models: Any) -> None:
        """Retry like a session does: a few times, and only what may be retried."""
        for attempt in range(1, 6):
            try:
                assert text_of(await ask(models, request(selector, "hi"))) == "done"
            except ProviderError as failed:
                kinds.add(failed.kind)
            else:
                tries.append(attempt)
                return
        raise AssertionError("a turn failed")

    async def main() -> None:
        async with open_models(vendors, random=lambda: 0.0) as models:
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for _ in range(100):
                        tasks.start_soon(session, models)

    with MockVendors(lambda asked: Answer(text="done", wait_s=0.002), limit=4) as vendors:
        anyio.run(main)
    assert len(tries) == 100
    assert kinds == {"rate_limit"}
    assert vendors.busiest == 4
    assert vendors.refused == sum(tries) - 100
    assert vendors.refused <= 40, "the limit was not learned"


def test_what_one_session_was_told_holds_back_the_others() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            with pytest.raises(ProviderError) as first:
                await ask(models, request(SELECTORS["chat"], "hi"))
            assert first.value.retry_after_ms == 3_600_000
            with pytest.raises(ProviderError, match="nothing was sent") as second:
                await ask(models, request("chatty/chat-2", "hi"))
            assert second.value.kind == "rate_limit"
            assert second.value.retry_after_ms is not None
            assert second.value.retry_after_ms > 3_000_000
            # Another provider's key is not concerned.
            await ask(models, request(SELECTORS["messages"], "hi"))

    refused = Answer(status=429, error_type="x", headers=(("retry-after", "3600"),))
    with MockVendors([refused, Answer(text="x")]) as vendors:
        anyio.run(main)
    assert len(vendors.requests) == 2


def test_answers_raise_the_learned_number_again() -> None:
    async def main() -> None:
        async with open_models(vendors) as models:
            limiter = models.limiter("anthropic", KEYS["ANTHROPIC_API_KEY"])
            limiter.allowed = 1
            for _ in range(GROWTH):
                await ask(models, request(SELECTORS["messages"], "hi"))
            assert limiter.allowed == 2

    with MockVendors(lambda asked: Answer(text="x")) as vendors:
        anyio.run(main)


def test_a_request_that_ends_in_any_way_gives_its_place_back() -> None:
    async def main() -> None:
        async with open_models(vendors, max_concurrent=1) as models:
            for _ in range(3):
                with pytest.raises(ProviderError):
                    await ask(models, request(SELECTORS["messages"], "hi"))
            with anyio.move_on_after(0.3):
                await ask(models, request(SELECTORS["messages"], "hi"))
            with anyio.fail_after(20):
                await ask(models, request(SELECTORS["messages"], "hi"))

    faults = [Answer(status=500), Answer(text="x", drop_after=1), Answer(status=400)]
    with MockVendors([*faults, Answer(hang=True), Answer(text="x")]) as vendors:
        anyio.run(main)


def test_an_interrupt_does_not_wait_for_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = threading.Event()

    def library(self: Vendor) -> Any:
        assert imported.wait(60)
        raise ImportError

    async def main() -> None:
        async with open_models(vendors) as models:
            with anyio.move_on_after(0.1) as interrupt:
                await ask(models, request(SELECTORS["messages"], "hi"))
            assert interrupt.cancelled_caught
            assert not imported.is_set()

    monkeypatch.setattr(Vendor, "_library", library)
    with MockVendors([]) as vendors:
        try:
            anyio.run(main)
        finally:
            imported.set()


def test_warming_up_imports_in_a_thread_and_the_loop_goes_on() -> None:
    async def main() -> None:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with open_models(vendors) as models, anyio.create_task_group() as tasks:
            tasks.start_soon(turn)
            for provider in models.settings:
                await models.warm_up(provider)
            assert turns > 0
            tasks.cancel_scope.cancel()

    with MockVendors([]) as vendors:
        anyio.run(main)
    assert vendors.requests == []
