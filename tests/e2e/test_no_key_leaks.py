"""A canary key of an unprivileged host: nowhere on disk, in no process, not to be had by a cell."""

import ast
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlm_host.client import HostClient
from rlm_protocol.errors import KernelDied
from support.fake_client import FakeClient, host_env
from support.mock_vendors import KEYS, SELECTORS, Answer, Asked, MockVendors
from support.unprivileged import as_somebody, somebodys_folder

pytestmark = pytest.mark.anyio
CANARY = "sk-canary-d41d8cd98f"
REFUSED = "refuse this"

# The key is put together in the cell, so that a search does not find its own code.
SPY = f"""
import ctypes, glob, os, subprocess
key = ({CANARY[:9]!r} + {CANARY[9:]!r}).encode()
libc = ctypes.CDLL(None, use_errno=True)
found, opened = [], []

def read(path):
    try:
        with open(path, "rb") as file: return file.read()
    except OSError: return b""

for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    if key in read(path): found.append(path)
child = subprocess.run(["sh", "-c", "env; cat /proc/$$/environ"], capture_output=True).stdout
if key in child + repr(dict(os.environ)).encode(): found.append("a child's environment")
for name in ("environ", "mem", "maps", "fd", "cwd"):
    try:
        path = f"/proc/{{HOST}}/{{name}}"
        os.listdir(path) if name in ("fd", "cwd") else open(path, "rb").read(0)
        opened.append(name)
    except OSError: pass
if libc.ptrace(16, HOST, 0, 0) == 0:
    libc.ptrace(17, HOST, 0, 0)
    opened.append("ptrace")
os.getuid(), found, opened
"""


class Script:
    """Calls a cell, says what came of it; refuses what is to be refused, with the key in its words."""

    def __call__(self, asked: Asked) -> Answer:
        if REFUSED in asked.last_text:
            return Answer(status=401, error_type="authentication_error", text=f"bad key {CANARY}")
        if "looked" in asked.last_text:
            return Answer(text="done")
        return Answer(text="I look.", calls=(("python", {"code": "print('looked')"}),))


@pytest.fixture
def home() -> Iterator[Path]:
    with somebodys_folder() as folder:
        yield folder


async def test_a_key_is_nowhere_but_in_the_hosts_memory(home: Path) -> None:
    prefix = as_somebody()
    with MockVendors(Script()) as vendors:
        settings = f"{vendors.config()}\n[log]\nlevel = 'debug'\n"
        make = f"umask 077; mkdir {home}/rlm; cat > {home}/rlm/config.toml"
        subprocess.run([*prefix, "sh", "-c", make], input=settings.encode(), check=True)  # noqa: ASYNC221
        command = (*prefix, sys.executable, "-m", "rlm_host")
        env = host_env(home, TMPDIR=str(home), **dict.fromkeys(KEYS, CANARY))
        async with HostClient.spawn(command=command, env=env) as connection:
            client = FakeClient(connection)
            listening = asyncio.create_task(client.listen())
            await asyncio.sleep(0)
            try:
                await provoke(client, home)
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            assert connection.process is not None
            said = connection.process.stderr_tail
        assert {asked.key for asked in vendors.requests} == {CANARY}, "it was used"
    told = repr([event.params for event in client.heard]) + repr(client.story)
    assert CANARY not in told + said
    written = {path: path.read_bytes() for path in files(home)}
    assert any(path.suffix == ".jsonl" for path in written)
    assert any(path.parent.name == "logs" for path in written)
    assert [path for path, data in written.items() if CANARY.encode() in data] == []


async def provoke(client: FakeClient, home: Path) -> None:
    """A turn, a refusal that repeats the key, a cell that looks for it, a kernel that crashes."""
    params = {"cwd": str(home), "model": next(iter(SELECTORS.values()))}
    where = {"sessionId": (await client.request("session/create", params))["session"]["id"]}
    for text in ("Look around.", REFUSED):
        said = {**where, "input": [{"type": "text", "text": text}]}
        turn = (await client.request("turn/start", said))["turnId"]
        await client.until("turn/completed", lambda p, t=turn: p["turnId"] == t, deadline_s=120)
    host = (await client.request("host/status"))["pid"]
    spied = await client.request("repl/execute", {**where, "code": f"HOST = {host}\n{SPY}"})
    assert spied["status"] == "ok", spied
    uid, found, opened = ast.literal_eval(spied["result"])
    assert uid != 0
    assert (found, opened) == ([], [])
    with pytest.raises(KernelDied):
        await client.request("repl/execute", {**where, "code": "os.kill(os.getpid(), 11)"})


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
