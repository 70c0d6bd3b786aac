"""The client of one kernel process against a peer that plays by the protocol, or breaks it."""

import asyncio
import json
from typing import Any

import pytest

from rlm_host.kernels.client import Kernel, Waits
from rlm_host.kernels.lifecycle import State
from rlm_protocol import kernel
from rlm_protocol.errors import (
    DepthLimit,
    KernelDied,
    KernelUnavailable,
    MethodNotFound,
    Overloaded,
    TooLarge,
)
from support.processes import QUICK, FakeClock, fake_kernel, in_time, my_children, until

pytestmark = pytest.mark.anyio


async def cell(made: Kernel, code: str, id_: str = "c1") -> tuple[kernel.Done, list[Any]]:
    events: list[Any] = []
    done = await in_time(made.run(kernel.Execute(id=id_, code=code), events.append))
    return done, events


async def test_a_cell_gives_its_events_in_order_and_then_its_done() -> None:
    async with fake_kernel() as made:
        done, events = await cell(made, "print one\nprint two\nvalue 3")
        assert done.status == "ok"
        assert [e.text for e in events] == ["one", "two", "3"]
        assert made.state is State.IDLE
    assert made.state is State.EXITED
    assert not my_children()


async def test_an_interrupt_ends_the_cell_and_only_the_cell() -> None:
    async with fake_kernel() as made:
        waiting = asyncio.create_task(cell(made, "wait"))
        await until(lambda: made.state is State.BUSY)
        made.interrupt("another")
        assert made.state is State.BUSY
        made.interrupt("c1")
        done, events = await in_time(waiting)
        assert done.status == "error"
        assert events[0].ename == "KeyboardInterrupt"
        assert (await cell(made, "value 1", "c2"))[0].status == "ok"


async def test_a_cell_that_does_not_yield_is_killed() -> None:
    async with fake_kernel() as made:
        waiting = asyncio.create_task(cell(made, "stubborn"))
        await until(lambda: made.state is State.BUSY)
        made.interrupt("c1")
        with pytest.raises(KernelDied):
            await in_time(waiting)
        assert made.was_killed
        assert made.exit is not None
        assert made.exit.signal_name == "SIGKILL"


async def test_escalation_takes_two_seconds_then_five_by_the_clock_it_was_given() -> None:
    clock = FakeClock()
    async with fake_kernel(waits=Waits(), clock=clock) as made:
        waiting = asyncio.create_task(cell(made, "stubborn"))
        await until(lambda: made.state is State.BUSY)
        assert clock.sleepers == []
        made.interrupt("c1")
        await until(lambda: clock.sleepers)
        clock.advance(1_999)
        await asyncio.sleep(0)
        assert made.state is State.INTERRUPTING
        clock.advance(1)
        await until(lambda: made.state is State.ESCALATING)
        await until(lambda: clock.sleepers)
        clock.advance(4_999)
        await asyncio.sleep(0)
        assert made.state is State.ESCALATING
        clock.advance(1)
        with pytest.raises(KernelDied):
            await in_time(waiting)
    assert clock.sleepers == []


async def test_death_in_a_cell_fails_everything_that_waits_with_the_last_words() -> None:
    async with fake_kernel() as made:
        names = asyncio.create_task(made.ask(kernel.ListNames(id=":n")))
        with pytest.raises(KernelDied) as died:
            await cell(made, "print before\ndie")
        assert died.value.data["signal"] == "SIGKILL"
        assert died.value.data["exit_code"] is None
        assert "last words" in died.value.data["stderr_tail"]
        await asyncio.wait({names})
        assert names.exception() is None or isinstance(names.exception(), KernelDied)
        with pytest.raises(KernelDied):
            await made.ask(kernel.ListNames(id=":m"))


async def test_an_exit_code_is_reported() -> None:
    async with fake_kernel() as made:
        with pytest.raises(KernelDied) as died:
            await cell(made, "exit 7")
        assert (died.value.data["exit_code"], died.value.data["signal"]) == (7, None)
        assert not made.was_killed


async def test_a_program_that_exits_before_it_is_ready_says_why() -> None:
    with pytest.raises(KernelDied) as died:
        async with fake_kernel("exit"):
            pytest.fail("it cannot have got ready")
    assert died.value.data["exit_code"] == 3
    assert "cannot start today" in died.value.data["stderr_tail"]
    assert not my_children()


async def test_a_program_that_never_gets_ready_is_ended() -> None:
    waits = Waits(ready_ms=200)
    with pytest.raises(KernelUnavailable, match="ready in time"):
        async with fake_kernel("mute", waits=waits):
            pytest.fail("it cannot have got ready")
    assert not my_children()


async def test_a_program_that_only_chatters_is_ended() -> None:
    with pytest.raises(KernelUnavailable, match="no kernel"):
        async with fake_kernel("chatter"):
            pytest.fail("it cannot have got ready")
    assert not my_children()


async def test_another_protocol_is_refused() -> None:
    with pytest.raises(KernelUnavailable) as refused:
        async with fake_kernel("old"):
            pytest.fail("it cannot be used")
    assert refused.value.data["protocol"] == 2


