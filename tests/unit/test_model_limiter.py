"""The limiter: order, concurrency, shared back-off. Time stands still unless the test moves it."""

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_host.models.limiter import FIRST_WAIT_MS, GROWTH, LONGEST_WAIT_MS, QUEUE_WAIT_MS, Limiter
from rlm_host.models.provider import ErrorKind, ProviderError


class World:
    """A clock that moves when somebody sleeps, and chance that is always the same."""

    def __init__(self, chance: float = 0.5) -> None:
        self.now_ms = 1_000_000
        self.waits_ms: list[int] = []
        self.chance = chance

    def limiter(self, max_concurrent: int = 8) -> Limiter:
        return Limiter(
            max_concurrent,
            monotonic_ms=lambda: self.now_ms,
            sleep=self.sleep,
            random=lambda: self.chance,
        )

    async def sleep(self, seconds: float) -> None:
        self.waits_ms.append(round(seconds * 1000))
        self.now_ms += round(seconds * 1000)
        await anyio.lowlevel.checkpoint()


def refusal(kind: ErrorKind = "rate_limit", retry_after_ms: int | None = None) -> ProviderError:
    return ProviderError(kind, "no", retry_after_ms=retry_after_ms)


def test_no_more_than_allowed_run_at_once_and_in_the_order_they_came() -> None:
    async def main() -> None:
        limiter, running, started = World().limiter(3), 0, []

        async def work(number: int) -> None:
            nonlocal running
            async with limiter.slot():
                started.append(number)
                running += 1
                assert running <= 3
                await anyio.lowlevel.checkpoint()
                running -= 1

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(work, number)
        assert started == list(range(30))

    anyio.run(main)


@pytest.mark.parametrize(("chance", "want_ms"), [(0.0, 7000), (1.0, 7000 + FIRST_WAIT_MS)])
def test_a_refusal_holds_the_next_one_back_for_as_long_as_the_vendor_asked(
    chance: float, want_ms: int
) -> None:
    async def main() -> None:
        world = World(chance)
        limiter = world.limiter()
        async with limiter.slot() as slot:
            slot.failed(refusal(retry_after_ms=7000))
        async with limiter.slot():
            assert world.waits_ms == [want_ms]

    anyio.run(main)


def test_without_a_wish_the_wait_doubles_up_to_a_limit_and_a_success_ends_it() -> None:
    async def main() -> None:
        world = World(chance=1.0)
        limiter = world.limiter()
        for _ in range(9):
            async with limiter.slot() as slot:
                slot.failed(refusal("overloaded"))
        want = [FIRST_WAIT_MS * 2**n for n in range(9)]
        assert world.waits_ms == [min(ms, LONGEST_WAIT_MS) for ms in want[:8]]
        async with limiter.slot() as slot:
            slot.succeeded()
        world.waits_ms.clear()
        async with limiter.slot() as slot:
            slot.failed(refusal())
        async with limiter.slot():
            assert world.waits_ms == [FIRST_WAIT_MS]

    anyio.run(main)


def test_refusals_of_one_burst_are_one_lesson_about_time_and_an_exact_one_about_number() -> None:
    async def main() -> None:
        world = World(chance=1.0)
        limiter = world.limiter(16)
        everyone_in = anyio.Event()
        refused = anyio.Event()

        async def work(number: int) -> None:
            async with limiter.slot() as slot:
                if number == 15:
                    everyone_in.set()
                await everyone_in.wait()
                if number < 12:
                    slot.failed(refusal())
                    if number == 11:
                        refused.set()
                else:
                    await refused.wait()

        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(work, number)
        assert limiter.allowed == 4, "what the vendor bore"
        async with limiter.slot():
            assert world.waits_ms == [FIRST_WAIT_MS], "not doubled twelve times"

    anyio.run(main)


def test_successes_raise_the_number_again_slowly_up_to_the_maximum() -> None:
    async def main() -> None:
        limiter = World().limiter(3)
        async with limiter.slot(), limiter.slot() as second:
            second.failed(refusal())
        seen = [limiter.allowed]
        for _ in range(4 * GROWTH):
            async with limiter.slot() as slot:
                slot.succeeded()
            seen.append(limiter.allowed)
        assert seen == [1] * GROWTH + [2] * 2 * GROWTH + [3] * (GROWTH + 1)

    anyio.run(main)


def test_a_refusal_of_a_request_that_ran_alone_teaches_nothing_about_the_number() -> None:
    async def main() -> None:
        limiter = World().limiter(3)
        async with limiter.slot() as slot:
            slot.failed(refusal())
        assert limiter.allowed == 3

    anyio.run(main)


@pytest.mark.parametrize("kind", ["auth", "server", "connection", "timeout", "quota", "bad_output"])
def test_failures_that_say_nothing_of_the_load_change_nothing(kind: ErrorKind) -> None:
    async def main() -> None:
        world = World()
        limiter = world.limiter()
        async with limiter.slot() as slot:
            slot.failed(refusal(kind, retry_after_ms=5000))
        async with limiter.slot():
            assert world.waits_ms == []
            assert limiter.allowed == 8

    anyio.run(main)


def test_a_very_long_wait_is_an_error_at_once_with_the_time_in_it() -> None:
    async def main() -> None:
        world = World(chance=0.0)
        limiter = world.limiter()
        async with limiter.slot() as slot:
            slot.failed(refusal(retry_after_ms=QUEUE_WAIT_MS + 1000))
        with pytest.raises(ProviderError, match="left alone for 61 s; nothing was sent") as failed:
            async with limiter.slot():
                pass
        assert (failed.value.kind, failed.value.retry_after_ms) == ("rate_limit", 61_000)
        assert world.waits_ms == []
        world.now_ms += 61_000
        async with limiter.slot():
            pass

    anyio.run(main)


def test_a_cancelled_waiter_gives_its_place_to_the_next() -> None:
    async def main() -> None:
        limiter, order = World().limiter(1), []

        async def wait(name: str, scope: anyio.CancelScope) -> None:
            with scope:
                async with limiter.slot():
                    order.append(name)

        first, second = anyio.CancelScope(), anyio.CancelScope()
        async with anyio.create_task_group() as tasks, limiter.slot():
            tasks.start_soon(wait, "first", first)
            tasks.start_soon(wait, "second", second)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
            await anyio.wait_all_tasks_blocked()
            assert order == []
        assert order == ["second"]

    anyio.run(main)


@settings(max_examples=40)
@given(
    st.integers(1, 6),
    st.lists(st.sampled_from(["ok", "rate_limit", "overloaded", "server", "cancel"]), max_size=40),
)
def test_whatever_happens_everyone_gets_a_turn_and_nothing_leaks(
    max_concurrent: int, outcomes: list[str]
) -> None:
    async def main() -> None:
        limiter, running, most = World().limiter(max_concurrent), 0, 0

        async def work(outcome: str) -> None:
            nonlocal running, most
            with anyio.CancelScope() as scope:
                async with limiter.slot() as slot:
                    running += 1
                    most = max(most, running)
                    try:
                        await anyio.lowlevel.checkpoint()
                        if outcome == "cancel":
                            scope.cancel()
                            await anyio.lowlevel.checkpoint()
                        elif outcome == "ok":
                            slot.succeeded()
                        else:
                            slot.failed(refusal(outcome))  # type: ignore[arg-type]
                    finally:
                        running -= 1

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for outcome in outcomes:
                    tasks.start_soon(work, outcome)
        assert most <= max_concurrent
        assert 1 <= limiter.allowed <= max_concurrent
        async with limiter.slot():
            pass

    anyio.run(main)
