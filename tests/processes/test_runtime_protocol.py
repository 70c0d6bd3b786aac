"""The wire of the runtime: every request and event, hostile lines, ids, shutdown."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from support.runtime_driver import COMMAND, Ended, Runtime

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime() as runtime:
        yield runtime


def test_ready_comes_first_and_says_who_is_there(runtime: Runtime) -> None:
    assert runtime.ready["protocol"] == 3
    assert runtime.ready["python"] == ".".join(map(str, sys.version_info[:3]))
    assert runtime.ready["runtime"] == "dev"
    assert {"complete", "inspect", "silent", "detail"} <= set(runtime.ready["features"])
    assert runtime.ready["pid"] != runtime.process.pid


@pytest.mark.parametrize("how", ["env", "argument"])
def test_protocol_one_is_announced_when_asked_for(how: str) -> None:
    env = {"RLM_REPL_PROTOCOL": "1"} if how == "env" else {}
    command = COMMAND if how == "env" else (*COMMAND, "--protocol", "1")
    with Runtime(env=env, command=command) as runtime:
        assert runtime.ready["protocol"] == 1
        assert runtime.alive()


def test_every_done_carries_the_nonce(runtime: Runtime) -> None:
    for done in (runtime.run("1").done, runtime.ask("list_names").done):
        assert done["nonce"] == runtime.ready["nonce"]


LINES: list[tuple[str, bytes]] = [
    ("type is a list", b'{"type":["execute"]}'),
    ("type is a number", b'{"type":5}'),
    ("type is null", b'{"type":null}'),
    ("type is an object", b'{"type":{}}'),
    ("no type", b'{"id":"a","code":"1"}'),
    ("unknown type", b'{"type":"explode","id":"a"}'),
    ("mcp_status", b'{"type":"mcp_status","id":"a","servers":[]}'),
    ("deep arrays", b"[" * 200_000),
    ("deep objects", b'{"a":' * 100_000),
    ("deep inside a field", b'{"type":"host_reply","id":"a","data":{"x":' + b"[" * 100_000),
    ("deep and closed", b'{"type":"execute","id":"a","code":"1","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    ("an array", b"[1,2]"),
    ("a string", b'"execute"'),
    ("a number", b"5"),
    ("null", b"null"),
    ("true", b"true"),
    ("nothing JSON", b"execute 1+1"),
    ("half an object", b'{"type":"execute","id":"a"'),
    ("two objects", b'{"type":"execute","id":"a","code":"1"}{"type":"shutdown"}'),
    ("trailing comma", b'{"type":"execute","id":"a","code":"1",}'),
    ("single quotes", b"{'type':'execute'}"),
    ("NaN", b'{"type":"host_reply","id":"a","data":{"x":NaN}}'),
    ("Infinity", b'{"type":"host_reply","id":"a","data":{"x":Infinity}}'),
    ("bad UTF-8", b'{"type":"execute","id":"a","code":"\xff\xfe"}'),
    ("cut UTF-8", b'{"type":"execute","id":"a","code":"\xe2\x82"}'),
    ("overlong UTF-8", b'{"type":"execute","id":"a","code":"\xc0\xaf"}'),
    ("UTF-16", '{"type":"execute"}'.encode("utf-16-le").replace(b"\n", b"")),
    ("a byte order mark", b'\xef\xbb\xbf{"type":"list_names","id":"a"}'),
    ("null bytes", b"\0\0\0\0"),
    ("control characters", b'{"type":"exe\x01cute"}'),
    ("a raw tab in a string", b'{"type":"execute","id":"a","code":"\x01"}'),
    ("bad escape", b'{"type":"execute","id":"a","code":"\\q"}'),
    ("id is a number", b'{"type":"execute","id":5,"code":"1"}'),
    ("id is null", b'{"type":"execute","id":null,"code":"1"}'),
    ("id is missing", b'{"type":"execute","code":"1"}'),
    ("id is a list", b'{"type":"execute","id":["a"],"code":"1"}'),
    ("id of a kilobyte", b'{"type":"execute","id":"' + b"i" * 2000 + b'","code":"1"}'),
    ("code is a number", b'{"type":"execute","id":"a","code":1}'),
    ("code is missing", b'{"type":"execute","id":"a"}'),
    ("silent is a string", b'{"type":"execute","id":"a","code":"1","silent":"yes"}'),
    ("interrupt with a number", b'{"type":"interrupt","id":5}'),
    ("interrupt with a list", b'{"type":"interrupt","id":[]}'),
    ("reply without data", b'{"type":"host_reply","id":"a"}'),
    ("reply with a list", b'{"type":"host_reply","id":"a","data":[]}'),
    ("snapshot without path", b'{"type":"snapshot","id":"a"}'),
    ("snapshot cap is true", b'{"type":"snapshot","id":"a","path":"/x","manifest_path":"/y","max_bytes":true}'),
    ("snapshot cap is null", b'{"type":"snapshot","id":"a","path":"/x","manifest_path":"/y","max_bytes":null}'),
    ("snapshot cap is a float", b'{"type":"snapshot","id":"a","path":"/x","manifest_path":"/y","max_bytes":1.5}'),
    ("restore path is a number", b'{"type":"restore","id":"a","path":1}'),
    ("list_names without id", b'{"type":"list_names"}'),
    ("detail is a number", b'{"type":"list_names","id":"a","detail":1}'),
    ("complete without cursor", b'{"type":"complete","id":"a","code":"x"}'),
    ("inspect cursor is text", b'{"type":"inspect","id":"a","code":"x","cursor":"0"}'),
    ("shutdown with a number", b'{"type":"shutdown","id":5}'),
    ("a number beyond 64 bits as id", b'{"type":"execute","id":' + b"9" * 400 + b',"code":"1"}'),
    ("a line over the limit", b'{"type":"execute","id":"a","code":"' + b"x" * (33 * MIB) + b'"}'),
    ("nothing but spaces and a letter", b"   x   "),
]  # fmt: skip


def test_there_are_enough_hostile_lines() -> None:
    assert len(LINES) >= 50


@pytest.mark.parametrize("line", [row[1] for row in LINES], ids=[row[0] for row in LINES])
def test_a_hostile_line_is_one_protocol_error_and_the_next_line_is_served(
    runtime: Runtime, line: bytes
) -> None:
    runtime.write(line + b"\n")
    got = runtime.run("1+1")
    assert [e["event"] for e in got] == ["error", "result", "done"], got
    assert (got[0]["id"], got[0]["ename"], got[0]["traceback"]) == (None, "ProtocolError", [])
    assert got[1]["text"] == "2"


@pytest.mark.parametrize("line", [b"", b"   ", b"\r", b"\t \r"])
def test_a_blank_line_is_ignored(runtime: Runtime, line: bytes) -> None:
    runtime.write(line + b"\n")
    assert len(runtime.run("None")) == 1


def test_carriage_returns_unknown_fields_and_single_bytes(runtime: Runtime) -> None:
    line = '{"type":"execute","id":"u","code":"\'€𝄞\'","future":1}\r\n'.encode()
    for at in range(len(line)):
        runtime.write(line[at : at + 1])
    assert runtime.until_done("u").result == "'€𝄞'"


def test_half_a_surrogate_pair_is_no_reason_to_leave_a_request_unanswered(runtime: Runtime) -> None:
    runtime.write(b'{"type":"execute","id":"half","code":"\'\\ud800\'"}\n')
    assert runtime.until_done("half").result == "'\ufffd'"


@pytest.mark.parametrize("code", ["\"len('🍸')\"", "\"len('\\ud83c\\udf78')\""])
def test_a_surrogate_pair_is_one_code_point_raw_and_escaped(runtime: Runtime, code: str) -> None:
    runtime.write(b'{"type":"execute","id":"s","code":%s}\n' % code.encode())
    assert runtime.until_done("s").result == "1"


def test_line_separators_do_not_split_lines(runtime: Runtime) -> None:
    runtime.write('{"type":"execute","id":"l","code":"\'a\u2028b\u2029c\'"}\n'.encode())
    got = runtime.until_done("l")
    assert got.result == "'a\\u2028b\\u2029c'"


def test_long_lines_both_ways(runtime: Runtime) -> None:
    assert runtime.run("x = '" + "a" * 5 * MIB + "'\nlen(x)").result == str(5 * MIB)


def test_an_id_in_flight_is_refused_and_the_first_goes_on(runtime: Runtime) -> None:
    runtime.send(
        {"type": "execute", "id": "d", "code": "await __import__('asyncio').sleep(0.1) or 1"},
        {"type": "execute", "id": "d", "code": "2"},
    )
    got = runtime.until_done("d")
    assert [e["event"] for e in got] == ["error", "result", "done"]
    assert got[0]["ename"] == "ProtocolError"
    assert got.result == "1"
    assert runtime.run("3", id="d").result == "3"
    assert runtime.silence(0.05) == []


def test_requests_are_served_in_order(runtime: Runtime) -> None:
    runtime.send(
        *(
            {"type": "execute", "id": f"o{i}", "code": "await __import__('asyncio').sleep(0)"}
            for i in range(20)
        ),
        {"type": "list_names", "id": "o20"},
    )
    done = [e["id"] for e in runtime.until_done("o20") if e["event"] == "done"]
    assert done == [f"o{i}" for i in range(21)]


def test_list_names_is_sorted_and_hides_what_is_not_the_users() -> None:
    with Runtime() as runtime:
        runtime.run("from rlm._bootstrap import bind; bind()", silent=True)
        runtime.run("b = 1; a = 2; _c = 3; globals()[5] = 6")
        assert runtime.ask("list_names").done["names"] == ["a", "b"]
        rows = runtime.ask("list_names", detail=True).done["details"]
        assert [(row["name"], row["type"], row["preview"]) for row in rows] == [
            ("a", "int", "2"),
            ("b", "int", "1"),
        ]
        assert runtime.run("(callable(rlm), callable(bash), asyncio.__name__)").status == "ok"


def test_a_namespace_too_big_for_a_frame_is_cut_and_says_so(runtime: Runtime) -> None:
    runtime.run("for i in range(200_000): globals()[f'name_{i:08}'] = i")
    done = runtime.ask("list_names").done
    assert done["truncated"] is True
    assert len(done["names"]) > 1000
    runtime.run("for n in [n for n in globals() if n.startswith('name_')]: del globals()[n]")


def test_top_level_await_and_persistent_names(runtime: Runtime) -> None:
    runtime.run("import asyncio\nasync def f(x):\n  await asyncio.sleep(0)\n  return x * 2")
    assert runtime.run("y = await f(4)\ny + 1").result == "9"
    assert runtime.run("[x async for x in __import__('asyncio').as_completed([])]").status in (
        "ok",
        "error",
    )
    assert runtime.run("y").result == "8"


def test_context_variables_and_decimal_precision_persist(runtime: Runtime) -> None:
    runtime.run("import decimal; decimal.getcontext().prec = 5")
    runtime.run("import asyncio; await asyncio.sleep(0); decimal.getcontext().prec += 1")
    assert runtime.run("decimal.getcontext().prec").result == "6"


def test_sources_are_there_for_later_tracebacks_and_gone_when_unused(runtime: Runtime) -> None:
    runtime.run("def boom():\n    raise ValueError('later')")
    got = runtime.run("boom()")
    assert got.error is not None
    assert "    raise ValueError('later')\n" in got.error["traceback"]
    count = "sum(n.startswith('<cell-') for n in __import__('linecache').cache)"
    before = int(runtime.run(count).result or 0)
    for _ in range(50):
        runtime.run("1 + 1")
    assert int(runtime.run(count).result or 0) <= before + 1


def test_unreferenced_tasks_are_kept_until_they_end(runtime: Runtime) -> None:
    runtime.run(
        "import asyncio, gc, weakref\nended = []\nholder = {}\n"
        "async def lonely():\n f = asyncio.get_running_loop().create_future()\n"
        " holder['f'] = weakref.ref(f)\n await f\n ended.append(1)\n"
        "asyncio.create_task(lonely()) and None\nawait asyncio.sleep(0)"
    )
    runtime.run("gc.collect(); holder['f']().set_result(None)\nawait asyncio.sleep(0)")
    assert runtime.run("ended").result == "[1]"


def test_what_a_cell_imports_from_the_working_directory(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "mine.py").write_text("X = 5\n")
    for name in ("msgspec", "asyncio", "rlm", "cloudpickle", "json", "dill"):
        (folder / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    with Runtime(cwd=folder) as runtime:
        assert runtime.run("import mine; mine.X").result == "5"
        path, manifest = str(folder / "s"), str(folder / "s.json")
        done = runtime.ask("snapshot", path=path, manifest_path=manifest).done
        assert done["status"] == "ok", done


# --- shutdown -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "1",
        "import time; time.sleep(60)",
        "while True: pass",
        "import asyncio; await asyncio.sleep(60)",
        "import rlm; await rlm.host_request('never')",
        "while True:\n try:\n  while True: pass\n except BaseException: pass",
        "import asyncio\nwhile True:\n try: await asyncio.sleep(60)\n except BaseException: pass",
        "import threading; threading.Thread(target=threading.Event().wait).start()",
        "import subprocess; subprocess.run(['sleep', '60'])",
    ],
)
def test_shutdown_is_answered_whatever_the_cell_does_in_python(code: str) -> None:
    with Runtime() as runtime:
        id_ = runtime.start(f"print('go')\n{code}")
        runtime.until(lambda e: "go" in e.get("text", ""))
        began = time.monotonic()
        runtime.send({"type": "shutdown", "id": "bye"})
        got = runtime.until_done("bye")
        assert got.status == "ok"
        assert runtime.wait() == 0
        assert time.monotonic() - began < 10
        assert sum(e["event"] == "done" and e["id"] == id_ for e in got) <= 1


def test_shutdown_answers_what_was_queued() -> None:
    with Runtime() as runtime:
        runtime.started("print('go')\nimport time; time.sleep(60)")
        runtime.send(
            {"type": "execute", "id": "q1", "code": "1"},
            {"type": "list_names", "id": "q2"},
            {"type": "shutdown", "id": "bye"},
        )
        got = runtime.until_done("bye")
        done = {e["id"]: e["status"] for e in got if e["event"] == "done"}
        assert done == {"r1": "error", "q1": "error", "q2": "error", "bye": "ok"}


@pytest.mark.parametrize(
    "code", ["1", "while True: pass", "import rlm; await rlm.host_request('never')"]
)
def test_the_end_of_stdin_is_a_shutdown_without_an_answer(code: str) -> None:
    with Runtime() as runtime:
        runtime.start(f"print('go')\n{code}")
        runtime.until(lambda e: "go" in e.get("text", ""))
        runtime.close_stdin()
        assert runtime.wait() == 0


def test_the_end_of_stdin_ends_c_code_that_keeps_the_gil() -> None:
    with Runtime() as runtime:
        runtime.started("import os\nos.write(1, b'go') and sum(range(10**12))")
        runtime.close_stdin()
        assert runtime.wait() == -9


def test_a_file_as_stdin_is_served(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "requests"
    path.write_text('{"type":"execute","id":"a","code":"print(6*7)"}\n')
    with path.open() as file:
        done = subprocess.run(COMMAND, stdin=file, capture_output=True, timeout=60)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["event"] for e in events] == ["ready", "stdout", "done"]
    assert done.returncode == 0


def test_the_guard_obeys_its_host() -> None:
    with Runtime() as runtime:
        assert runtime.told() == b"pid %d" % runtime.pid
        runtime.started("print('go')\nimport time; time.sleep(60)")
        runtime.order(b"kill")
        with pytest.raises(Ended):
            runtime.until_done("r1")
        assert runtime.told() == b"exit -9"


def test_the_guard_passes_term_on() -> None:
    with Runtime() as runtime:
        assert runtime.told()
        runtime.order(b"term")
        assert runtime.told() == b"exit -15"
        assert runtime.wait() == -15


def test_the_kernel_does_not_see_its_guards_fd() -> None:
    with Runtime() as runtime:
        assert runtime.run("import os; os.environ.get('RLM_GUARD_FD')").result is None


def test_an_id_with_a_line_separator_comes_back_escaped() -> None:
    with Runtime() as runtime:
        id_ = runtime.start("print('x')\n1", id="a\u2028b\u2029")
        data = b""
        while b'"done"' not in data:
            data += os.read(runtime._out, 65536)
        assert b"\xe2\x80" not in data
        assert [json.loads(line)["id"] for line in data.splitlines()] == [id_] * 3
