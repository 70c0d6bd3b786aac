"""Processes have an owner: a block that cannot be left with their tree alive."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlm_host.processes import facts, spawn
from rlm_host.processes.command import run_command
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.spawn import Child, Processes
from support.processes import alive, in_time, my_children, running, until

pytestmark = pytest.mark.anyio
ENV = {"PATH": os.environ["PATH"]}
HERE = Path("/")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 1)
    yield
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 0)
    assert not my_children()
    assert set(os.listdir("/proc/self/fd")) == before


def number() -> str:
    """A sleep that no other process sleeps, so that it can be found again."""
    return f"7{os.getpid()}.{int.from_bytes(os.urandom(3), 'big')}"


async def sh(processes: Processes, script: str, **more: object) -> object:
    return await run_command(processes, ["sh", "-c", script], env=ENV, cwd=HERE, **more)


async def test_a_command_gives_what_it_said_and_how_it_ended() -> None:
    done = await in_time(sh(Processes(None), "cat; echo oops >&2; exit 3", input=b"hello"))
    assert (done.stdout, done.exit_code, done.stderr_tail) == (b"hello", 3, "oops\n")
    assert done.duration_ms >= 0
    assert done.dropped_bytes == 0


async def test_a_command_that_dies_by_a_signal_says_so() -> None:
    assert (await in_time(sh(Processes(None), "kill -9 $$"))).exit_code == -signal.SIGKILL


async def test_only_the_allowed_output_is_kept_and_the_rest_is_counted() -> None:
    done = await in_time(sh(Processes(None), "head -c 5000000 /dev/zero", max_output_bytes=1000))
    assert (len(done.stdout), done.dropped_bytes) == (1000, 4_999_000)


async def test_only_the_last_words_of_stderr_are_kept() -> None:
    done = await in_time(sh(Processes(None), "head -c 100000 /dev/zero >&2; echo end >&2"))
    assert len(done.stderr_tail) == 8 * 1024
    assert done.stderr_tail.endswith("end\n")


async def test_ten_megabytes_go_in_and_out_without_a_deadlock() -> None:
    data = os.urandom(1024) * 10_000
    done = await in_time(sh(Processes(None), "cat", input=data))
    assert done.stdout == data


async def test_a_program_that_does_not_exist_is_said_before_anything_starts() -> None:
    processes = Processes(None)
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        await run_command(processes, ["no-such-program"], env=ENV, cwd=HERE)
    with pytest.raises(FileNotFoundError):
        await run_command(processes, ["true"], env=ENV, cwd=Path("/no/such/folder"))
    with pytest.raises(FileNotFoundError):
        await run_command(processes, ["true"], env={"PATH": "/nowhere"}, cwd=HERE)


ESCAPES = (
    "sleep {n} & ",
    "setsid sleep {n} & ",
    "(setsid sh -c '(sleep {n} &)' &) ; ",
    "env -i setsid sleep {n} & ",
)


@pytest.mark.parametrize("escape", ESCAPES)
async def test_what_a_command_leaves_behind_ends_with_it(escape: str) -> None:
    n = number()
    script = escape.format(n=n) + "sleep 0.05; echo done"
    done = await in_time(sh(Processes(None), script))
    assert done.exit_code == 0
    assert not running(n)


@pytest.mark.parametrize("escape", ESCAPES)
async def test_a_timeout_ends_the_whole_tree(escape: str) -> None:
    n = number()
    with pytest.raises(TimeoutError):
        await in_time(sh(Processes(None), escape.format(n=n) + "sleep 1000", timeout_ms=300))
    assert not running(n)


async def test_a_cancelled_command_ends_with_its_tree() -> None:
    n = number()
    task = asyncio.create_task(sh(Processes(None), f"setsid sleep {n} & sleep 1000"))
    await until(lambda: running(n))
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not running(n)


async def test_a_killed_guard_leaves_nothing_either() -> None:
    n = number()
    task = asyncio.create_task(sh(Processes(None), f"setsid sleep {n} & sleep 1000"))
    await until(lambda: running(n))
    (guard,) = (f for f in my_children() if f.parent == os.getpid())
    os.kill(guard.pid, signal.SIGKILL)
    done = await in_time(task)
    assert done.exit_code == -signal.SIGKILL
    assert not running(n)


async def test_what_a_killed_guard_orphans_without_a_mark_is_adopted_and_ended() -> None:
    if not facts.can_adopt():
        pytest.skip("this machine has no subreaper")
    n = number()
    task = asyncio.create_task(sh(Processes(None), f"env -i setsid sleep {n} & sleep 1000"))
    await until(lambda: running(n))
    (guard,) = (f for f in my_children() if f.parent == os.getpid())
    os.kill(guard.pid, signal.SIGKILL)
    await in_time(task)
    assert not running(n)


async def test_a_guard_that_does_not_answer_is_killed_with_its_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spawn, "GUARD_ANSWER_S", 0.1)
    n = number()
    task = asyncio.create_task(sh(Processes(None), f"setsid sleep {n} & sleep 1000"))
    await until(lambda: running(n))
    (guard,) = (f for f in my_children() if f.parent == os.getpid())
    os.kill(guard.pid, signal.SIGSTOP)
    task.cancel()
    await asyncio.wait({task})
    assert not running(n)


async def test_a_living_sibling_survives_another_ones_broken_guard() -> None:
    processes, mine, other = Processes(None), number(), number()
    task = asyncio.create_task(sh(processes, f"setsid sleep {other} & sleep 1000"))
    broken = asyncio.create_task(sh(processes, f"setsid sleep {mine} & sleep 1000"))
    await until(lambda: running(mine) and running(other))
    (pid,) = running(mine)
    guard = next(
        f.pid
        for f in my_children()
        if f.parent == os.getpid() and pid in {d.pid for d in facts.descendants(f.pid)}
    )
    os.kill(guard, signal.SIGKILL)
    await in_time(broken)
    assert not running(mine)
    assert running(other)
    task.cancel()
    await asyncio.wait({task})
    assert not running(other)


async def test_without_pidfd_the_end_is_noticed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts, "open_pidfd", lambda _: None)
    assert (await in_time(sh(Processes(None), "exit 4"))).exit_code == 4
    with pytest.raises(TimeoutError):
        await in_time(sh(Processes(None), "sleep 1000", timeout_ms=100))


async def test_a_block_without_a_guard_ends_its_group_and_what_carries_its_mark() -> None:
    n = number()
    script = f"setsid sleep {n} & sleep 1000"
    async with Processes(None).spawn(
        ["sh", "-c", script], env=ENV, cwd=HERE, on_stdout=lambda _: None, guarded=False
    ) as child:
        await until(lambda: running(n))
        assert alive(child.pid)
    assert not alive(child.pid)
    assert not running(n)


async def test_a_block_left_by_an_error_ends_its_process() -> None:
    seen: list[Child] = []

    async def fail() -> None:
        async with Processes(None).spawn(
            ["sleep", "1000"], env=ENV, cwd=HERE, on_stdout=lambda _: None, guarded=False
        ) as child:
            seen.append(child)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not alive(seen[0].pid)
    assert seen[0].ended.result().signal_name == "SIGKILL"


async def test_a_process_has_the_environment_it_was_given_and_nothing_of_the_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    done = await in_time(
        run_command(
            Processes(None),
            [sys.executable, "-c", "import os; print(*os.environ)"],
            env={**ENV, "A": "1"},
            cwd=HERE,
        )
    )
    names = set(done.stdout.decode().split()) - {"LC_CTYPE"}
    assert names == {"PATH", "A", "RLM_SPAWN"}


async def test_a_process_is_in_the_ledger_while_it_lives(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    task = asyncio.create_task(sh(Processes(ledger), "sleep 1000"))
    await until(lambda: (tmp_path / "orphans.jsonl").exists() and ledger.open_records())
    (record,) = ledger.open_records()
    assert record.label == "sh"
    assert record.owner.pid == os.getpid()
    fact = facts.process(record.pid)
    assert fact is not None
    assert fact.started == record.started
    task.cancel()
    await asyncio.wait({task})
    assert not ledger.open_records()


async def test_a_ledger_that_cannot_be_written_does_not_stop_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "orphans.jsonl").symlink_to(tmp_path / "elsewhere")
    done = await in_time(sh(Processes(Ledger(tmp_path)), "echo on"))
    assert done.stdout == b"on\n"
    assert "orphan ledger cannot be written" in caplog.text
    assert not (tmp_path / "elsewhere").exists()
