"""Host requests of cells: envelope, errors, cancellation, a lost host, many at once; `bash` and its notices."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.runtime_driver import Exchange, Runtime, eventually, processes_of


class Host:
    """Answers host requests while it waits for a cell."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda t, p: {
            "status": "ok",
            "result": {"type": t, "payload": p},
        }

    def run(self, code: str) -> Exchange:
        id_ = self.runtime.start(code)
        return self.until(lambda e: e["event"] == "done" and e["id"] == id_)

    def until(self, met: Callable[[dict[str, Any]], bool]) -> Exchange:
        got = Exchange()
        while True:
            event = self.runtime.event()
            got.append(event)
            if event["event"] == "host_request":
                self.take(event)
            if met(event):
                return got

    def take(self, event: dict[str, Any]) -> None:
        self.asked.append(event)
        reply = self.answer(event["data"]["type"], event["data"]["payload"])
        if reply is not None:
            self.runtime.send({"type": "host_reply", "id": event["id"], "data": reply})

    def types(self) -> list[str]:
        return [event["data"]["type"] for event in self.asked]

    def settle(self, seconds: float = 0.3) -> None:
        for event in self.runtime.silence(seconds):
            if event["event"] == "host_request":
                self.take(event)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Runtime]:
    with Runtime() as runtime:
        yield runtime


@pytest.fixture
def host(kernel: Runtime) -> Iterator[Host]:
    host = Host(kernel)
    host.run("import rlm, asyncio")
    yield host
    host.run("for t in asyncio.all_tasks() - {asyncio.current_task()}: t.cancel()")
    host.settle(0.05)


def test_an_envelope_keys_cannot_collide(host: Host) -> None:
    got = host.run(
        "await rlm.host_request('a.b', {'type': 'rlm.run', 'status': 'error', 'x': 2**60 + 1})"
    )
    assert host.asked[0]["data"] == {
        "type": "a.b",
        "payload": {"type": "rlm.run", "status": "error", "x": 2**60 + 1},
    }
    assert host.asked[0]["cell"] == got.done["id"]
    assert "'status': 'error'" in str(got.result)


def test_a_refusal_is_a_host_error_with_code_and_data(host: Host) -> None:
    host.answer = lambda t, p: {
        "status": "error",
        "error": "too deep",
        "code": -31305,
        "data": {"depth": 2},
    }
    got = host.run(
        "try: await rlm.host_request('x')\nexcept RuntimeError as e: r = e\n"
        "(type(r).__name__, str(r), r.code, r.kind, r.data)"
    )
    assert got.result == "('HostError', 'too deep', -31305, 'depthLimit', {'depth': 2})"


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("{'x': float('nan')}", "ValueError"),
        ("{'x': float('inf')}", "ValueError"),
        ("{'x': {1, 2}}", "ValueError"),
        ("{'x': 2**70}", "ValueError"),
        ("{1: 2}", "ValueError"),
        ("{'x': object()}", "ValueError"),
        ("{'x': 'y' * 2_000_000}", "ValueError"),
        ("(lambda x: x.append(x) or {'x': x})([])", "ValueError"),
        ("[1]", "TypeError"),
        ("'x'", "TypeError"),
    ],
)
def test_what_would_not_arrive_is_refused_in_the_cell(host: Host, payload: str, error: str) -> None:
    got = host.run(f"await rlm.host_request('x', {payload})")
    assert got.ename == error
    assert host.asked == []


@pytest.mark.parametrize("kind", ["''", "5", "None"])
def test_a_type_must_be_a_text(host: Host, kind: str) -> None:
    assert host.run(f"await rlm.host_request({kind})").ename == "TypeError"


def test_a_thousand_at_once(host: Host) -> None:
    got = host.run(
        "len(await asyncio.gather(*(rlm.host_request('x', {'i': i}) for i in range(1000))))"
    )
    assert got.result == "1000"
    assert {e["data"]["payload"]["i"] for e in host.asked} == set(range(1000))


