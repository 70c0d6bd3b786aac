"""Whoever is killed, no process of the kernel is left. Shapes as data; the short tier takes each once."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.orphan_shapes import GONE_S, SHAPES, prepare
from support.runtime_driver import COMMAND, TAG, Runtime, eventually, gone_within, processes_of
from support.sandboxes import outer_pid, sandboxed

KILLED = ("owner", "kernel", "guard's word")


@pytest.fixture
def sandbox(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "work").mkdir()
    return sandboxed(tmp_path / "work", tmp_path / "home")


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_left(shape: str, killed: str) -> None:
    check_nothing_is_left(shape, killed, COMMAND)


KILLED_INSIDE = (*KILLED, "launcher")


@pytest.mark.parametrize(("shape", "killed"), list(zip(SHAPES, itertools.cycle(KILLED_INSIDE))))
def test_nothing_is_left_of_a_sandbox(shape: str, killed: str, sandbox: tuple[str, ...]) -> None:
    check_nothing_is_left(shape, killed, sandbox)


@pytest.mark.long
@pytest.mark.parametrize("killed", KILLED_INSIDE)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_left_of_any_sandbox(shape: str, killed: str, sandbox: tuple[str, ...]) -> None:
    check_nothing_is_left(shape, killed, sandbox)


def check_nothing_is_left(shape: str, killed: str, command: tuple[str, ...]) -> None:
    if killed == "owner":
        owner_dies(shape, command)
        return
    runtime = Runtime(command=command)
    try:
        runtime.start(prepare(SHAPES[shape], runtime.tag))
        runtime.until(lambda e: "go" in e.get("text", "") or e["event"] == "done")
        marks = (runtime.tag, str(int(runtime.tag[:8], 16)))
        assert runtime.processes()
        began = time.monotonic()
        if killed == "kernel":
            os.kill(outer_pid(runtime), signal.SIGKILL)
        elif killed == "launcher":
            runtime.process.kill()
        else:
            runtime.order(b"kill")
        assert runtime.wait() in (-9, 128 + 9)  # a launcher tells it as a shell does
        check_gone(marks, began, shape)
    finally:
        runtime.close()


def test_a_signal_to_the_guard_is_never_lost() -> None:
    for trial in range(40):  # right after `ready` the guard is about to sleep in poll
        with Runtime() as runtime:
            runtime.process.terminate()
            assert runtime.wait() == -signal.SIGTERM, trial


def check_gone(marks: tuple[str, ...], began: float, shape: str) -> None:
    left = [pid for mark in marks for pid in gone_within(mark, GONE_S)]
    print(f"{shape}: gone after {time.monotonic() - began:.3f} s")
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]


OWNER = """
import json, subprocess, sys
p = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
p.stdout.readline()
p.stdin.write(json.dumps({"type": "execute", "id": "a", "code": sys.argv[1]}).encode() + b"\\n")
p.stdin.flush()
while True:
    line = p.stdout.readline()
    if b"go" in line or b'"done"' in line:
        print("up", flush=True)
"""


def owner_dies(shape: str, command: tuple[str, ...]) -> None:
    """A host process of its own, killed with -9: pipes close, and its pidfd tells the guard."""
    tag = os.urandom(16).hex()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, prepare(SHAPES[shape], tag), *command],
        env={**os.environ, TAG: tag},
        stdout=subprocess.PIPE,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        began = time.monotonic()
        owner.kill()
        owner.wait()
        check_gone((tag, str(int(tag[:8], 16))), began, shape)
    finally:
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()
        for pid in processes_of(tag):
            os.kill(pid, signal.SIGKILL)


GUARD_OWNER = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # subreaper, as our host is
p = subprocess.Popen([sys.executable, "-P", "-m", "rlm.repl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pid = __import__("json").loads(p.stdout.readline())["pid"]
p.stdin.write(b'{"type":"execute","id":"a","code":"import subprocess; _ = subprocess.Popen([\\'sleep\\', \\'3600\\'], start_new_session=True)"}\\n')
p.stdin.flush()
p.stdout.readline()
p.kill()
p.wait()
kids = lambda: open(f"/proc/self/task/{os.getpid()}/children").read().split()
while any(int(k) == pid for k in kids()):
    os.waitpid(pid, 0)
print(len(kids()), flush=True)
for k in kids():
    os.kill(int(k), signal.SIGKILL)
    os.waitpid(int(k), 0)
"""


def test_when_the_guard_is_killed_the_kernel_dies_and_the_rest_falls_to_the_subreaper() -> None:
    tag = os.urandom(16).hex()
    done = subprocess.run(
        [sys.executable, "-c", GUARD_OWNER],
        env={**os.environ, TAG: tag},
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"1\n", done
    assert not gone_within(tag, GONE_S)


def test_a_zombie_of_the_tree_is_reaped_by_the_guard() -> None:
    with Runtime() as runtime:
        runtime.run(
            "import os\nif os.fork() == 0:\n if os.fork() == 0: os._exit(0)\n os._exit(0)\nos.wait()"
        )
        guard = runtime.process.pid

        def children() -> list[str]:
            return Path(f"/proc/{guard}/task/{guard}/children").read_text().split()

        eventually(lambda: children() == [str(runtime.pid)], "the guard has one child, the kernel")
