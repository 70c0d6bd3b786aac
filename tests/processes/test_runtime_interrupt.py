"""An interrupt hits the request it names, whatever that does, and nothing else."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from support.runtime_driver import Runtime, eventually


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime() as runtime:
        yield runtime


@pytest.fixture(scope="module")
def foreign() -> Iterator[Runtime]:
    """A runtime whose host knows no doorbell: interrupts are in-band only."""
    with Runtime(doorbell=False, control=False) as runtime:
        yield runtime


GO = "print('go', flush=True)\n"
CELLS = {
    "sleep": "import time; time.sleep(60)",
    "busy loop": "while True: pass",
    "await sleep": "import asyncio; await asyncio.sleep(60)",
    "await gather": "import asyncio; await asyncio.gather(*(asyncio.sleep(60) for _ in range(500)))",
    "await a host request": "import rlm; await rlm.host_request('never')",
    "wait for a lock": "import threading; l = threading.Lock(); l.acquire(); l.acquire()",
    "wait for a queue": "import queue; queue.Queue().get()",
    "join a thread": "import threading, time\nt = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start(); t.join()",
    "recv": "import socket; a, b = socket.socketpair(); a.recv(1)",
    "subprocess": "import subprocess; subprocess.run(['sleep', '60'])",
    "pipeline": "import subprocess; subprocess.run('sleep 60 | cat', shell=True)",
    "print loop": "while True: print('x' * 1000)",
    "slow repr": "class R:\n def __repr__(self):\n  import time; time.sleep(60)\nR()",
    "slow str of an error": "class E(Exception):\n def __str__(self):\n  import time; time.sleep(60)\nraise E",
    "starved": "import asyncio, time\nasync def bg(): print('deep', flush=True); time.sleep(60)\nt = asyncio.create_task(bg())\nawait asyncio.sleep(60)",
    "except Exception": "import asyncio\ntry: await asyncio.sleep(60)\nexcept Exception: pass",
    "sync except Exception": "import time\ntry: time.sleep(60)\nexcept Exception: pass",
    "async for": "import asyncio\nasync def g():\n while True:\n  await asyncio.sleep(0)\n  yield 1\nasync for _ in g(): pass",
    "busy after await": "import asyncio\nawait asyncio.sleep(0)\nwhile True: pass",
}  # fmt: skip
GIL_HELD = {
    "catastrophic re": "import os, re; os.write(1, b'go'); re.match(r'(a+)+$', 'a' * 64 + 'b')"
}


def check(runtime: Runtime, code: str, *, ring: bool) -> None:
    if "slow str" in code or "__str__" in code:
        id_ = runtime.start(GO + code)
        runtime.until(lambda e: "go" in e.get("text", ""))
    else:
        id_ = runtime.started(GO + code)
    if "deep" in code:  # else the interrupt may come before the task has begun, and ends the cell
        runtime.until(lambda e: "deep" in e.get("text", ""))
    runtime.interrupt(id_, ring=ring)
    got = runtime.until_done(id_)
    assert got.status == "error"
    assert got.ename in ("KeyboardInterrupt", "E"), got.error
    assert runtime.run("40 + 2").result == "42"


@pytest.mark.parametrize("name", [*CELLS, *GIL_HELD])
def test_by_doorbell(runtime: Runtime, name: str) -> None:
    check(runtime, (CELLS | GIL_HELD)[name], ring=True)


@pytest.mark.parametrize("name", CELLS)
def test_in_band_only(foreign: Runtime, name: str) -> None:
    check(foreign, CELLS[name], ring=False)


def test_a_signal_alone_rings_but_interrupts_nothing(runtime: Runtime) -> None:
    id_ = runtime.started(GO + "import time; time.sleep(0.2); 7")
    runtime.ring()
    assert runtime.until_done(id_).result == "7"


def test_without_a_doorbell_a_signal_is_an_untargeted_interrupt() -> None:
    with Runtime(doorbell=False) as runtime:
        id_ = runtime.started(GO + "import time; time.sleep(60)")
        runtime.ring()
        assert runtime.until_done(id_).ename == "KeyboardInterrupt"


def test_the_guard_passes_a_signal_on_to_the_kernel() -> None:
    with Runtime(doorbell=False, control=False) as runtime:
        id_ = runtime.started(GO + "import time; time.sleep(60)")
        os.kill(runtime.process.pid, signal.SIGINT)
        assert runtime.until_done(id_).ename == "KeyboardInterrupt"


@pytest.mark.parametrize("targeted", [True, False])
def test_execute_and_interrupt_in_one_write(runtime: Runtime, targeted: bool) -> None:
    for _ in range(20):
        id_ = runtime.new_id()
        stop = {"type": "interrupt", "id": id_} if targeted else {"type": "interrupt"}
        runtime.send({"type": "execute", "id": id_, "code": "1+1"}, stop)
        assert runtime.until_done(id_).ename == "KeyboardInterrupt"


def test_an_interrupt_is_parked_for_a_queued_request(runtime: Runtime) -> None:
    runtime.send(
        {"type": "execute", "id": "w", "code": "print('go')\nawait __import__('asyncio').sleep(0.3)"},
        {"type": "execute", "id": "x", "code": "1"},
        {"type": "list_names", "id": "y"},
        {"type": "execute", "id": "z", "code": "3"},
    )  # fmt: skip
    runtime.until(lambda e: "go" in e.get("text", ""))
    runtime.send({"type": "interrupt", "id": "x"}, {"type": "interrupt", "id": "y"})
    got = runtime.until_done("z")
    status = {e["id"]: e["status"] for e in got if e["event"] == "done"}
    assert status == {"w": "ok", "x": "error", "y": "error", "z": "ok"}


def test_a_parked_interrupt_dies_with_a_cell_that_does_not_compile(runtime: Runtime) -> None:
    runtime.send(
        {"type": "execute", "id": "w", "code": "import time; time.sleep(0.2)"},
        {"type": "execute", "id": "b", "code": "def broken(:"},
        {"type": "interrupt", "id": "b"},
        {"type": "execute", "id": "n", "code": "5"},
    )
    got = runtime.until_done("n")
    assert [e["status"] for e in got if e["event"] == "done"] == ["ok", "error", "ok"]
    assert got.result == "5"


def test_an_untargeted_interrupt_hits_one_request_only(runtime: Runtime) -> None:
    id_ = runtime.started(GO + "while True: pass")
    runtime.send({"type": "interrupt"}, {"type": "execute", "id": "n", "code": "1+1"})
    runtime.ring()
    got = runtime.until_done("n")
    assert [(e["id"], e["status"]) for e in got if e["event"] == "done"] == [
        (id_, "error"),
        ("n", "ok"),
    ]
    assert got.result == "2"


@pytest.mark.parametrize("id_", ["unknown", "r1", None])
def test_an_interrupt_for_nothing_is_dropped(runtime: Runtime, id_: str | None) -> None:
    runtime.interrupt(id_)
    assert runtime.alive()
    assert runtime.silence(0.05) == []


def test_an_interrupt_ends_the_coroutine_for_good(runtime: Runtime) -> None:
    id_ = runtime.started(
        GO + "import asyncio\nfor i in range(200):\n await asyncio.sleep(0.01)\n print(i)"
    )
    runtime.interrupt(id_)
    runtime.until_done(id_)
    assert [e for e in runtime.silence(0.3) if e["event"] == "stdout"] == []


def test_the_loop_and_tasks_of_earlier_cells_go_on(runtime: Runtime) -> None:
    runtime.run(
        "import asyncio\nticks = []\nasync def tick():\n"
        " while True:\n  ticks.append(1)\n  await asyncio.sleep(0.01)\nbeat = asyncio.create_task(tick())"
    )
    id_ = runtime.started(GO + "await asyncio.sleep(60)")
    runtime.interrupt(id_)
    assert runtime.until_done(id_).ename == "KeyboardInterrupt"
    assert runtime.run("n = len(ticks)\nawait asyncio.sleep(0.1)\nlen(ticks) > n").result == "True"
    runtime.run("beat.cancel()")


def test_servers_and_pools_of_earlier_cells_live_on(runtime: Runtime) -> None:
    runtime.run(
        "import subprocess, concurrent.futures as cf\nserver = subprocess.Popen(['sleep', '600'])\n"
        "pool = cf.ProcessPoolExecutor(2)\nlist(pool.map(abs, [1, 2]))"
    )
    id_ = runtime.started(GO + "subprocess.run(['sleep', '600'])")
    runtime.interrupt(id_)
    assert runtime.until_done(id_).ename == "KeyboardInterrupt"
    assert runtime.run("server.poll() is None, list(pool.map(abs, [-3]))").result == "(True, [3])"
    assert runtime.run("pool.shutdown(); server.kill(); server.wait()").status == "ok"


def test_a_cell_may_handle_its_interrupt_and_be_interrupted_again(runtime: Runtime) -> None:
    id_ = runtime.started(
        GO
        + "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('again', flush=True)\ntime.sleep(60)"
    )
    runtime.interrupt(id_)
    runtime.until(lambda e: "again" in e.get("text", ""))
    runtime.interrupt(id_)
    assert runtime.until_done(id_).ename == "KeyboardInterrupt"


def test_a_handler_that_a_cell_installed_does_not_outlive_it(runtime: Runtime) -> None:
    runtime.run("import signal; _ = signal.signal(signal.SIGINT, signal.SIG_IGN)")
    id_ = runtime.started(GO + "while True: pass")
    runtime.interrupt(id_)
    assert runtime.until_done(id_).ename == "KeyboardInterrupt"


def test_no_frame_is_torn_by_interrupts_under_a_slow_reader(runtime: Runtime) -> None:
    for _ in range(30):
        id_ = runtime.start("while True: print('y' * 200_000)")
        runtime.event()
        runtime.interrupt(id_)
        assert runtime.until_done(id_).ename == "KeyboardInterrupt"  # every line parses strictly


def test_an_interrupt_while_the_output_is_blocked_is_answered_once_reading_resumes(
    runtime: Runtime,
) -> None:
    id_ = runtime.start("while True: print('z' * 100_000)")
    eventually(lambda: _waits(runtime.pid), "the cell waits for the host")
    runtime.interrupt(id_)
    began = time.monotonic()
    assert runtime.until_done(id_).ename == "KeyboardInterrupt"
    assert time.monotonic() - began < 10


def _waits(pid: int) -> bool:
    with open(f"/proc/{pid}/wchan") as file:
        return file.read() not in ("0", "")


def test_two_full_pipes_do_not_deadlock(runtime: Runtime) -> None:
    """The host writes a request larger than a pipe while it reads nothing."""
    id_ = runtime.start("for _ in range(20): print('p' * 100_000)")
    eventually(lambda: _waits(runtime.pid), "the cell waits for the host")
    big = runtime.start("x = '" + "x" * 3_000_000 + "'\nlen(x)")
    assert runtime.until_done(id_).text().count("p") == 2_000_000
    assert runtime.until_done(big).result == "3000000"


SLOWLY = """
import os, select, signal
from rlm import _runtime
k, inbox = _runtime.k, _runtime.current().inbox
decode = k.decode_request
def slowly(line):
    request = decode(line)
    if isinstance(request, k.Execute) and request.id == 'read':
        os.write(1, b'read')
        select.select([inbox.fd], [], [], 20)
        os.kill(os.getpid(), signal.SIGINT)
    return request
