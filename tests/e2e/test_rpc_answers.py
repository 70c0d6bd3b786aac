"""Exactly one answer, in order, whatever a handler or a client does. Real hosts, real pipes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_protocol.errors import (
    InternalError,
    InvalidParams,
    KernelBusy,
    MethodNotFound,
    RequestCancelled,
    RequestFailed,
)
from support.fake_client import MISBEHAVING, FakeClient, spawned

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[FakeClient]:
    async with spawned(tmp_path, command=MISBEHAVING) as client:
        yield client


def cell(code: str) -> dict[str, str]:
    return {"sessionId": "s", "code": code}


async def test_nothing_printed_reaches_the_wire(host: FakeClient) -> None:
    answer = await host.request("repl/execute", cell("print"))
    assert answer["result"] == ""  # stdin is empty for everybody but us
    assert host.client.process is not None
    for stray in ("print", "write", "text", "child"):
        assert f"stray {stray}" in host.client.process.stderr_tail
    await host.request("host/status")


async def test_a_bug_is_answered_with_a_token_that_finds_it_in_the_log(
    host: FakeClient, tmp_path: Path
) -> None:
    with pytest.raises(InternalError) as refused:
        await host.request("repl/execute", cell("bug"))
    assert set(refused.value.data) == {"token"}
    assert "secret" not in str(refused.value)
    log = (tmp_path / "rlm/logs/host.log").read_text()
    (line,) = [line for line in log.splitlines() if refused.value.data["token"] in line]
    assert "ValueError: the secret of the host" in line
    assert (tmp_path / "rlm/logs/host.log").stat().st_mode & 0o777 == 0o600


async def test_a_result_that_json_cannot_carry_is_a_bug_and_answered(host: FakeClient) -> None:
    with pytest.raises(InternalError):
        await host.request("repl/execute", cell("unencodable"))
    await host.request("host/status")


async def test_nan_and_lone_surrogates_never_reach_the_wire(host: FakeClient) -> None:
    assert (await host.request("repl/execute", cell("nan")))["status"] is None
    assert (await host.request("repl/execute", cell("surrogate")))["result"] == "a?b"


async def test_a_refusal_carries_its_data(host: FakeClient) -> None:
    with pytest.raises(KernelBusy) as refused:
        await host.request("repl/execute", cell("refuse"))
    assert refused.value.data == {"queued": 100}


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({}, "$.sessionId"),
        ({"sessionId": "s", "code": 5}, "$.code"),
        ({"sessionId": "..", "code": ""}, "$.sessionId"),
        ({"sessionId": "s", "code": "", "colour": 1}, "$.colour"),
    ],
)
async def test_wrong_params_name_their_place(
    host: FakeClient, params: dict[str, object], path: str
) -> None:
    with pytest.raises(InvalidParams) as refused:
        await host.request("repl/execute", params)
    assert refused.value.data["path"] == path


async def test_a_running_request_is_cancelled(host: FakeClient) -> None:
    waiting = asyncio.create_task(host.client.request("repl/execute", cell("wait")))
    await host.until("repl/status")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await host.request("host/status")


async def test_cancel_is_answered_with_32800(host: FakeClient) -> None:
    client = host.client
    asked = asyncio.create_task(client.request("repl/execute", cell("wait")))
    await host.until("repl/status")
    (id_,) = client.open_requests
    client.notify("$/cancelRequest", {"id": id_})
    with pytest.raises(RequestCancelled):
        await asked


async def test_a_handler_that_finishes_in_spite_of_its_cancel_gives_its_result(
    host: FakeClient,
) -> None:
    client = host.client
    asked = asyncio.create_task(client.request("repl/execute", cell("finish late")))
    while not client.open_requests:
        await asyncio.sleep(0)
    (id_,) = client.open_requests
    await host.request("host/status")  # the handler waits by now
    client.notify("$/cancelRequest", {"id": id_})
    assert (await asked)["result"] == "late"


async def test_what_is_cancelled_before_it_begins_never_runs(host: FakeClient) -> None:
    """Thirty requests and thirty cancels in one write: none of them has any effect."""
    client = host.client
    wire = client._connection
    wire._writing = True  # hold everything back: it leaves in one write
    asked = [
        asyncio.create_task(client.request("repl/execute", cell(f"echo {n}"))) for n in range(30)
    ]
    await asyncio.sleep(0)
    for id_ in client.open_requests:
        client.notify("$/cancelRequest", {"id": id_})
    wire._writing = False
    wire._write()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(d, RequestCancelled) for d in done)
    assert (await host.request("repl/execute", cell("log")))["result"] == "log"


async def test_requests_start_in_the_order_of_their_arrival(host: FakeClient) -> None:
    await asyncio.gather(
        *(host.client.request("repl/execute", cell(f"echo {n}")) for n in range(200))
    )
    log = (await host.request("repl/execute", cell("log")))["result"]
    assert log.splitlines()[:-1] == [f"echo {n}" for n in range(200)]


async def test_a_waiting_request_holds_nobody_up(host: FakeClient) -> None:
    waiting = asyncio.create_task(host.client.request("repl/execute", cell("wait")))
    await host.until("repl/status")
    for _ in range(50):
        await host.request("host/status")
    waiting.cancel()


async def test_cancel_races_answer_once_and_hit_nobody_else(host: FakeClient) -> None:
    """Cancels aimed at requests that end by themselves, each followed by another at once."""
    client = host.client
    for n in range(300):
        aimed = asyncio.create_task(client.request("repl/execute", cell(f"echo {n}")))
        other = asyncio.create_task(client.request("repl/execute", cell(f"echo other {n}")))
        for _ in range(n % 7):
            await asyncio.sleep(0)
        aimed.cancel()
        done = await asyncio.gather(aimed, other, return_exceptions=True)
        assert done[1]["result"] == f"other {n}"
        assert isinstance(done[0], asyncio.CancelledError) or done[0]["result"] == str(n)
    assert not client.open_requests


async def test_the_host_asks_and_hears_the_answer(tmp_path: Path) -> None:
    async def tool(params: dict[str, object]) -> dict[str, object]:
        return {"result": params["callId"]}

    handlers = {"tool/call": tool}
    async with spawned(tmp_path, command=MISBEHAVING, handlers=handlers) as host:
        answer = await host.request("repl/execute", cell("ask"))
    assert answer["result"] == '{"result":"t"}'


async def test_the_host_hears_a_refusal_and_a_failing_handler(tmp_path: Path) -> None:
    async def tool(params: dict[str, object]) -> None:
        raise KernelBusy("not now")

    async with spawned(tmp_path, command=MISBEHAVING) as host:
        with pytest.raises(MethodNotFound):
            await host.request("repl/execute", cell("ask"))
        host.client.handle("tool/call", tool)
        with pytest.raises(KernelBusy):
            await host.request("repl/execute", cell("ask"))


async def test_a_late_answer_to_what_the_host_gave_up_is_swallowed(tmp_path: Path) -> None:
    called, told = asyncio.Event(), asyncio.Event()

    async def tool(params: dict[str, object]) -> dict[str, object]:
        called.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.set()
        return {"result": "late"}

    handlers = {"tool/call": tool}
    async with spawned(tmp_path, command=MISBEHAVING, handlers=handlers) as host:
        answer = await host.request("repl/execute", cell("ask-and-leave done"))
        assert answer["result"] == "done"
        async with asyncio.timeout(30):
            await called.wait()
            await told.wait()
        await host.request("host/status")


async def test_10_000_deltas_come_in_order_and_the_end_comes_last(host: FakeClient) -> None:
    count = 10_000
    params = {"sessionId": "s", "input": [{"type": "text", "text": f"{count} 20"}]}
    answer = await host.request("turn/start", params)
    assert answer == {"turnId": "t"}
    await host.until("turn/completed")
    names = host.names()
    assert names[:2] == ["turn/started", "item/started"]
    assert names[-2:] == ["item/completed", "turn/completed"]
    text = "".join(e.params["text"] for e in host.heard if e.method == "item/delta")
    assert text == "x" * 20 * count or "session/resync" in names


async def test_unknown_answers_of_a_host_are_errors_here(host: FakeClient) -> None:
    with pytest.raises(RequestFailed):
        await host.client.call("host/status", None, list[int])
