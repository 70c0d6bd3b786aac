"""onDetach: what becomes of a session, and of its host, when the client that started it is gone."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.fake_client import FakeClient, attached, host_env
from support.processes import alive
from support.raw_host import INITIALIZE, Host, notification, request

pytestmark = pytest.mark.anyio

OURS = (sys.executable, "-m", "rlm_host")
DEADLINE_S = 60
SOON_S = 10
"""A host that ends does so within a second; a loaded machine may need this long."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Owner:
    """A host that a client has started, one session of it, and a gate that its cells wait at."""

    def __init__(self, host: Host, home: Path, on_detach: str | None) -> None:
        self.host, self.home, self.gate = host, home, home / "gate"
        options = {} if on_detach is None else {"onDetach": on_detach}
        params = {"cwd": str(home), "model": "scripted/steps", "options": options}
        self.id: str = host.result("session/create", params)["session"]["id"]
        record = json.loads((home / "rlm" / "sessions" / f"{self.id}.owner").read_text())
        self.socket = Path(record["socket"])

    def turn(self, *steps: dict[str, Any]) -> str:
        """Start a turn of scripted steps, give its id when its first cell runs."""
        text = [{"type": "text", "text": json.dumps(list(steps))}]
        params = {"sessionId": self.id, "input": text}
        turn_id: str = self.host.result("turn/start", params)["turnId"]
        self.host.note("item/delta")
        return turn_id

    def waits(self) -> dict[str, Any]:
        """A step whose cell waits for the gate."""
        return {
            "call": "import os\nprint('begun')\nkept = 7\n"
            f"while not os.path.exists({str(self.gate)!r}): await asyncio.sleep(0.02)"
        }

    def open_gate(self) -> None:
        self.gate.touch()


@contextlib.contextmanager
def owner(
    home: Path,
    on_detach: str | None,
    *,
    idle_exit_s: int = 600,
    args: tuple[str, ...] = (),
    editor: int | None = None,
) -> Iterator[Owner]:
    (home / "rlm").mkdir(exist_ok=True)
    (home / "rlm" / "config.toml").write_text(f"[host]\nidle_exit_s = {idle_exit_s}\n")
    env = host_env(home)
    with Host((*OURS, *args), deadline_s=DEADLINE_S, home=home / "rlm", env=env) as host:
        host.initialize({**INITIALIZE, "processId": editor})
        yield Owner(host, home, on_detach)


@contextlib.asynccontextmanager
async def back(owned: Owner) -> AsyncIterator[FakeClient]:
    """Attach to the host that goes on, and hear its session from the beginning."""
    async with attached(owned.socket) as client:
        cursor = {"gen": 1, "seq": 1}
        await client.request("session/resume", {"sessionId": owned.id, "cursor": cursor})
        yield client


def hang_up(owned: Owner) -> None:
    owned.host.stdin.close()


async def ends(owned: Owner, within_s: float = DEADLINE_S) -> int:
    """Wait for the end of the host; give its exit code."""
    with anyio.fail_after(within_s):
        while (code := owned.host._process.poll()) is None:
            await anyio.sleep(0.02)
    return code


async def has_let_go(owned: Owner) -> None:
    """Wait until the host has closed the client's pipes."""
    with anyio.fail_after(DEADLINE_S):
        await anyio.to_thread.run_sync(owned.host.stdout.read)
    assert alive(owned.host.pid)


def files_of(pid: int) -> dict[int, str]:
    """Give what a process's descriptors lead to."""
    return {int(one.name): os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}


