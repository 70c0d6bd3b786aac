"""How a host ends, and on which kinds of descriptors it serves. The table of exits is in the kit."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import tty
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.fake_client import MISBEHAVING, host_env
from support.raw_host import INITIALIZE, Host, frame, notification, request

OURS = (sys.executable, "-m", "rlm_host")
DEADLINE_S = 30
SCRIPT = b"".join(
    frame(message)
    for message in (
        request(1, "initialize", INITIALIZE),
        request(2, "host/status"),
        request(3, "shutdown"),
        notification("exit"),
    )
)


def serve(tmp_path: Path, command: tuple[str, ...] = OURS) -> Host:
    return Host(command, deadline_s=DEADLINE_S, home=tmp_path, env=host_env(tmp_path))


def test_50_clients_that_go_away_abruptly(tmp_path: Path) -> None:
    def go_away(n: int) -> tuple[int, str]:
        with serve(tmp_path) as host:
            if n % 5:
                host.initialize()
            if n % 2:
                host.stdout.close()
            host.stdin.close()
            return host.wait(), host.stderr

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(go_away, range(50))) == {(0, "")}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_it_though_something_holds_the_loop(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with serve(tmp_path, MISBEHAVING) as host:
        host.initialize()
        host.say(request(1, "repl/execute", {"sessionId": "s", "code": "hang"}))
        wait_until(lambda: state_of(host.pid) == "R")
        host.signal(number)
        assert host.wait() == code


def test_a_client_that_blocks_signals_blocks_none_of_ours(tmp_path: Path) -> None:
    blocking = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'rlm_host'])"
    )
    with serve(tmp_path, (sys.executable, "-c", blocking)) as host:
        host.initialize()
        made = host.result("session/create", {"cwd": str(tmp_path), "model": "scripted/steps"})
        mask = "next(line for line in open('/proc/self/status') if line.startswith('SigBlk'))"
        params = {"sessionId": made["session"]["id"], "code": mask}
        assert host.result("repl/execute", params)["result"] == repr(f"SigBlk:\t{'0' * 16}\n")
        host.signal(signal.SIGTERM)
        assert host.wait() == 143


def test_requests_that_run_do_not_hold_the_end_up(tmp_path: Path) -> None:
    with serve(tmp_path, MISBEHAVING) as host:
        host.initialize()
        host.say(request(1, "repl/execute", {"sessionId": "s", "code": "wait"}))
        host.note("repl/status")
        host.say(request(2, "shutdown"), notification("exit"))
        host.answer(2)
        host.ends_with(0)


def test_exit_answers_what_was_asked_before_it(tmp_path: Path) -> None:
    with serve(tmp_path) as host:
        host.write(SCRIPT)
        host.expect_answer_to(1, 2, 3)
        for id_ in (1, 2, 3):
            assert "result" in host.answer(id_)
        host.ends_with(0)


def test_stdin_may_be_a_file(tmp_path: Path) -> None:
    script, answers = tmp_path / "in", tmp_path / "out"
    script.write_bytes(SCRIPT)
    with script.open("rb") as stdin, answers.open("wb") as stdout:
        done = subprocess.run(OURS, stdin=stdin, stdout=stdout, env=host_env(tmp_path), timeout=30)
    assert done.returncode == 0
    assert answers.read_bytes().count(b'"result"') == 3


def test_no_stdin_and_closed_descriptors_are_the_end_of_the_stream(tmp_path: Path) -> None:
    env = host_env(tmp_path)
    assert subprocess.run(OURS, stdin=subprocess.DEVNULL, env=env, timeout=30).returncode == 0
    closed = subprocess.run(
        ["sh", "-c", 'exec "$0" -m rlm_host <&- >&- 2>&-', sys.executable], env=env, timeout=30
    )
    assert closed.returncode == 0


def test_it_serves_on_sockets_as_node_makes_them(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(OURS, stdin=theirs, stdout=theirs, env=host_env(tmp_path))
        theirs.close()
        ours.sendall(SCRIPT)
        ours.settimeout(DEADLINE_S)
        heard = b""
        while data := ours.recv(1 << 16):
            heard += data
        assert process.wait(DEADLINE_S) == 0
    assert heard.count(b'"result"') == 3


def test_a_large_answer_passes_through_a_socket_and_a_blocking_pipe(tmp_path: Path) -> None:
    """Nothing of the client's descriptors is changed: they stay blocking for whoever shares them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(MISBEHAVING, stdin=theirs, stdout=theirs, env=host_env(tmp_path))
        size = 4 << 20
        cell = request(2, "repl/execute", {"sessionId": "s", "code": f"large {size}"})
        ours.sendall(frame(request(1, "initialize", INITIALIZE)) + frame(cell))
        ours.settimeout(DEADLINE_S)
        heard = 0
        while heard < size:
            heard += len(ours.recv(1 << 16))
        assert os.get_blocking(theirs.fileno())
        theirs.close()
        ours.close()
        assert process.wait(DEADLINE_S) == 0