def test_a_thousand_cancelled_waits_leave_nothing(host: Host) -> None:
    host.answer = lambda t, p: None
    got = host.run(
        "async def one():\n try: await asyncio.wait_for(rlm.host_request('slow'), 0.01)\n except TimeoutError: pass\n"
        "await asyncio.gather(*(one() for _ in range(1000)))\n"
        "from rlm._bridge import current; current().pending"
    )
    assert got.result == "0"
    host.settle()
    assert host.types().count("bridge.cancel") == 1000


def test_cancelling_a_cell_cancels_its_request_and_not_a_detached_one(host: Host) -> None:
    host.answer = lambda t, p: None
    host.run("t = asyncio.create_task(rlm.host_request('detached'))\nawait asyncio.sleep(0)")
    id_ = host.runtime.start("await rlm.host_request('mine')")
    host.until(lambda e: e["event"] == "host_request" and e["data"]["type"] == "mine")
    host.runtime.interrupt(id_)
    host.until(lambda e: e["event"] == "done" and e["id"] == id_)
    host.settle()
    mine = next(e["id"] for e in host.asked if e["data"]["type"] == "mine")
    cancels = [
        e["data"]["payload"]["id"] for e in host.asked if e["data"]["type"] == "bridge.cancel"
    ]
    assert cancels == [mine]
    assert host.run("t.done()").result == "False"


def test_a_loop_in_another_thread_is_answered_and_cancelled_too(host: Host) -> None:
    got = host.run(
        "import asyncio, rlm\n"
        "def elsewhere(): return asyncio.run(rlm.host_request('there', {'x': 1}))\n"
        "await asyncio.to_thread(elsewhere)"
    )
    assert got.result == "{'type': 'there', 'payload': {'x': 1}}", got
    host.answer = lambda kind, _: None
    got = host.run(
        "async def brief(): await asyncio.wait_for(rlm.host_request('slow'), 0.05)\n"
        "def elsewhere():\n"
        "    try: asyncio.run(brief())\n"
        "    except TimeoutError: return 'too late'\n"
        "await asyncio.to_thread(elsewhere)"
    )
    assert got.result == "'too late'", got
    host.settle()
    assert host.types() == ["there", "slow", "bridge.cancel"]


def test_late_and_unknown_replies_are_ignored(host: Host) -> None:
    for id_ in ("h1", "nothing"):
        host.runtime.send({"type": "host_reply", "id": id_, "data": {"status": "ok"}})
    assert host.run("1").result == "1"


@pytest.mark.parametrize("reply", [{}, {"status": "maybe"}, {"status": "error"}])
def test_an_odd_answer_is_an_error_in_the_cell(host: Host, reply: dict[str, Any]) -> None:
    host.answer = lambda t, p: reply
    assert host.run("await rlm.host_request('x')").ename == "HostError"


def test_a_lost_host_fails_pending_and_later_calls() -> None:
    with Runtime() as runtime:
        lose_the_host(Host(runtime))


def lose_the_host(host: Host) -> None:
    host.answer = lambda t, p: None
    id_ = host.runtime.start(
        "import asyncio, rlm\nasync def ask():\n"
        " try: await rlm.host_request('x')\n except RuntimeError as e: print(type(e).__name__)\n"
        "await ask()"
    )
    host.until(lambda e: e["event"] == "host_request")
    host.runtime.close_stdin()
    got = host.until(lambda e: e["event"] == "done" and e["id"] == id_)
    assert "HostLost\n" in got.text()
    assert host.runtime.wait() == 0


# --- the API --------------------------------------------------------------------------------------

HANDLE = {
    "rlm_child_id": "sub-1",
    "name": "kid",
    "session_dir": "/s/sub-1",
    "model": "p/m",
    "status": "queued",
}


