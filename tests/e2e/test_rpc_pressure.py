"""Clients that do not read, or write without reading: bounded memory, nothing needed is lost."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlm_protocol.limits import ATTACHMENT_HARD_BYTES, ATTACHMENT_SOFT_BYTES, MIB
from support.fake_client import MISBEHAVING, host_env
from support.raw_host import Broken, Host, frame, notification, request

DEADLINE_S = 60


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(MISBEHAVING, deadline_s=DEADLINE_S, home=tmp_path, env=host_env(tmp_path)) as host:
        host.initialize()
        yield host


def flood(host: Host, count: int, size: int, *, session: str = "s") -> None:
    text = {"type": "text", "text": f"{count} {size}"}
    host.say(request(1, "turn/start", {"sessionId": session, "input": [text]}))


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_until_at_rest(host: Host) -> None:
    """Wait until the host has done all it can do: its CPU time stands still."""

    def ticks() -> int:
        fields = Path(f"/proc/{host.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    end, pause = time.monotonic() + DEADLINE_S, threading.Event()
    last, still = ticks(), 0
    while still < 10:
        assert time.monotonic() < end, "the host does not come to rest"
        pause.wait(0.05)
        now = ticks()
        still = still + 1 if now == last else 0
        last = now


def test_a_client_that_stops_reading_costs_bounded_memory_and_loses_only_deltas(
    host: Host,
) -> None:
    before = rss_bytes(host.pid)
    flood(host, 100_000, 1_000)  # 100 MB of text
    host.say(request(2, "host/status"))
    wait_until_at_rest(host)
    grown = rss_bytes(host.pid) - before
    assert grown < ATTACHMENT_HARD_BYTES + 32 * MIB, grown
    host.answer(2)
    names = [m["method"] for m in host.notes]
    for name in ("turn/started", "item/started", "item/completed", "turn/completed"):
        assert names.count(name) == 1
    assert names[-1] == "turn/completed"
    assert "session/resync" in names
    (resync,) = [m["params"] for m in host.notes if m["method"] == "session/resync"]
    assert resync["cursor"] == {"gen": 1, "seq": 2}
    status = host.result("host/status")
    heard = sum(len(frame(m)) for m in host.notes if m["method"] == "item/delta")
    assert status["queues"]["bytes"] == 0
    assert status["queues"]["dropped"] > 100_000 * 1_000 - heard


def test_a_stalled_client_hears_every_answer(host: Host) -> None:
    host.expect_answer_to(*range(500))
    for n in range(500):
        params = {"sessionId": "s", "code": f"large {4 * 1024}"}
        os.write(host.stdin.fileno(), frame(request(n, "repl/execute", params)))
    wait_until_at_rest(host)
    for n in range(500):
        assert len(host.answer(n)["result"]["result"]) == 4 * 1024


def test_a_client_that_is_hopelessly_slow_is_let_go(host: Host) -> None:
    size = 4 * MIB
    for n in range(2 + ATTACHMENT_HARD_BYTES // size):
        host.expect_answer_to(n)
        params = {"sessionId": "s", "code": f"large {size}"}
        os.write(host.stdin.fileno(), frame(request(n, "repl/execute", params)))
    assert host.wait() == 1
    assert "slow" in host_log(host)


def test_one_large_answer_is_not_slow(host: Host) -> None:
    size = ATTACHMENT_HARD_BYTES + ATTACHMENT_SOFT_BYTES
    host.say(request(1, "repl/execute", {"sessionId": "s", "code": f"large {size}"}))
    assert len(host.answer(1)["result"]["result"]) == size
    host.alive()


def test_both_sides_write_at_once_and_neither_waits_for_ever(host: Host) -> None:
    """The client sends 8 MiB of requests before it reads a byte; the host answers all the while."""
    flood(host, 5_000, 1_000)
    count = 2_000
    body = json.dumps({"sessionId": "s", "code": "echo " + "y" * 4_000})
    host.expect_answer_to(*range(10, 10 + count))
    data = b"".join(frame(request(10 + n, "repl/execute", json.loads(body))) for n in range(count))
    os.set_blocking(host.stdin.fileno(), True)
    host.stdin.write(data)
    kinds = {host.answer(10 + n).get("error", {}).get("data", {}).get("kind") for n in range(count)}
    assert kinds <= {None, "overloaded"}
    host.note("turn/completed")


def test_a_cancel_is_heard_while_the_client_does_not_read(host: Host) -> None:
    flood(host, 20_000, 1_000)
    host.say(request(2, "repl/execute", {"sessionId": "s", "code": "wait"}))
    host.say(notification("$/cancelRequest", {"id": 2}))
    wait_until_at_rest(host)
    host.refusal(2, -32800)


def test_more_in_flight_than_announced_is_overloaded(host: Host) -> None:
    limit = 1024
    host.say(
        *(request(n, "repl/execute", {"sessionId": "s", "code": "wait"}) for n in range(limit + 1))
    )
    error = host.refusal(limit, -31003)
    assert error["data"]["kind"] == "overloaded"
    assert error["data"]["retryable"]
    host.say(notification("$/cancelRequest", {"id": 0}))
    host.refusal(0, -32800)
    host.alive()


def test_logging_never_waits_for_an_editor_that_does_not_read_stderr(tmp_path: Path) -> None:
    """A full stderr pipe: a debug log of thousands of lines, and the host goes on."""
    config = tmp_path / "config.toml"
    config.write_text('[log]\nlevel = "debug"\n')
    fifo = tmp_path / "stderr"
    os.mkfifo(fifo)
    script = 'exec "$0" -m support.rpc_host --config "$1" 2<>"$2"'
    command = ["sh", "-c", script, sys.executable, str(config), str(fifo)]
    with Host(command, deadline_s=DEADLINE_S, home=tmp_path, env=host_env(tmp_path)) as host:
        host.initialize()
        host.say(*(notification(f"no/such{n}") for n in range(5_000)))
        host.alive()


def host_log(host: Host) -> str:
    return (host.home / "rlm/logs/host.log").read_text() + host.stderr


def test_broken_is_a_failure_of_the_test_too(host: Host) -> None:
    with pytest.raises(Broken):
        host.answer(99, 0.1)
