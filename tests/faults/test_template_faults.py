"""Whatever is killed, kernels live on or end as designed, the next one starts, nothing is left."""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rlm_host.processes import facts, templates
from rlm_host.processes.command import run_command
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.sweep import sweep
from rlm_host.processes.templates import key_of, open_template
from rlm_protocol.errors import KernelDied
from support.processes import Run, alive, in_time, my_children, running, until
from support.runtime_driver import eventually
from support.warm import WarmBench, ask, origin

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not facts.can_fork_guards(), reason="kernels start cold on this machine"),
]
SMALL_HOST = Path(__file__).parents[1] / "support" / "small_host.py"
MOMENTS_S = (0, 0.001, 0.003, 0.01, 0.03)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WarmBench]:
    monkeypatch.setattr(templates, "SETTLE_S", 0)
    monkeypatch.setattr(templates, "FAILURES", 100)
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 1)
    async with WarmBench(tmp_path) as made:
        yield made
    assert not my_children()
    mine = [f for f in facts.processes().values() if f.parent == os.getpid()]
    zombies = [f for f in mine if f.zombie]
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 0)
    assert not zombies


async def test_kernels_outlive_their_template_and_the_next_start_works(bench: WarmBench) -> None:
    kernel = await bench.kernel(host=bench.host())
    await ask(kernel, "1")
    template = await bench.spare()
    forked = await bench.kernel(host=bench.host())
    await ask(forked, "x = 1")
    await bench.spare()
    os.kill(template, signal.SIGKILL)
    await until(lambda: not alive(template), "the end of the template")
    assert await ask(forked, "x + 1") == 2
    assert origin(forked) == os.getpid(), "what the template had forked has fallen to its host"
    after = await bench.kernel(host=bench.host())
    assert await ask(after, "3") == 3
    assert origin(after) == os.getpid()
    assert await bench.spare(template)
    await until(lambda: len(bench.templates._tasks) == 1, "the end of the sweep after the template")
    assert await ask(forked, "x + 2") == 3