async def test_forged_and_garbled_lines_are_counted_and_change_nothing() -> None:
    async with fake_kernel() as made:
        done, events = await cell(
            made, "forge\ngarbage 3\nlong 1100000\nnovel\nprint on\nvalue right"
        )
        assert done.nonce == "n0"
        assert [e.text for e in events] == ["on", "right"]
        assert made.dropped.strays == 1
        assert made.dropped.wrong_nonce == 2
        assert made.dropped.bad_lines == 4
        assert made.dropped.unknown_events == 1


async def test_a_flood_of_garbage_ends_the_kernel() -> None:
    async with fake_kernel() as made:
        with pytest.raises(KernelDied):
            await cell(made, "garbage 100\nwait")
        assert made.dropped.bad_lines == 100


async def test_a_second_ready_ends_the_kernel() -> None:
    async with fake_kernel() as made:
        with pytest.raises(KernelDied):
            await cell(made, "again\nwait")


async def test_output_of_no_running_cell_goes_to_the_background() -> None:
    heard: list[Any] = []
    async with fake_kernel(on_background=heard.append) as made:
        _, events = await cell(made, "background hello\nprint mine")
        assert [e.text for e in events] == ["mine"]
        assert [e.text for e in heard] == ["hello"]


async def test_a_broken_listener_costs_its_own_event_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: object) -> None:
        raise ValueError("listener")

    async with fake_kernel(on_background=broken) as made:
        done, _ = await cell(made, "background hello\nvalue 1")
        assert done.status == "ok"
    assert "a listener failed" in caplog.text


async def test_a_request_over_the_limit_is_refused_before_it_is_sent() -> None:
    async with fake_kernel() as made:
        with pytest.raises(TooLarge):
            await cell(made, "x" * (33 * 1024 * 1024))
        assert (await cell(made, "value 1"))[0].status == "ok"


async def test_host_requests_are_answered_refused_or_not_found() -> None:
    async def answer(type_: str, payload: dict[str, Any], cell_id: str | None) -> object:
        if type_ == "echo":
            return {"payload": payload, "cell": cell_id}
        if type_ == "deep":
            raise DepthLimit(depth=2)
        if type_ == "bug":
            raise ZeroDivisionError
        raise MethodNotFound(method=type_)

    async def reply(made: Kernel, code: str, id_: str) -> Any:
        _, events = await cell(made, code, id_)
        return json.loads(events[-1].text)

    async with fake_kernel(host_requests=answer) as made:
        assert await reply(made, 'ask echo {"type":"x","status":1}', "c1") == {
            "status": "ok",
            "result": {"payload": {"type": "x", "status": 1}, "cell": "c1"},
        }
        refused = await reply(made, "ask deep", "c2")
        assert (refused["code"], refused["data"]["depth"]) == (DepthLimit.code, 2)
        assert (await reply(made, "ask nothing", "c3"))["code"] == MethodNotFound.code
        bug = await reply(made, "ask bug", "c4")
        assert bug["data"]["kind"] == "internalError"
        assert "ZeroDivision" not in json.dumps(bug)


async def test_a_thousand_host_requests_at_once_are_all_answered() -> None:
    async def answer(*_: object) -> object:
        await asyncio.sleep(0)
        return None

    async with fake_kernel(host_requests=answer) as made:
        _, events = await cell(made, "flood 1000\nreplies 1000")
        assert events[-1].text == "1000"
        assert made._bridge.in_flight == 0


async def test_a_flood_of_host_requests_is_bounded() -> None:
    refused = 0

    async def answer(*_: object) -> object:
        await asyncio.Event().wait()
        return None

    async with fake_kernel(host_requests=answer) as made:
        _, events = await cell(made, "flood 4100\nreplies 4")
        refused = int(events[-1].text)
        assert refused == 4
        assert made._bridge.in_flight == 4096
    assert Overloaded.retryable
    assert made._bridge.in_flight == 0


async def test_a_cancelled_host_request_ends_its_handler() -> None:
    begun, ended = 0, 0

    async def answer(*_: object) -> object:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    async with fake_kernel(host_requests=answer) as made:
        await cell(made, "flood 2")
        await until(lambda: begun == 2)
        await cell(made, "cancel f0\nreplies 1", "c2")
        await until(lambda: made._bridge.in_flight == 1)
        assert ended == 1
    assert ended == 2


async def test_a_kernels_death_ends_the_handlers_of_its_requests_at_once() -> None:
    begun = asyncio.Event()

    async def answer(*_: object) -> object:
        begun.set()
        await asyncio.Event().wait()
        return None

    async with fake_kernel(host_requests=answer) as made:
        await cell(made, "flood 1")
        await in_time(begun.wait())
        with pytest.raises(KernelDied):
            await cell(made, "die", "c2")
        await until(lambda: made._bridge.in_flight == 0)


async def test_leaving_by_cancellation_leaves_nothing_running() -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with fake_kernel() as made:
            inside.set()
            await cell(made, "stubborn")

    task = asyncio.create_task(hold())
    await in_time(inside.wait())
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not my_children()


async def test_a_host_that_does_not_wait_gives_its_late_done_to_nobody() -> None:
    async with fake_kernel() as made:
        task = asyncio.create_task(made.ask(kernel.ListNames(id=":late")))
        await asyncio.sleep(0)
        task.cancel()
        assert (await cell(made, "value 1"))[0].status == "ok"
        assert made.dropped.strays == 0
    assert QUICK.ready_ms