def test_it_serves_on_a_terminal(tmp_path: Path) -> None:
    """Nobody does it on purpose; it must end with the terminal all the same."""
    leader, follower = pty.openpty()
    tty.setraw(follower)
    process = subprocess.Popen(
        OURS, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, env=host_env(tmp_path)
    )
    os.close(follower)
    os.write(leader, frame(request(1, "initialize", INITIALIZE)))
    heard = b""
    while b'"result"' not in heard:
        assert select.select([leader], [], [], DEADLINE_S)[0], heard
        heard += os.read(leader, 1 << 16)
    os.close(leader)
    assert process.wait(DEADLINE_S) == 0


def test_a_helper_that_holds_the_pipe_does_not_keep_the_host_alive(tmp_path: Path) -> None:
    """The client is killed while a grandchild keeps the other end of stdin open: pidfd tells."""
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "h = subprocess.Popen(['sleep', '60'], pass_fds=(p.stdin.fileno(), p.stdout.fileno()))\n"
        "import json, os\n"
        "b = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'initialize',"
        " 'params': {'processId': os.getpid()}}).encode()\n"
        "p.stdin.write(b'Content-Length: %d\\r\\n\\r\\n' % len(b) + b); p.stdin.flush()\n"
        "p.stdout.readline()\n"
        "print(p.pid, h.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", script, *OURS], stdout=subprocess.PIPE, env=host_env(tmp_path)
    )
    assert client.stdout is not None
    host, helper = map(int, client.stdout.readline().split())
    try:
        client.kill()
        client.wait()
        wait_until(lambda: state_of(host) in (None, "Z"))
    finally:
        os.kill(helper, signal.SIGKILL)
        client.stdout.close()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--colour"], "no option --colour"),
        (["--clientProcessId=x"], "needs a number"),
        (["--config"], "needs a value"),
        (["--config", "/no/such/file.toml"], "no configuration file"),
        (["nonsense"], "no command 'nonsense'"),
    ],
)
def test_wrong_usage_is_one_clear_line_and_code_2(
    tmp_path: Path, args: list[str], said: str
) -> None:
    done = subprocess.run(
        [*OURS, *args], env=host_env(tmp_path), capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "rlm").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "unknown key colour"),
        ("[kernel]\npythn = 'x'", "unknown key kernel.pythn"),
        ("[kernel]\npackages = 5", "kernel.packages"),
        ("[log]\nlevel = 'loud'", "log.level"),
        ("= 1", "not TOML"),
        ("source = '/x'", "unknown key source"),
    ],
)
def test_a_wrong_configuration_names_its_key(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    done = subprocess.run(
        [*OURS, "--config", str(config)],
        env=host_env(tmp_path),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert str(config) in done.stderr


def test_version_and_help(tmp_path: Path) -> None:
    for args, said in ((["--version"], "rlm-host "), (["--help"], "usage: rlm-host")):
        done = subprocess.run(
            [*OURS, *args], env=host_env(tmp_path), capture_output=True, text=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(said)


def state_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def wait_until(condition: object) -> None:
    end, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        pause.wait(0.02)