def answers(type_: str, payload: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "rlm.run": HANDLE | {"result_path": "/s/sub-1/result.json"},
        "rlm.info": HANDLE | {"status": "completed"},
        "rlm.delete_subagent": HANDLE | {"status": "deleted"},
        "rlm.list_subagents": {"subagents": [HANDLE | {"status": "running"}]},
        "rlm.find_models": {"models": [{"selector": "p/m", "name": "M", "provider": "p"}]},
        "rlm.family": {"current": None, "entries": []},
        "rlm.observe": {"agent": HANDLE, "messages": [{"index": 0, "role": "user", "text": "hi"}]},
        "rlm.submit_result": {"generation": 1, "sha256": "0", "size_bytes": 1},
        "rlm.get_result": {"value": {"a": 1}, "generation": 1},
    }
    receipt = {"id": "m1", "target": "x", "delivery_status": "queued", "at_ms": 1}
    return {"status": "ok", "result": table.get(type_, receipt)}


@pytest.mark.parametrize(
    ("code", "type_", "payload"),
    [
        ("await rlm('t', model='p/m')", "rlm.run", {"prompt": "t", "options": {"model": "p/m"}}),
        ("await rlm.run('t')", "rlm.run", {"prompt": "t", "options": {}}),
        ("await rlm.find_models('x', 3)", "rlm.find_models", {"query": "x", "limit": 3}),
        ("await rlm.list_subagents()", "rlm.list_subagents", {}),
        ("await rlm.family()", "rlm.family", {}),
        ("await rlm.send_parent('m')", "rlm.send_parent", {"message": "m"}),
        ("await rlm.send_sibling('s', 'm')", "rlm.send_sibling", {"name": "s", "message": "m"}),
        ("await rlm.send_child('c', 'm')", "rlm.send_child", {"name": "c", "message": "m"}),
        ("await rlm.observe('c')", "rlm.observe", {"target": "c", "limit": 8, "max_chars": 800}),
        ("await rlm.info('c')", "rlm.info", {"target": "c"}),
        ("await rlm.delete_subagent('c')", "rlm.delete_subagent", {"target": "c"}),
        ("await rlm.submit_result([1])", "rlm.submit_result", {"value": [1]}),
        ("await rlm.get_result('c', ['a'], 2)", "rlm.get_result", {"target": "c", "fields": ["a"], "generation": 2}),
        ("await (await rlm('t')).send('m')", "rlm.send_child", {"name": "sub-1", "message": "m"}),
        ("await (await rlm('t')).result()", "rlm.get_result", {"target": "sub-1"}),
        ("await (await rlm('t')).observe(2)", "rlm.observe", {"target": "sub-1", "limit": 2, "max_chars": 800}),
    ],
)  # fmt: skip
def test_every_name_of_the_api(host: Host, code: str, type_: str, payload: dict[str, Any]) -> None:
    host.answer = answers
    got = host.run(code)
    assert got.status == "ok", got.error
    assert host.asked[-1]["data"] == {"type": type_, "payload": payload}


def test_one_handle_per_child_kept_up_to_date(host: Host) -> None:
    host.answer = answers
    host.run(
        "h = await rlm('t'); before = h.status\n[l] = await rlm.list_subagents()\nd = await h.delete()"
    )
    got = host.run("(h is l is d, before, h.status, str(h.session_dir), h.result_path)")
    assert got.result == "(True, 'queued', 'deleted', '/s/sub-1', None)"


@pytest.mark.parametrize("code", ["await rlm(5)", "await rlm.find_models(limit='8')", "await rlm.send_child('c', None)", "await rlm.get_result('c', 'field')"])  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_sent(host: Host, code: str) -> None:
    assert host.run(code).ename == "TypeError"
    assert host.asked == []


def test_an_answer_that_is_no_handle_is_an_error(host: Host) -> None:
    host.answer = lambda t, p: {"status": "ok", "result": {"name": 5}}
    assert host.run("await rlm('t')").ename == "RuntimeError"


def test_the_module_is_callable_picklable_and_complete(host: Host) -> None:
    got = host.run(
        "import pickle, rlm as R\n(pickle.loads(pickle.dumps(R)) is rlm, sorted(set(rlm.__all__) - set(dir(rlm))))"
    )
    assert got.result == "(True, [])"
    assert host.run("[n for n in rlm.__all__ if getattr(rlm, n) is None]").result == "[]"
    assert host.run("rlm.no_such_name").ename == "AttributeError"


