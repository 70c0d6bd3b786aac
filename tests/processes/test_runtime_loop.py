"""
Requests are served where the loop waits for them. What else the loop does goes on all the same.

Each cell here is a plain one and nothing follows it: the loop gets no other occasion.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from rlm._wire import _FIRST_READ_BYTES
from support.runtime_driver import Exchange, Runtime

LOOP = "import asyncio\nloop = asyncio.get_running_loop()\n"


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime() as runtime:
        runtime.run(LOOP)
        yield runtime


def until_text(runtime: Runtime, text: str, seen: str = "") -> Exchange:
    got = Exchange()
    while text not in seen + got.text():
        got.append(runtime.event())
    return got


AFTERWARDS = {
    "a task": "async def say(): print('later')\nt = loop.create_task(say())",
    "a task that waits": (
        "async def say():\n await asyncio.sleep(0)\n await asyncio.sleep(0.01)\n print('later')\n"
        "t = loop.create_task(say())"
    ),
    "call_soon": "h = loop.call_soon(print, 'later')",
    "call_soon of call_soon": "h = loop.call_soon(loop.call_soon, loop.call_soon, print, 'later')",
    "a timer": "h = loop.call_later(0.02, print, 'later')",
    "a timer of a callback": "h = loop.call_soon(loop.call_later, 0.02, print, 'later')",
    "a done future": (
        "f = loop.create_future(); f.add_done_callback(lambda f: print('later')); f.set_result(1)"
    ),
    "another thread": (
        "import threading\n"
        "t = threading.Timer(0.02, loop.call_soon_threadsafe, (print, 'later')); t.start()"
    ),
    "a coroutine from another thread": (
        "import threading\nasync def say(): print('later')\n"
        "t = threading.Timer(0.02, lambda: asyncio.run_coroutine_threadsafe(say(), loop)); t.start()"
    ),
    "a readable descriptor": (
        "import socket\na, b = socket.socketpair()\n"
        "loop.add_reader(a, lambda: (loop.remove_reader(a), print('later')))\nn = b.send(b'x')"
    ),
    "a writable descriptor": (
        "import socket\na, b = socket.socketpair()\n"
        "loop.add_writer(a, lambda: (loop.remove_writer(a), print('later')))"
    ),
    "an executor": "f = loop.run_in_executor(None, lambda: print('later'))",
    "after a stop": "loop.stop(); h = loop.call_soon(print, 'later')",
    "in debug mode": "loop.set_debug(True); h = loop.call_soon(print, 'later')",
    "in debug mode, from a thread": (
        "import threading\nt = threading.Timer(0.02, loop.call_soon_threadsafe, (print, 'later')); t.start()"
    ),
    "out of debug mode": "loop.set_debug(False); h = loop.call_soon(print, 'later')",
}


@pytest.mark.parametrize("code", AFTERWARDS.values(), ids=AFTERWARDS)
def test_what_a_plain_cell_leaves_goes_on_by_itself(runtime: Runtime, code: str) -> None:
    got = runtime.run(code)
    assert got.status == "ok", got
    until_text(runtime, "later", got.text())
    assert runtime.alive()


def test_a_descriptor_of_an_earlier_cell_is_heard_between_requests(runtime: Runtime) -> None:
    runtime.run(
        "import socket\na, b = socket.socketpair()\nloop.add_reader(a, lambda: print(a.recv(9)))"
    )
    for n in range(20):
        got = runtime.run(f"n = b.send(b'<{n}>')")
        until_text(runtime, f"<{n}>", got.text())
    assert runtime.value("loop.remove_reader(a)") is True


def test_tasks_go_on_while_requests_come_one_after_the_other(runtime: Runtime) -> None:
    runtime.run(
        "turns = 0\nasync def turn():\n global turns\n while turns >= 0:\n"
        "  turns += 1; await asyncio.sleep(0)\nt = loop.create_task(turn())"
    )
    seen = [runtime.value("turns") for _ in range(50)]
    assert seen == sorted(set(seen)), "the loop has not turned between two requests"
    runtime.run("turns = -5")


def test_a_timer_keeps_its_time_while_requests_come(runtime: Runtime) -> None:
    runtime.run("rung = []; h = loop.call_later(0.05, rung.append, loop.time() + 0.05)")
    while runtime.value("len(rung)") == 0:
        assert runtime.value("loop.time() < h.when() + 10"), "the timer was never due"


def test_requests_are_served_beside_a_pending_timer(runtime: Runtime) -> None:
    runtime.run("far = loop.call_later(3600, print, 'never')")
    assert [runtime.value(f"{n} + 1") for n in range(20)] == list(range(1, 21))
    assert runtime.value("await asyncio.sleep(0.01, 7)") == 7
    assert runtime.value("far.cancel()") is None
    assert runtime.alive()


@pytest.mark.parametrize(
    "how", ["loop.add_signal_handler(n, print, 'heard')", "x = signal.signal(n, heard)"]
)
def test_a_signal_is_heard_while_nothing_else_happens(how: str) -> None:
    """`add_signal_handler` wakes the loop by its own descriptor; a plain handler has to do it."""
    with Runtime() as runtime:
        heard = "def heard(*_): loop.call_soon_threadsafe(print, 'heard')\n"
        runtime.run(LOOP + "import signal; n = signal.SIGUSR1\n" + heard + how)
        os.kill(runtime.pid, signal.SIGUSR1)
        until_text(runtime, "heard")
        assert runtime.alive()


def test_callbacks_run_in_order_and_a_cancelled_one_does_not(runtime: Runtime) -> None:
    got = runtime.run(
        "hs = [loop.call_soon(lambda n=n: print(n, end=' ')) for n in range(9)]\n"
        "hs[4].cancel(); h = loop.call_soon(print, 'end')"
    )
    got += until_text(runtime, "end", got.text())
    assert got.text() == "0 1 2 3 5 6 7 8 end\n"


def test_a_callback_has_the_context_it_was_given_or_else_its_makers(runtime: Runtime) -> None:
    ran = runtime.run(
        "import contextvars\nv = contextvars.ContextVar('v', default='default')\n"
        "show = lambda: print(v.get(), end=' ')\n"
        "old = contextvars.copy_context()\nt = v.set('new')\n"
        "h = loop.call_soon(show); h = loop.call_soon(show, context=old); v.reset(t)\n"
        "h = loop.call_soon(show); h = loop.call_soon(print, 'end')"
    )
    later = until_text(runtime, "end")
    assert later.text(author=ran.done["id"]) == "new default default end\n"


def test_a_failing_callback_ends_nothing(runtime: Runtime) -> None:
    runtime.run("h = loop.call_soon(lambda: 1 / 0); h = loop.call_soon(print, 'end')")
    got = runtime.until(lambda e: "ZeroDivisionError" in e.get("text", ""))
    until_text(runtime, "end", got.text())
    assert runtime.alive()


@pytest.mark.parametrize("raised", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_a_callback_that_would_end_the_loop_does_not(runtime: Runtime, raised: str) -> None:
    runtime.run(
        f"def end(): raise {raised}\nh = loop.call_soon(end); h = loop.call_soon(print, 'end')"
    )
    runtime.run("1")
    assert runtime.alive()


def test_an_interrupt_of_one_request_that_came_alone_hits_it_and_no_other(runtime: Runtime) -> None:
    for _ in range(50):
        id_ = runtime.start("while True: pass")
        runtime.interrupt(id_)
        assert runtime.until_done(id_).ename == "KeyboardInterrupt"
        assert runtime.run("6 * 7").result == "42"


def test_what_came_with_a_request_is_sorted_before_it_runs(runtime: Runtime) -> None:
    first, second = runtime.new_id(), runtime.new_id()
    runtime.send(
        {"type": "execute", "id": first, "code": "1"},
        {"type": "interrupt", "id": second},
        {"type": "execute", "id": second, "code": "while True: pass"},
        {"type": "interrupt", "id": second},
        {"type": "execute", "id": first, "code": "'twice'"},
    )
    refused = runtime.until(lambda e: e["event"] == "error" and e["id"] is None)
    assert "in flight" in refused[-1]["evalue"]
    got = runtime.until_done(second)
    assert got.ename == "KeyboardInterrupt"


def test_the_end_of_stdin_that_comes_with_a_request_is_heard() -> None:
    """A line that fills the first read is read on from, and here it is the end that follows."""
    with Runtime(wait_ready=False) as runtime:
        line = b'{"type":"execute","id":"x","code":"1+1"}'
        runtime.write(line.ljust(_FIRST_READ_BYTES - 1) + b"\n")
        runtime.close_stdin()
        assert runtime.wait() == 0
