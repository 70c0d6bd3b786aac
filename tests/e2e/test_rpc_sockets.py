"""Hosts that several clients share: serve, attach, private sockets, leases that can be followed."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlm_host.client import HostClient
from rlm_protocol.errors import HostLost, SessionLeased
from support.cli import COMMAND, DEADLINE_S, cli_env, end, processes_of, rlm_host, serve, wait_for
from support.fake_client import attached, spawned
from support.raw_host import INITIALIZE, frame, notification, request

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """A host that serves on a socket of this test."""
    path = tmp_path / "s.sock"
    process = serve(tmp_path, path)
    try:
        yield path
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 143
        assert not path.exists()
    finally:
        end(process)


async def test_two_clients_share_a_session(served: Path, tmp_path: Path) -> None:
    async with attached(served) as one, attached(served) as two:
        params = {"cwd": str(tmp_path), "model": "scripted/steps"}
        session = (await one.request("session/create", params))["session"]
        await two.request("session/resume", {"sessionId": session["id"]})
        turn = {"sessionId": session["id"], "input": [{"type": "text", "text": '[{"text":"hi"}]'}]}
        started = await one.request("turn/start", turn)
        for client in (one, two):
            await client.until("turn/completed", lambda p: p["turnId"] == started["turnId"])
        told = [e.params["seq"] for e in one.heard if e.method == "turn/completed"]
        assert [e.params["seq"] for e in two.heard if e.method == "turn/completed"] == told


async def test_a_client_that_comes_back_hears_exactly_what_it_missed(
    served: Path, tmp_path: Path
) -> None:
    async def turn(client: HostClient) -> None:
        async with client.notifications("turn/completed", session_id=session_id) as turns:
            text = [{"type": "text", "text": '[{"text":"hi"}]'}]
            await client.request("turn/start", {"sessionId": session_id, "input": text})
            await anext(turns)

    async with attached(served) as first:
        params = {"cwd": str(tmp_path), "model": "scripted/steps"}
        session_id = (await first.request("session/create", params))["session"]["id"]
        await turn(first.client)
        known = first.client.cursors[session_id]
        async with HostClient.attach(served) as other:
            assert (await other.resume(session_id)).replay == "none"
            assert other.cursors[session_id] == known
            await first.client.aclose()
            await turn(other)
            newest = other.cursors[session_id]
        async with HostClient.attach(served) as again, again.notifications() as missed:
            answer = await again.resume(session_id, known)
            assert answer.replay == "complete"
            heard = [await anext(missed)]
            while heard[-1].method != "turn/completed":
                heard.append(await anext(missed))
            seqs = [event.params["seq"] for event in heard if event.method != "item/delta"]
            assert min(seqs) == known.seq + 1
            assert len([e for e in heard if e.method == "turn/started"]) == 1
            assert again.cursors[session_id] == newest


async def test_the_others_hear_of_a_new_session_once(served: Path, tmp_path: Path) -> None:
    async with attached(served) as one, attached(served) as two:
        params = {"cwd": str(tmp_path), "model": "scripted/steps", "idempotencyKey": "k"}
        session = (await one.request("session/create", params))["session"]
        again = (await one.request("session/create", params))["session"]
        assert again["id"] == session["id"]
        fork = (await one.request("session/fork", {"sessionId": session["id"]}))["session"]
        await two.until("session/created", lambda p: p["session"]["id"] == fork["id"])
        told = [e.params["sessionId"] for e in two.heard if e.method == "session/created"]
        assert told == [session["id"], fork["id"]]
        assert "session/created" not in one.names()


async def test_exit_of_a_client_is_its_own_end(served: Path) -> None:
    async with HostClient.attach(served) as first:
        pid = first.pid
    async with HostClient.attach(served) as second:
        assert second.pid == pid
        assert (await second.request("host/status"))["uptimeMs"] > 0


async def test_a_client_that_breaks_the_protocol_ends_alone(served: Path) -> None:
    async with HostClient.attach(served) as good:
        with socket.socket(socket.AF_UNIX) as bad:
            bad.settimeout(DEADLINE_S)
            bad.connect(str(served))
            bad.sendall(b"Content-Length: nonsense\r\n\r\n")
            heard = b""
            while data := bad.recv(1 << 16):
                heard += data
            assert b"-32700" in heard
        await good.request("host/status")


async def test_a_stalled_client_slows_nobody_else(served: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stalled:
        stalled.connect(str(served))
        ask = [request(n, "host/schema") for n in range(1, 150)]
        begin = frame(request(0, "initialize", INITIALIZE)) + frame(notification("initialized"))
        stalled.setblocking(False)
        for data in (begin, *map(frame, ask)):
            try:
                stalled.sendall(data)
            except BlockingIOError:
                break
        async with HostClient.attach(served) as other:
            loop = asyncio.get_running_loop()
            took = []
            for _ in range(100):
                began = loop.time()
                await other.request("host/status")
                took.append(loop.time() - began)
            status = await other.request("host/status")
            assert status["queues"]["bytes"] > 0
            assert sorted(took)[50] < 1.0


def test_only_its_user_may_come_near_a_socket(served: Path, tmp_path: Path) -> None:
    assert served.stat().st_mode & 0o777 == 0o600
    folder = Path(cli_env(tmp_path)["XDG_RUNTIME_DIR"]) / f"rlm-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    refused = rlm_host(tmp_path, "attach", "--start")
    assert refused.returncode == 1
    assert "not a private folder" in refused.stderr


async def test_a_second_host_at_the_same_socket_is_refused(served: Path, tmp_path: Path) -> None:
    refused = rlm_host(tmp_path, "serve", "--socket", str(served))
    assert refused.returncode == 1
    assert "[conflict]" in refused.stderr
    async with HostClient.attach(served) as client:
        await client.request("host/status")


async def test_a_socket_of_a_dead_host_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    for _ in range(2):
        process = serve(tmp_path, path)
        async with HostClient.attach(path) as client:
            await client.request("host/status")
        end(process)
        assert path.exists()
    with pytest.raises(HostLost):
        async with HostClient.attach(path):
            raise AssertionError


async def test_a_host_removes_its_private_socket_and_those_of_killed_ones(tmp_path: Path) -> None:
    """But not those of the living, whatever home they serve."""
    env = cli_env(tmp_path)
    folder = Path(env["XDG_RUNTIME_DIR"]) / f"rlm-{os.getuid()}"

    def left() -> int:
        return len(list(folder.iterdir()))

    async with HostClient.spawn(env=env) as living:
        await living.request("host/status")
        assert left() == 2  # a socket and its lock
        async with HostClient.spawn(env={**env, "RLM_HOME": str(tmp_path / "other")}) as killed:
            os.kill((await killed.request("host/status"))["pid"], signal.SIGKILL)
        assert left() == 4
        async with HostClient.spawn(env={**env, "RLM_HOME": str(tmp_path / "third")}) as third:
            await third.request("host/status")
            assert left() == 4
        assert left() == 2
        (socket_file,) = folder.glob("*.sock")
        async with HostClient.attach(socket_file) as again:
            await again.request("host/status")
    assert left() == 0


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_no_socket_is_left_as_it_is(tmp_path: Path, kind: str) -> None:
    path, precious = tmp_path / "notes", tmp_path / "precious"
    precious.write_text("mine")
    match kind:
        case "file":
            path.write_text("mine")
        case "link":
            path.symlink_to(precious)
        case _:
            path.mkdir()
    refused = rlm_host(tmp_path, "serve", "--socket", str(path))
    assert refused.returncode == 1
    assert f"No socket can be made at {path}: something else lies there." in refused.stderr
    assert path.is_dir() if kind == "folder" else path.read_text() == "mine"


def test_a_path_that_is_too_long_is_said(tmp_path: Path) -> None:
    refused = rlm_host(tmp_path, "serve", "--socket", f"/tmp/{'x' * 120}.sock")
    assert refused.returncode == 1
    assert "longer than 107 bytes" in refused.stderr


async def test_four_windows_that_start_at_once_get_one_host(tmp_path: Path) -> None:
    env = cli_env(tmp_path)
    attach = [*COMMAND, "attach", "--start", "--stdio", f"--clientProcessId={os.getpid()}"]

    async def window() -> int:
        async with HostClient.spawn(command=attach, env=env) as client:
            return int((await client.request("host/status"))["pid"])

    pids = set(await asyncio.gather(*(window() for _ in range(4))))
    try:
        assert len(pids) == 1
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    wait_for(lambda: processes_of(tmp_path / "rlm") == [], what="the host is gone")


async def test_a_session_of_another_host_is_found_through_its_socket(tmp_path: Path) -> None:
    run = str(cli_env(tmp_path)["XDG_RUNTIME_DIR"])
    async with spawned(tmp_path, XDG_RUNTIME_DIR=run) as owner:
        params = {"cwd": str(tmp_path), "model": "scripted/steps"}
        session = (await owner.request("session/create", params))["session"]
        about = {"sessionId": session["id"]}
        async with spawned(tmp_path, XDG_RUNTIME_DIR=run) as other:
            with pytest.raises(SessionLeased) as leased:
                await other.request("session/resume", about)
        holder = leased.value.data["owner"]
        assert holder["pid"] == owner.client.pid
        async with attached(Path(holder["socket"])) as joined:
            assert joined.client.pid == owner.client.pid
            assert (await joined.request("session/resume", about))["session"]["id"] == session["id"]


async def test_attach_follows_a_session_to_whoever_owns_it(tmp_path: Path) -> None:
    env = cli_env(tmp_path)
    async with spawned(tmp_path, XDG_RUNTIME_DIR=env["XDG_RUNTIME_DIR"]) as owner:
        session_id = (await owner.client.session.create(cwd=str(tmp_path))).session.id
        attach = [*COMMAND, "attach", "--start", "--stdio", f"--session={session_id}"]
        async with HostClient.spawn(command=attach, env=env) as joined:
            assert (await joined.host.status()).pid == owner.client.pid
            assert (await joined.resume(session_id)).session.id == session_id
        os.kill(owner.client.pid, signal.SIGKILL)
        with pytest.raises(HostLost):
            await owner.client.host.status()
    # Its owner is dead, and has not taken its record away: the user's host takes the session up.
    async with HostClient.spawn(command=attach, env=env) as joined:
        pid = (await joined.host.status()).pid
        try:
            assert pid != owner.client.pid
            assert (await joined.resume(session_id)).session.id == session_id
        finally:
            os.kill(pid, signal.SIGTERM)
    wait_for(lambda: processes_of(tmp_path / "rlm") == [], what="the host is gone")


async def test_stop_stops_the_work_of_the_users_host(tmp_path: Path) -> None:
    env = cli_env(tmp_path)
    attach = [*COMMAND, "attach", "--start"]
    async with HostClient.spawn(command=attach, env=env) as client:
        pid = (await client.request("host/status"))["pid"]
        try:
            params = {"cwd": str(tmp_path), "model": "scripted/steps"}
            session = (await client.request("session/create", params))["session"]
            play = json.dumps([{"call": "import asyncio\nawait asyncio.sleep(600)"}])
            turn = {"sessionId": session["id"], "input": [{"type": "text", "text": play}]}
            async with client.notifications("turn/completed", "item/started") as events:
                await client.request("turn/start", turn)
                async for event in events:
                    if event.method == "turn/completed":
                        break
                    if event.params["item"]["type"] == "replCell":
                        stopped = await asyncio.to_thread(rlm_host, tmp_path, "stop", "--all")
                        assert stopped.stdout == "stopped 1 session\n", stopped.stderr
            assert event.params["status"] == "interrupted"
        finally:
            os.kill(pid, signal.SIGTERM)
    wait_for(lambda: processes_of(tmp_path / "rlm") == [], what="the host is gone")


def test_attach_without_a_host_says_what_to_do(tmp_path: Path) -> None:
    refused = rlm_host(tmp_path, "attach")
    assert refused.returncode == 1
    assert "rlm-host serve" in refused.stderr
    assert rlm_host(tmp_path, "stop", "--all").returncode == 1