k.decode_request = slowly
"""
"""Between reading a request and having it in flight, wait for the next line, and ring for it."""


@pytest.fixture
def slow() -> Iterator[Runtime]:
    with Runtime() as runtime:
        runtime.run(SLOWLY)
        yield runtime


def being_read(runtime: Runtime, code: str) -> str:
    id_ = runtime.start(code, id="read")
    runtime.until(lambda e: e.get("text") == "read")
    return id_


@pytest.mark.parametrize("code", ["sum(range(10**6))", "await __import__('asyncio').sleep(0.5)"])
def test_an_interrupt_never_overtakes_its_request(slow: Runtime, code: str) -> None:
    id_ = being_read(slow, code)
    slow.interrupt(id_, ring=False)
    assert slow.until_done(id_).ename == "KeyboardInterrupt"
    assert slow.alive()


def test_what_comes_while_a_request_is_sorted_is_served_after_it(slow: Runtime) -> None:
    being_read(slow, "1")
    second = slow.start("2")
    assert [e["id"] for e in slow.until_done(second) if e["event"] == "done"] == ["read", second]
    being_read(slow, "3")
    end = slow.new_id()
    slow.send({"type": "shutdown", "id": end})
    done = [e["id"] for e in slow.until_done(end) if e["event"] == "done"]
    assert done == ["read", end]
    assert slow.wait() == 0