@contextlib.contextmanager
def an_editor() -> Iterator[subprocess.Popen[bytes]]:
    """Own a process that stands for an editor."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


# --- stop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_detach", [None, "stop"])
async def test_by_default_everything_ends_with_the_client(
    tmp_path: Path, on_detach: str | None
) -> None:
    with owner(tmp_path, on_detach) as owned:
        owned.turn(owned.waits())
        hang_up(owned)
        assert await ends(owned, SOON_S) == 0


# --- keep -----------------------------------------------------------------------------------------


async def test_a_kept_session_goes_on_and_can_be_joined(tmp_path: Path) -> None:
    with owner(tmp_path, "keep") as owned:
        turn_id = owned.turn(owned.waits(), {"text": "done"})
        hang_up(owned)
        await has_let_go(owned)
        async with back(owned) as client:
            assert client.client.pid == owned.host.pid
            assert "turn/completed" not in client.names()
            owned.open_gate()
            ended = await client.until("turn/completed", lambda p: p["turnId"] == turn_id)
            assert ended["status"] == "completed"
            cell = {"sessionId": owned.id, "code": "kept"}
            assert (await client.request("repl/execute", cell))["result"] == "7"
            await client.request("host/stop")
        assert alive(owned.host.pid)
        owned.host.signal(signal.SIGTERM)
        assert await ends(owned, SOON_S) == 143


async def test_a_kept_host_has_nothing_of_its_client(tmp_path: Path) -> None:
    with owner(tmp_path, "keep") as owned:
        pid, hosts_stderr = owned.host.pid, os.readlink(f"/proc/{owned.host.pid}/fd/2")
        hang_up(owned)
        await has_let_go(owned)
        with anyio.fail_after(DEADLINE_S):
            while os.readlink(f"/proc/{pid}/fd/2") == hosts_stderr:
                await anyio.sleep(0.02)
        files = files_of(pid)
        assert [files[fd] for fd in (0, 1, 2)] == ["/dev/null"] * 3
        assert hosts_stderr not in files.values()


async def test_with_nothing_to_do_a_kept_host_ends_itself(tmp_path: Path) -> None:
    with owner(tmp_path, "keep", idle_exit_s=1) as owned:
        hang_up(owned)
        await has_let_go(owned)
        assert await ends(owned) == 0
        assert not owned.socket.exists()


async def test_others_of_the_client_end_when_one_is_kept(tmp_path: Path) -> None:
    with owner(tmp_path, "keep") as owned:
        params = {"cwd": str(tmp_path), "model": "scripted/steps"}
        other = owned.host.result("session/create", params)["session"]["id"]
        hang_up(owned)
        await has_let_go(owned)
        async with attached(owned.socket) as client:
            with anyio.fail_after(DEADLINE_S):
                while (await client.request("host/status"))["sessions"] != 1:
                    await anyio.sleep(0.02)
            lock = tmp_path / "rlm" / "sessions" / f"{other}.owner"
            assert not lock.exists()


@pytest.mark.parametrize("how", ["SIGHUP", "processId", "clientProcessId", "stdout"])
async def test_it_holds_however_the_client_goes(tmp_path: Path, how: str) -> None:
    with an_editor() as editor:
        args = (f"--clientProcessId={editor.pid}",) if how == "clientProcessId" else ()
        pid = editor.pid if how == "processId" else None
        with owner(tmp_path, "keep", args=args, editor=pid) as owned:
            turn_id = owned.turn(owned.waits())
            match how:
                case "SIGHUP":
                    owned.host.signal(signal.SIGHUP)
                case "stdout":
                    owned.host.stdout.close()
                    owned.host.say(request(99, "host/status"))
                case _:
                    editor.kill()
            async with back(owned) as client:
                owned.open_gate()
                await client.until("turn/completed", lambda p: p["turnId"] == turn_id)
                owned.host.signal(signal.SIGHUP)  # late news of the same end
                # Longer than a host that ends may take.
                cell = {"sessionId": owned.id, "code": "await asyncio.sleep(1.5); kept"}
                assert (await client.request("repl/execute", cell))["result"] == "7"


@pytest.mark.parametrize("ends", ["terminal", "pipe"])
async def test_a_kept_host_leaves_the_terminal_that_it_leads(tmp_path: Path, ends: str) -> None:
    """Whether the terminal is closed, or lives on without the client, as in `ssh box rlm-host`."""
    main, side = pty.openpty()
    (tmp_path / "rlm").mkdir()
    with contextlib.ExitStack() as block:
        pipes = [os.pipe(), os.pipe()]
        process = subprocess.Popen(  # noqa: ASYNC220 - to start it is all that is waited for
            [sys.executable, "-c", LEAD_TERMINAL, sys.executable, "-m", "rlm_host"],
            stdin=pipes[0][0],
            stdout=pipes[1][1],
            stderr=side,
            env=host_env(tmp_path),
            start_new_session=True,
        )
        block.callback(process.wait)
        block.callback(process.kill)
        for fd in (pipes[0][0], pipes[1][1], side):
            os.close(fd)
        theirs = {"terminal": main, "pipe": pipes[0][1]}
        gone = theirs.pop(ends)
        for fd in (*theirs.values(), pipes[1][0]):
            block.callback(os.close, fd)
        session_id = await _keep_over(pipes[0][1], pipes[1][0], tmp_path)
        record = tmp_path / "rlm" / "sessions" / f"{session_id}.owner"
        socket = Path(json.loads(record.read_text())["socket"])
        assert terminal_of(process.pid) != 0
        os.close(gone)
        with anyio.fail_after(DEADLINE_S):
            while terminal_of(process.pid) != 0:
                await anyio.sleep(0.02)
        async with attached(socket) as client:
            assert client.client.pid == process.pid


LEAD_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


async def _keep_over(write: int, read: int, home: Path) -> str:
    """Shake hands and create a kept session over bare pipes; give its id."""
    from rlm_protocol.framing import NEED_DATA, HeaderReceiver, encode_headers

    params = {"cwd": str(home), "model": "scripted/steps", "options": {"onDetach": "keep"}}
    for message in (
        request(1, "initialize", INITIALIZE),
        notification("initialized", {}),
        request(2, "session/create", params),
    ):
        os.write(write, encode_headers(json.dumps(message).encode()))
    frames = HeaderReceiver(max_frame_bytes=1 << 20, max_header_bytes=1 << 12)
    while True:
        while (frame := frames.next_frame()) is NEED_DATA:
            frames.receive_data(await anyio.to_thread.run_sync(os.read, read, 65536))
        assert isinstance(frame, bytes)
        answer = json.loads(frame)
        if answer.get("id") == 2:
            return str(answer["result"]["session"]["id"])


def terminal_of(pid: int) -> int:
    """Give the number of a process's terminal, 0 for none."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4])


