"""What dead hosts left running is ended at the next start, and nothing else is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlm_host.processes import facts
from rlm_host.processes.ledger import Ledger, Started, this_process
from rlm_host.processes.sweep import SPAWN_TAG, kill_all, sweep, tagged, tree
from support.processes import alive, running, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sleep", "1000"], start_new_session=True, env={**os.environ, SPAWN_TAG: "tag1"}
    )
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def dead() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["true"])
    process.wait()
    return process


def started(process: subprocess.Popen[bytes], **more: object) -> Started:
    fact = facts.process(process.pid)
    assert fact is not None
    fields = {"tag": "none", "pid": process.pid, "started": fact.started, "label": "kernel"}
    return Started(**{**fields, "owner": this_process(), **more})


def owned_by_dead(dead: subprocess.Popen[bytes], **more: object) -> object:
    return msgspec.structs.replace(this_process(), pid=dead.pid, started="1", **more)


def test_a_dead_hosts_process_is_ended(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], dead: subprocess.Popen[bytes]
) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(started(sleeper, owner=owned_by_dead(dead)))
    swept = sweep(ledger)
    assert swept.killed == (sleeper.pid,)
    assert swept.labels == ("kernel",)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not ledger.open_records()


def test_what_only_carries_the_mark_is_ended_too(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], dead: subprocess.Popen[bytes]
) -> None:
    ledger = Ledger(tmp_path)
    gone = Started(tag="tag1", pid=dead.pid, started="1", label="kernel", owner=owned_by_dead(dead))
    ledger.add(gone)
    assert sweep(ledger).killed == (sleeper.pid,)
    assert sleeper.wait(10) == -signal.SIGKILL


def test_a_living_hosts_process_is_not_touched(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(started(sleeper, tag="tag1"))
    assert sweep(ledger).killed == ()
    assert alive(sleeper.pid)
    assert [r.tag for r in ledger.open_records()] == ["tag1"]


def test_a_pid_that_belongs_to_another_process_by_now_is_not_touched(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], dead: subprocess.Popen[bytes]
) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(started(sleeper, started="12345", owner=owned_by_dead(dead)))
    assert sweep(ledger).killed == ()
    assert alive(sleeper.pid)
    assert not ledger.open_records()


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        ({"machine": "another"}, True),
        ({"namespace": "pid:[1]"}, True),
        ({"boot": "an earlier one"}, False),
        ({"machine": "another", "boot": "another"}, True),
    ],
)
def test_pids_of_another_machine_boot_or_container_are_not_touched(
    tmp_path: Path,
    sleeper: subprocess.Popen[bytes],
    dead: subprocess.Popen[bytes],
    place: dict[str, str],
    kept: bool,
) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(started(sleeper, owner=owned_by_dead(dead, **place)))
    swept = sweep(ledger)
    assert swept.killed == ()
    assert swept.elsewhere == kept
    assert alive(sleeper.pid)
    assert bool(ledger.open_records()) is kept


def test_the_sweep_never_kills_itself_or_what_it_runs_under(tmp_path: Path) -> None:
    """A host that was started by a cell carries that cell's mark."""
    script = """
import sys
from pathlib import Path
from rlm_host.processes.sweep import kill_all, tagged
print(kill_all(lambda table: tagged("nested", table)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, SPAWN_TAG: "nested"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_tree_that_forks_while_it_is_killed_is_ended() -> None:
    # It gives up by itself: a test that fails must not leave it to the machine.
    bomb = (
        "import os, time\n"
        "end = time.monotonic() + 20\n"
        "while time.monotonic() < end:\n"
        "  if os.fork():\n"
        "    os._exit(0)\n"
        "  os.setsid()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", bomb], env={**os.environ, SPAWN_TAG: "hopper"}
    )
    process.wait()
    kill_all(lambda table: tagged("hopper", table))
    assert not tagged("hopper", facts.processes())


def test_a_tree_that_grows_while_it_is_killed_leaves_no_orphan() -> None:
    """What is forked between the look and the kill must not get out of sight."""
    grow = (
        "import os, time\n"
        "for _ in range(1000):\n"
        "  if os.fork() == 0:\n"
        "    os.setsid(); time.sleep(60)\n"
        "  time.sleep(0.005)\n"
        "time.sleep(60)\n"
    )
    root = subprocess.Popen(
        [sys.executable, "-S", "-c", grow], env={**os.environ, SPAWN_TAG: "growing"}
    )
    while len(facts.descendants(root.pid)) < 5:
        assert root.poll() is None
    kill_all(lambda table: tree(root.pid, table))
    root.wait()
    orphans = tagged("growing", facts.processes())
    kill_all(lambda table: tagged("growing", table))
    assert not orphans


HARDEST = """
import os, subprocess
subprocess.Popen(["sleep", NUMBER], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", NUMBER])
    os._exit(0)
"""


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """A host with a kernel whose cell left two daemons behind; their number, and the pids."""
    number = f"8{os.getpid()}.{int.from_bytes(os.urandom(3), 'big')}"
    host = Path(__file__).parents[1] / "support" / "small_host.py"
    process = subprocess.Popen(
        [sys.executable, str(host), str(tmp_path), HARDEST.replace("NUMBER", f"'{number}'")],
        stdout=subprocess.PIPE,
        env={**os.environ, "RLM_KERNEL_PYTHON": sys.executable},
    )
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    assert pids["status"] == "ok", pids
    yield number, pids
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_killed_host_leaves_nothing(doomed: tuple[str, dict[str, int]]) -> None:
    number, pids = doomed
    await until(lambda: len(running(number)) == 2)
    os.kill(pids["host"], signal.SIGKILL)
    await until(lambda: not running(number))
    await until(lambda: not alive(pids["guard"]) and not alive(pids["kernel"]), "their end")


async def test_host_and_guard_killed_together_are_swept_at_the_next_start(
    tmp_path: Path, doomed: tuple[str, dict[str, int]]
) -> None:
    number, pids = doomed
    await until(lambda: len(running(number)) == 2)
    # The guard may not run again, or it would end the tree for its dead host.
    os.kill(pids["guard"], signal.SIGSTOP)
    os.kill(pids["host"], signal.SIGKILL)
    os.kill(pids["guard"], signal.SIGKILL)
    await until(lambda: not alive(pids["guard"]) and not alive(pids["kernel"]), "their end")
    assert running(number), "this test needs something that survives them"
    swept = sweep(Ledger(tmp_path))
    assert swept.labels == ("kernel",)
    await until(lambda: not running(number))
    assert sweep(Ledger(tmp_path)).labels == ()


def test_the_tree_begins_with_its_root(sleeper: subprocess.Popen[bytes]) -> None:
    table = facts.processes()
    assert [f.pid for f in tree(sleeper.pid, table)] == [sleeper.pid]
    assert sleeper.pid in {f.pid for f in tree(os.getpid(), table)}
    assert tree(2**22 + 1, table) == []


def test_ps_tells_what_proc_tells(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_proc = facts.process(sleeper.pid)
    monkeypatch.setattr(facts, "has_proc", lambda: False)
    by_ps = facts.process(sleeper.pid)
    assert by_proc is not None
    assert by_ps is not None
    same = ("pid", "parent", "group", "session", "zombie")
    assert [getattr(by_ps, n) for n in same] == [getattr(by_proc, n) for n in same]
    assert facts.process(sleeper.pid) == by_ps
    assert sleeper.pid in {f.pid for f in facts.descendants(os.getpid())}


def test_a_command_name_with_parentheses_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o700)
    process = subprocess.Popen([str(program), "1000"])
    try:
        fact = facts.process(process.pid)
        assert fact is not None
        assert fact.parent == os.getpid()
    finally:
        process.kill()
        process.wait()


def test_hardening_hides_the_host_from_its_cells() -> None:
    script = """
from rlm_host.processes.facts import harden_host, prctl
import ctypes
assert harden_host()
assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0  # PR_GET_DUMPABLE
flag = ctypes.c_int()
assert prctl(37, ctypes.byref(flag))
assert flag.value == 1
"""
    if facts.can_adopt():
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


SPY = """
import os
from rlm_host.processes.facts import harden_host, prctl

if os.getuid() == 0:  # root reads everything: the promise is for everybody else
    os.setgid(65534)
    os.setuid(65534)
    prctl(4, 1)

def a_child_reads(name):
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(os.open(f"/proc/{parent}/{name}", os.O_RDONLY))
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0

print([a_child_reads(n) for n in ("mem", "environ")])
harden_host()
print([a_child_reads(n) for n in ("mem", "environ")])
"""


def test_a_hardened_hosts_memory_and_environment_cannot_be_read_by_its_children() -> None:
    if not facts.can_adopt():
        pytest.skip("this machine has no prctl")
    done = subprocess.run(
        [sys.executable, "-c", SPY], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[True, True]\n[False, False]\n"
