"""Whose output it is, in which order it comes, and that none is lost."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runtime_driver import Runtime, eventually


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime() as runtime:
        yield runtime


def test_streams_then_result_then_done(runtime: Runtime) -> None:
    got = runtime.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('more')\n7")
    assert [e["event"] for e in got] == ["stdout", "stderr", "stdout", "result", "done"]
    assert got.text("stdout") == "out\nmore\n"
    assert got.text("stderr") == "err\n"


def test_streams_then_error_then_done(runtime: Runtime) -> None:
    got = runtime.run("print('a')\n1/0")
    assert [e["event"] for e in got] == ["stdout", "error", "done"]
    assert got.error is not None
    assert got.error["traceback"][0] == "Traceback (most recent call last):\n"
    assert '  File "<cell-1>", line 2, in <module>\n' in got.error["traceback"]
    assert not any("/rlm/" in line for line in got.error["traceback"])


def test_what_printing_a_repr_says_comes_before_the_result(runtime: Runtime) -> None:
    got = runtime.run("class R:\n def __repr__(self):\n  print('in repr')\n  return 'R!'\nR()")
    assert [e.get("text") for e in got[:-1]] == ["in repr\n", "R!"]


@pytest.mark.parametrize(
    ("code", "stream", "text"),
    [
        ("import os; os.write(1, b'raw')", "stdout", "raw"),
        ("import os; os.write(2, b'raw')", "stderr", "raw"),
        ("import os; os.system('echo hi')", "stdout", "hi\n"),
        ("import subprocess; subprocess.run(['echo', 'hi'])", "stdout", "hi\n"),
        ("import subprocess, sys; subprocess.run(['echo', 'hi'], stdout=sys.stdout)", "stdout", "hi\n"),
        ("import subprocess, sys; subprocess.run(['echo', 'hi'], stderr=2, stdout=sys.stderr)", "stderr", "hi\n"),
        ("import sys; sys.stdout.buffer.write(b'bytes'); sys.stdout.flush()", "stdout", "bytes"),
        ("import ctypes; c = ctypes.PyDLL(None); c.puts(b'C'); c.fflush(None)", "stdout", "C\n"),
        ("import os\nos.write(1, b'\\xe2\\x82')\nos.write(1, b'\\xac')", "stdout", "€"),
        ("import os\nos.write(1, b'\\xe2\\x82')", "stdout", "�"),
        ("print('a\\u2028b\\u2029c')", "stdout", "a\u2028b\u2029c\n"),
        ("print('\\ud800x')", "stdout", "\ufffdx\n"),
        ("print('\U0001f378')", "stdout", "\U0001f378\n"),
    ],
)  # fmt: skip
def test_every_way_to_write_is_captured_for_its_cell_before_done(
    runtime: Runtime, code: str, stream: str, text: str
) -> None:
    id_ = runtime.start(code)
    got = runtime.until_done(id_)
    assert got.text(stream, author=id_) == text, got
    assert runtime.alive()


def test_an_unfinished_character_is_not_joined_with_the_next_cells_bytes(runtime: Runtime) -> None:
    runtime.run("import os; os.write(1, b'\\xe2\\x82')")
    assert runtime.run("os.write(1, b'\\xacx') and None").text() == "\ufffdx"


@pytest.mark.parametrize("hundred_thousands", [1, 50])
def test_c_code_that_writes_more_than_a_pipe_holds_with_the_gil(
    runtime: Runtime, hundred_thousands: int
) -> None:
    got = runtime.run(
        "import ctypes\nc = ctypes.PyDLL(None)\n"
        f"for _ in range({hundred_thousands}): c.printf(b'1' * 100_000)\nc.fflush(None) and None"
    )
    assert got.status == "ok"
    assert len(got.text()) == 100_000 * hundred_thousands


def test_a_child_that_fills_both_pipes(runtime: Runtime) -> None:
    got = runtime.run(
        "import subprocess\n"
        "subprocess.run(['sh', '-c', 'head -c 5000000 /dev/zero >&2; head -c 5000000 /dev/zero']) and None"
    )
    assert (len(got.text("stdout")), len(got.text("stderr"))) == (5_000_000, 5_000_000)


def test_what_was_printed_precedes_the_output_of_a_child_started_later(runtime: Runtime) -> None:
    got = runtime.run(
        "import subprocess\nfor i in range(20):\n print(f'p{i}')\n subprocess.run(['echo', f'c{i}'])"
    )
    words = got.text().split()
    assert sorted(words) == sorted(f"{w}{i}" for i in range(20) for w in "pc")
    assert all(words.index(f"p{i}") < words.index(f"c{i}") for i in range(20))


def test_many_small_raw_writes_all_precede_done(runtime: Runtime) -> None:
    runtime.run("import os")
    for _ in range(300):
        assert runtime.run("os.write(1, b'x') and None").text() == "x"


def test_a_background_child_does_not_delay_done(runtime: Runtime) -> None:
    got = runtime.run("import subprocess; p = subprocess.Popen(['sleep', '60'])")
    assert got.status == "ok"


def test_a_tasks_output_carries_its_cell_for_life(runtime: Runtime) -> None:
    first = runtime.start(
        "import asyncio\nasync def late():\n await go.wait()\n print('late')\n"
        "go = asyncio.Event()\nt = asyncio.create_task(late())"
    )
    runtime.until_done(first)
    second = runtime.start("go.set()\nawait asyncio.sleep(0.05)\nprint('mine')")
    got = runtime.until_done(second)
    assert got.text(author=first) == "late\n"
    assert got.text(author=second) == "mine\n"


def test_a_callbacks_output_carries_its_cell(runtime: Runtime) -> None:
    id_ = runtime.start(
        "import asyncio\nh = asyncio.get_running_loop().call_later(0.05, print, 'x')"
    )
    runtime.until_done(id_)
    assert runtime.event()["id"] == id_


@pytest.mark.parametrize("target", ["talk", "contextvars.copy_context().run, args=(talk,)"])
def test_a_threads_output_belongs_to_nobody(runtime: Runtime, target: str) -> None:
    runtime.run(
        "import threading, contextvars\ngo = threading.Event()\n"
        "def talk():\n go.wait()\n print('thread')"
    )
    runtime.run(f"t = threading.Thread(target={target}); t.start()")
    got = runtime.run("go.set(); t.join(); print('mine')")
    assert got.text(author=None) == "thread\n"
    assert got.text(author=got.done["id"]) == "mine\n"


def test_raw_bytes_between_cells_belong_to_nobody(runtime: Runtime, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    os.mkfifo(trigger)
    runtime.run(
        f"import subprocess; p = subprocess.Popen('read x < {trigger}; echo late', shell=True)"
    )
    trigger.write_text("go\n")
    late = runtime.event()
    assert (late["event"], late["id"], late["text"]) == ("stdout", None, "late\n")
    assert runtime.value("p.wait()") == 0


def test_one_hundred_thousand_lines_come_in_few_events(runtime: Runtime) -> None:
    began = time.monotonic()
    got = runtime.run("for i in range(100_000): print(i, flush=True)")
    took_s = time.monotonic() - began
    assert got.text() == "".join(f"{i}\n" for i in range(100_000))
    assert len(got) < 100 + 100 * took_s  # one each 10 ms, however slow the machine


def test_ten_megabytes_in_one_print(runtime: Runtime) -> None:
    got = runtime.run("print('é' * 10_000_000)")
    assert got.text() == "é" * 10_000_000 + "\n"
    assert all(len(e["text"].encode()) <= 65_536 for e in got if e["event"] == "stdout")


def test_a_flush_is_seen_though_c_code_then_keeps_the_gil() -> None:
    with Runtime() as runtime:
        runtime.start(
            "import ctypes\nfor i in range(5): print(i, flush=True)\nctypes.PyDLL(None).sleep(3600)"
        )
        seen = ""
        while seen != "0\n1\n2\n3\n4\n":
            seen += runtime.event()["text"]


def test_a_flush_does_not_wait_for_a_host_that_does_not_read(
    runtime: Runtime, tmp_path: Path
) -> None:
    went_on = tmp_path / "went on"
    id_ = runtime.start(
        "import os, time\n_ = os.write(1, b'x' * 100_000)\ntime.sleep(0.3)\n"  # the guard waits for us
        f"print('small', flush=True)\nopen({str(went_on)!r}, 'w').close()"
    )
    eventually(went_on.exists, "the cell's end")
    assert sorted(runtime.until_done(id_).text().split("small\n")) == ["", "x" * 100_000]


def test_output_comes_while_the_cell_runs(runtime: Runtime) -> None:
    id_ = runtime.start("print('early')\nimport time; time.sleep(60)")
    assert runtime.event() == {"event": "stdout", "id": id_, "text": "early\n"}
    runtime.interrupt(id_)
    assert runtime.until_done(id_).ename == "KeyboardInterrupt"


def test_a_host_that_reads_late_loses_nothing_and_sees_nothing_after_done(runtime: Runtime) -> None:
    id_ = runtime.start(
        "import os\nfor i in range(4):\n print('p' * 100_000)\n os.write(1, b'r' * 100_000)"
    )
    eventually(lambda: _is_full(runtime), "the output waits for the host")
    got = runtime.until_done(id_)
    text = got.text()
    assert (text.count("p"), text.count("r")) == (400_000, 400_000)
    assert runtime.run("1").text() == ""


def _is_full(runtime: Runtime) -> bool:
    """Tell whether the guard or the kernel waits until somebody reads what it writes."""
    places = (Path(f"/proc/{pid}/task") for pid in (runtime.pid, runtime.process.pid))
    threads = [thread for place in places for thread in place.iterdir()]
    return any("pipe_write" in (thread / "wchan").read_text() for thread in threads)


def test_closed_fds_cost_no_time_and_print_is_seen(runtime: Runtime) -> None:
    began = time.monotonic()
    got = runtime.run(
        "import os\nos.close(1); os.close(2)\na = open('/dev/null', 'w')\nprint('seen')"
    )
    assert got.text() == "seen\n"
    assert time.monotonic() - began < 3


def test_fds_that_a_cell_closed_are_back_for_the_next(runtime: Runtime) -> None:
    runtime.run("import os; os.close(1); os.close(2)")
    assert runtime.run("os.system('echo back') and None").text() == "back\n"


def test_a_big_result_is_cut_and_tells_its_length(runtime: Runtime) -> None:
    got = runtime.run("'€' * 10_000_000")
    result = next(e for e in got if e["event"] == "result")
    assert result["length"] == 10_000_002
    assert len(result["text"]) <= 262_144
    nulls = runtime.run("class R:\n def __repr__(self): return chr(0) * 300_000\nR()")
    assert next(e for e in nulls if e["event"] == "result")["length"] == 300_000


def test_a_result_is_bound_and_silent_binds_nothing(runtime: Runtime) -> None:
    runtime.run("5")
    assert runtime.run("_ + 1").result == "6"
    assert runtime.run("99", silent=True).result is None
    assert runtime.run("_").result == "6"
    assert runtime.run("3;").result == "3"
    assert runtime.run("None").result is None


def test_nothing_of_the_failed_cell_before_is_shown_again(runtime: Runtime) -> None:
    runtime.run("print('A')")
    assert runtime.run("def (").text() == ""


def test_names_bound_before_an_exception_stay(runtime: Runtime) -> None:
    runtime.run("x = 1\ny = []\ny.append(2)\nraise ValueError")
    assert runtime.run("(x, y)").result == "(1, [2])"


def test_display_comes_in_order_and_carries_its_cell(runtime: Runtime) -> None:
    got = runtime.run(
        "from rlm.repl import emit\nprint('a')\nemit({'text/x': [1, '\\u2028']})\nprint('b')"
    )
    assert [e["event"] for e in got] == ["stdout", "display", "stdout", "done"]
    assert got[1] == {"event": "display", "id": got.done["id"], "data": {"text/x": [1, "\u2028"]}}


def test_the_last_words_of_a_crash_arrive() -> None:
    with Runtime() as runtime:
        runtime.run("import faulthandler, os; faulthandler.enable(file=2)")
        runtime.start("os.abort()")
        got = runtime.until(lambda e: "Fatal Python error" in e.get("text", ""))
        assert got[-1]["event"] == "stderr"
        assert runtime.wait() == -6


@pytest.mark.parametrize(
    "loss",
    [
        "sys.stdin.close()",
        "b = sys.stdin.detach()",
        "r = sys.stdin.buffer.detach()",
        "del sys.stdin",
    ],
)
def test_a_cell_that_loses_stdin_loses_it_for_itself(runtime: Runtime, loss: str) -> None:
    assert runtime.run("import sys\n" + loss).status == "ok"
    assert runtime.value("sys.stdin.read()") == ""
    assert runtime.run("input()").ename == "EOFError"


def test_a_kernel_that_cannot_start_says_why_on_stderr_and_nothing_on_stdout() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import sys; sys.modules['msgspec'] = None\nimport runpy; runpy.run_module('rlm.repl', run_name='__main__', alter_sys=True)"],
        env={**os.environ},
        input=b"",
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert b"msgspec" in done.stdout + done.stderr