# --- finish ---------------------------------------------------------------------------------------


async def test_a_turn_is_finished_and_then_the_host_ends(tmp_path: Path) -> None:
    with owner(tmp_path, "finish") as owned:
        owned.turn(owned.waits(), {"text": "done"})
        hang_up(owned)
        await has_let_go(owned)
        owned.open_gate()
        assert await ends(owned) == 0
        journal = (tmp_path / "rlm" / "sessions" / f"{owned.id}.jsonl").read_text()
        [ended] = [json.loads(one) for one in journal.splitlines() if "turn_completed" in one]
        assert ended["status"] == "completed"


async def test_what_it_finishes_is_the_whole_tree(tmp_path: Path) -> None:
    """The child runs when the client goes; its end, and the parent's turn about it, still come."""
    with owner(tmp_path, "finish") as owned:
        child = json.dumps([owned.waits(), {"text": "the child is done"}])
        spawn = {
            "call": f"print('begun')\nh = await rlm({child!r}, name='kid', "
            "model='scripted/steps', unguarded=True)"
        }
        owned.turn(spawn, {"text": "started it"})
        owned.host.note("agent/changed")
        owned.host.note("turn/completed")
        hang_up(owned)
        await has_let_go(owned)
        owned.open_gate()
        assert await ends(owned) == 0
        journal = (tmp_path / "rlm" / "sessions" / f"{owned.id}.jsonl").read_text()
        records = [json.loads(one) for one in journal.splitlines()]
        ended = [one for one in records if one["type"] == "child_status_changed"][-1]
        assert (ended["status"], ended["outcome"]) == ("completed", "endedWithoutReply")
        assert sum(one["type"] == "turn_completed" for one in records) == 2