@pytest.mark.parametrize("spare", [True, False], ids=["with a spare", "without"])
async def test_a_template_killed_while_a_kernel_starts_costs_no_start(
    bench: WarmBench, spare: bool
) -> None:
    await ask(await bench.kernel(host=bench.host()), "1")
    for moment_s in MOMENTS_S:
        template = await bench.spare()
        kernels = [await bench.kernel(host=bench.host(), persistent=False) for _ in range(2)]
        starts = [asyncio.create_task(ask(k, "6 * 7")) for k in kernels[: 1 if spare else 2]]
        await asyncio.sleep(moment_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(template, signal.SIGKILL)
        assert set(await in_time(asyncio.gather(*starts))) == {42}, moment_s
        for kernel in kernels:
            await kernel.aclose(snapshot=False)
        await ask(await bench.kernel(host=bench.host()), "1")


async def test_a_template_that_hangs_is_given_up(
    bench: WarmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "ANSWER_S", 0.2)
    first, second, third = [await bench.kernel(host=bench.host()) for _ in range(3)]
    await ask(first, "1")
    template = await bench.spare()
    os.kill(template, signal.SIGSTOP)
    assert await ask(second, "2") == 2, "by the spare, which needs no template"
    assert await ask(third, "3") == 3
    assert origin(third) == os.getpid()
    await until(lambda: not alive(template), "the end of what hangs")


async def test_a_spare_that_hangs_is_given_up(
    bench: WarmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlm_host.kernels.opening.WARM_READY_MS", 200)
    kernel = await bench.kernel(host=bench.host())
    await ask(kernel, "1")
    template = await bench.spare()
    below = [f.pid for f in my_children() if f.parent == template]
    for pid in [*below, *(f.pid for f in my_children() if f.parent in below)]:
        os.kill(pid, signal.SIGSTOP)
    kernel.kill()
    assert await ask(kernel, "2") == 2
    assert origin(kernel) == os.getpid()


LEFT = """
import os, subprocess, sys, multiprocessing
def note(pid):
    with open('pids', 'a') as file: file.write(f'{pid}\\n')
def forked_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note(os.getpid())
            import signal; signal.pause()
        os._exit(0)
    os.wait()
def noted(argv, **more):
    note(subprocess.Popen(argv, **more).pid)
forked_daemon()
noted(['sleep', '3600'])
noted(['sleep', '3601'], start_new_session=True)
"""
EMPTIED = "noted(['sleep', '3602'], env={}, start_new_session=True)\n"
UNDER = {"guard": False, "template, guard": True, "guard, template": True}


@pytest.mark.parametrize("killed", UNDER)
async def test_what_a_killed_guard_leaves_is_ended_by_whoever_adopts_it(
    bench: WarmBench, killed: str
) -> None:
    kernel = await bench.kernel(host=bench.host())
    await ask(kernel, "1")
    template = await bench.spare()
    neighbour = await bench.kernel(host=bench.host())
    await ask(neighbour, "import subprocess; p = subprocess.Popen(['sleep', '3603'])")
    await bench.spare()
    kernel.kill()
    await ask(kernel, LEFT + EMPTIED)
    assert origin(kernel) == template
    await until(lambda: len(noted(bench.cwd)) == 4, "the daemon's own note")
    left = noted(bench.cwd)
    pids = {"guard": facts.process(kernel.pid).parent, "template": template}
    for name in killed.split(", "):
        os.kill(pids[name], signal.SIGKILL)
    await until(lambda: not any(map(alive, left)), "the end of what was left")
    assert await ask(neighbour, "p.poll()") is None
    with contextlib.suppress(KernelDied):  # noticed while the cell starts
        await Run(kernel)("1", cell_id="noticed")
    assert await ask(kernel, "5") == 5
    assert not any(map(alive, left))


@contextlib.contextmanager
def small_host(home: Path, code: str) -> Iterator[dict[str, int]]:
    """A host of its own with a forked kernel that has run `code`; gives pids by name."""
    environ = {**os.environ, "RLM_KERNEL_PYTHON": sys.executable}
    argv = [sys.executable, str(SMALL_HOST), str(home), code, "warm"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            pids = json.loads(process.stdout.readline())
            assert pids["status"] == "ok", pids
            assert facts.process(pids["guard"]).parent == pids["template"]
            yield pids
        finally:
            process.kill()
            for pid in filter(alive, noted(home)):  # a failed test leaves nothing either
                os.kill(pid, signal.SIGKILL)


def noted(home: Path) -> list[int]:
    """Pids that the code of LEFT has noted."""
    file = home / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


KILLED = ("host", "host, guard", "guard, host", "host, template", "template, host", "kernel, host")


@pytest.mark.parametrize("killed", KILLED)
def test_when_the_host_is_killed_nothing_of_it_is_left(tmp_path: Path, killed: str) -> None:
    with small_host(tmp_path, LEFT + EMPTIED) as pids:
        tree = [fact.pid for fact in facts.descendants(pids["host"])]
        left = noted(tmp_path)
        assert {*left, pids["template"], pids["guard"], pids["kernel"]} <= set(tree)
        assert len(tree) >= 9, "with a spare"
        for name in killed.split(", "):
            os.kill(pids[name], signal.SIGKILL)
        eventually(lambda: not any(map(alive, tree)), f"the end of all {tree}", 10)


def test_a_guard_killed_after_its_host_leaves_nothing(tmp_path: Path) -> None:
    with small_host(tmp_path, LEFT + EMPTIED) as pids:
        tree = [fact.pid for fact in facts.descendants(pids["host"])]
        os.kill(pids["guard"], signal.SIGSTOP)
        os.kill(pids["host"], signal.SIGKILL)
        eventually(lambda: not alive(pids["host"]), "the end of the host")
        os.kill(pids["guard"], signal.SIGKILL)
        eventually(lambda: not any(map(alive, tree)), f"the end of all {tree}", 10)


def test_a_host_killed_with_news_unread_leaves_nothing(tmp_path: Path) -> None:
    """What it has not read makes the template's next look at their link an error, not its end."""
    with small_host(tmp_path, LEFT + EMPTIED) as pids:
        template, guard = pids["template"], pids["guard"]
        below = facts.descendants(pids["host"])
        tree = [fact.pid for fact in below]
        (spare,) = (f.pid for f in below if f.parent == template and f.pid != guard)
        os.kill(pids["host"], signal.SIGSTOP)
        os.kill(spare, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{spare}").exists(), "the end of the spare")
        wchan = Path(f"/proc/{template}/wchan")
        eventually(lambda: "poll" in wchan.read_text(), "the template has told of it")
        os.kill(guard, signal.SIGSTOP)
        os.kill(pids["host"], signal.SIGKILL)
        eventually(lambda: not alive(pids["host"]), "the end of the host")
        os.kill(guard, signal.SIGKILL)
        eventually(lambda: not any(map(alive, tree)), f"the end of all {tree}", 10)


def test_a_host_killed_between_two_kernels_leaves_nothing(tmp_path: Path) -> None:
    """The second gets ready while the first cannot be ended yet: its guard does not answer."""
    with small_host(tmp_path, LEFT) as pids:
        os.kill(pids["guard"], signal.SIGSTOP)
        os.kill(pids["host"], signal.SIGUSR1)
        eventually(lambda: kernels_in_the_ledger(tmp_path) == 2 or not alive(pids["guard"]), "both")
        tree = [fact.pid for fact in facts.descendants(pids["host"])]
        os.kill(pids["host"], signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids["guard"], signal.SIGKILL)
        eventually(lambda: not any(map(alive, tree)), f"the end of all {tree}", 10)


def kernels_in_the_ledger(home: Path) -> int:
    return sum(record.label == "kernel" for record in Ledger(home).open_records())


async def test_a_sweep_passes_over_the_spare_of_a_dead_template(bench: WarmBench) -> None:
    processes = bench.processes
    argv = (sys.executable, "-P", "-m", "rlm.repl")
    heard: list[bytes] = []
    async with open_template(processes, key_of(argv, os.environ, bench.cwd)) as template:
        spare = await template.fork()
        os.kill(template.pid, signal.SIGKILL)
        guard = spare.process.pid
        await until(lambda: facts.process(guard).parent == os.getpid(), "a spare without template")
        command = ["sh", "-c", "sleep 3604"]
        swept = asyncio.create_task(run_command(processes, command, env=os.environ, cwd=bench.cwd))
        await until(lambda: running("3604"), "a command with a guard")
        (command_guard,) = {facts.process(facts.process(p).parent).pid for p in running("3604")}
        os.kill(command_guard, signal.SIGKILL)
        await in_time(swept)
        assert spare.alive
    block = processes.take(
        spare, env=dict(os.environ), cwd=bench.cwd, on_stdout=heard.append, label="kernel"
    )
    async with block:
        await until(lambda: b"ready" in b"".join(heard), "a kernel of that spare")


def test_when_all_owners_are_killed_the_next_start_sweeps_what_is_left(tmp_path: Path) -> None:
    with small_host(tmp_path, LEFT) as pids:
        tree = [fact.pid for fact in facts.descendants(pids["host"])]
        for name in ("host", "template", "guard"):
            os.kill(pids[name], signal.SIGSTOP)
        for name in ("host", "template", "guard"):
            os.kill(pids[name], signal.SIGKILL)
        left = set(noted(tmp_path))
        eventually(lambda: set(filter(alive, tree)) <= left, "the end of the kernel itself")
        swept = sweep(Ledger(tmp_path))
        assert left <= set(swept.killed), "daemons without an owner are named"
        assert not any(map(alive, tree))
        assert "kernel" in swept.labels


def test_two_hosts_of_one_home_have_each_their_own(tmp_path: Path) -> None:
    with small_host(tmp_path, "1") as one, small_host(tmp_path, "2") as other:
        assert one["template"] != other["template"]
        tree = [fact.pid for fact in facts.descendants(other["host"])]
        os.kill(one["host"], signal.SIGKILL)
        eventually(lambda: not alive(one["template"]), "the end of the first host's template")
        assert sweep(Ledger(tmp_path)).killed == ()
        assert all(map(alive, tree))


GONE_BEFORE = """
import os, socket, sys
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    os.read(read, 1)  # until the host has gone
    ours.close()
    theirs.set_inheritable(True)
    os.environ["RLM_TEMPLATE_FD"] = str(theirs.fileno())
    os.execv(sys.executable, [sys.executable, "-P", "-m", "rlm.repl"])
"""


def test_a_template_whose_host_has_gone_before_its_first_step_ends() -> None:
    """Its parent is then whoever adopts orphans, and lives on."""
    host = subprocess.Popen(
        [sys.executable, "-c", GONE_BEFORE], stdout=subprocess.PIPE, start_new_session=True
    )
    assert host.stdout is not None
    try:
        with host.stdout as stdout:
            ended = select.select([stdout], [], [], 30)[0]
            assert ended, "the template lives on"
            assert stdout.read() == b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(host.pid, signal.SIGKILL)
        host.wait()