# --- bash -----------------------------------------------------------------------------------------


def notices(host: Host) -> list[str]:
    host.settle()
    return [t for t in host.types() if t.startswith("bash.")]


def test_awaiting_gives_code_output_and_duration(host: Host) -> None:
    got = host.run(
        "r = await rlm.bash('echo out; echo err >&2; exit 3')\n(r.exit_code, r.output, r.duration > 0)"
    )
    assert got.result == "(3, 'out\\nerr\\n', True)"
    assert notices(host) == []


def test_stdin_is_empty_and_there_are_no_colours(host: Host) -> None:
    assert host.run("(await rlm.bash('cat; echo $NO_COLOR $TERM')).output").result == "'1 dumb\\n'"


def test_the_await_ends_with_the_foreground_command(host: Host) -> None:
    began = time.monotonic()
    got = host.run("(await rlm.bash('sleep 600 & echo started')).output")
    assert got.result == "'started\\n'"
    assert time.monotonic() - began < 10


def test_an_unobserved_end_is_told_once_with_no_output(host: Host) -> None:
    host.run("h = rlm.bash('read -t 5 x < /dev/null; exit 4')")
    host.until(lambda e: e["event"] == "host_request")
    assert set(host.asked[0]["data"]["payload"]) == {"handle_id", "pid", "exit_code", "duration_ms"}
    assert notices(host) == ["bash.finished"]
    assert host.run("h.poll()").result == "4"
    assert notices(host) == ["bash.finished", "bash.observed"]
    host.run("h.output(); h.tail(); await h")
    assert len(notices(host)) == 2


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("await h", []),
        ("import time\nwhile h.poll() is None: time.sleep(0.01)", []),
        ("import time\nwhile h.running: time.sleep(0.01)\nh.output()", []),
        ("import time\nwhile h.running: time.sleep(0.01)", ["bash.finished"]),
        ("h.kill()", []),
        ("t = asyncio.create_task(h._wait())", ["bash.finished"]),
    ],
)
def test_what_counts_as_an_observation(host: Host, code: str, expected: list[str]) -> None:
    host.run(f"h = rlm.bash('sleep 0.2')\n{code}")
    eventually(lambda: host.run("h.running").result == "False", "the command ends")
    assert notices(host) == expected


def test_long_output_keeps_head_and_tail_and_counts_the_rest(host: Host) -> None:
    got = host.run(
        "o = (await rlm.bash('head -c 3000000 /dev/zero | tr \"\\\\0\" a; echo END')).output\n(o[:3], o[-4:], '[... 902852 bytes dropped ...]' in o)"
    )
    assert got.result == "('aaa', 'END\\n', True)"


def test_kill_ends_the_group(host: Host) -> None:
    got = host.run("h = rlm.bash('sleep 600 | sleep 600'); h.kill()\n(await h).exit_code")
    assert got.result == "-15"
    assert (
        host.run(
            "h = rlm.bash('trap \"\" TERM; while :; do sleep 0.05; done')\nawait asyncio.sleep(0.2)\nh.kill(grace=0.1)\n(await h).exit_code"
        ).result
        == "-9"
    )


def test_shutdown_ends_what_still_runs() -> None:
    with Runtime() as runtime:
        runtime.run("import rlm; h = rlm.bash('nohup sleep 600 & sleep 600')")
        runtime.send({"type": "shutdown", "id": "bye"})
        runtime.until_done("bye")
        runtime.wait()
        assert processes_of(runtime.tag) == []


def test_a_finished_command_is_saved_and_a_running_one_is_not(host: Host, tmp_path: Any) -> None:
    host.run("done = rlm.bash('echo kept'); _r = await done\nrunning = rlm.bash('sleep 600')")
    saved = host.runtime.ask(
        "snapshot", path=str(tmp_path / "s"), manifest_path=str(tmp_path / "m")
    ).done
    assert "done" in saved["saved"]
    assert "running" in [row["name"] for row in saved["skipped"]]
    assert json.loads((tmp_path / "m").read_text())["savedNames"] == saved["saved"]