async def test_a_child_that_is_heard_is_not_left_alone_nor_is_its_root(tmp_path: Path) -> None:
    """On a host that lives on anyway: `stop` looks at the whole tree, by its root's wish."""
    with owner(tmp_path, "keep") as owned:
        ask = owned.host.result
        params = {"cwd": str(tmp_path), "model": "scripted/steps", "options": {"onDetach": "stop"}}
        root = {"sessionId": ask("session/create", params)["session"]["id"]}
        child_options = {"model": "scripted/steps", "unguarded": True}
        task = json.dumps([owned.waits()])
        spawn = ask("agent/spawn", {**root, "prompt": task, "options": child_options})
        with anyio.fail_after(DEADLINE_S):
            while ask("agent/list", root)["agents"][0]["status"] != "running":
                await anyio.sleep(0.02)
        child = {"sessionId": spawn["agent"]["sessionId"]}
        ask("session/resume", child)
        ask("session/detach", child)
        ask("session/resume", child)
        ask("session/detach", root)
        assert ask("session/read", child)["session"]["status"] == "running"
        assert ask("host/status")["sessions"] == 3
        ask("session/detach", child)
        with anyio.fail_after(DEADLINE_S):
            while ask("host/status")["sessions"] != 1:
                await anyio.sleep(0.02)


async def test_with_nothing_to_finish_it_is_gone_at_once(tmp_path: Path) -> None:
    with owner(tmp_path, "finish") as owned:
        hang_up(owned)
        assert await ends(owned, SOON_S) == 0


async def test_whoever_comes_back_in_time_keeps_it(tmp_path: Path) -> None:
    with owner(tmp_path, "finish") as owned:
        turn_id = owned.turn(owned.waits())
        hang_up(owned)
        await has_let_go(owned)
        async with back(owned) as client:
            owned.open_gate()
            await client.until("turn/completed", lambda p: p["turnId"] == turn_id)
            cell = {"sessionId": owned.id, "code": "await asyncio.sleep(1.5); kept"}
            assert (await client.request("repl/execute", cell))["result"] == "7"
            assert "session/closed" not in client.names()
        assert await ends(owned) == 0


# --- what always ends it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("exit", 1), ("shutdown", 0)]
)
async def test_who_asks_for_its_end_gets_it(tmp_path: Path, how: str, code: int) -> None:
    with owner(tmp_path, "keep") as owned:
        owned.turn(owned.waits())
        if how.startswith("SIG"):
            owned.host.signal(signal.Signals[how])
        else:
            if how == "shutdown":
                owned.host.result("shutdown")
            owned.host.say(notification("exit"))
        assert await ends(owned, SOON_S) == code


async def test_a_kept_host_obeys_ctrl_c_as_well(tmp_path: Path) -> None:
    with owner(tmp_path, "keep") as owned:
        hang_up(owned)
        await has_let_go(owned)
        owned.host.signal(signal.SIGINT)
        assert await ends(owned, SOON_S) == 130


@pytest.mark.parametrize("by", ["socket", "session"])
async def test_attach_joins_a_kept_host(tmp_path: Path, by: str) -> None:
    with owner(tmp_path, "keep") as owned:
        hang_up(owned)
        await has_let_go(owned)
        place = str(owned.socket) if by == "socket" else owned.id
        command, env = (*OURS, "attach", f"--{by}", place), host_env(tmp_path)
        with Host(command, deadline_s=DEADLINE_S, home=tmp_path / "rlm", env=env) as bridge:
            bridge.initialize()
            assert bridge.result("host/status")["pid"] == owned.host.pid
            read = bridge.result("session/read", {"sessionId": owned.id})["session"]
            assert read["options"] == {"onDetach": "keep"}
