"""A session's kernel over the real runtime: `python -P -m rlm.repl` under its guard."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rlm_host.kernels.cell import KernelStatus
from rlm_protocol import kernel
from rlm_protocol.errors import DepthLimit, KernelDied, MethodNotFound
from support.processes import KernelBench, Run, alive, in_time, my_children, running, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[KernelBench]:
    async with KernelBench(tmp_path) as made:
        yield made
    assert not my_children()


async def test_a_cell_computes_prints_and_remembers(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    assert (await run("x = 6; print('hello'); x * 7")).result == "42"
    assert run.text == "hello\n42"
    assert (await run("_ + x")).result == "48"
    assert (await run("_", silent=True)).result is None
    names = await run.kernel.names(detail=True)
    assert "x" in names.names
    assert "x" in {row.name for row in names.details}
    assert "xylophone" in (await _completed(run, "xylophone = 1"))


async def _completed(run: Run, code: str) -> tuple[str, ...]:
    await run(code)
    return (await run.kernel.complete("xyl", 3)).matches


async def test_a_kernel_is_told_who_it_is_and_no_secret(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    run = Run(await bench.kernel(depth=1, max_depth=3))
    outcome = await run("import os; dict(os.environ)")
    environ = eval(outcome.result)
    assert "canary" not in environ.values()
    assert (environ["RLM_DEPTH"], environ["RLM_MAX_DEPTH"]) == ("1", "3")
    assert environ["RLM_SESSION_DIR"] == str(bench.session_dir)
    assert (await run("os.getcwd()")).result == repr(str(bench.cwd))


async def test_rlm_and_bash_are_bound_before_the_first_cell(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    assert (await run("callable(rlm), callable(bash)")).result == "(True, True)"
    await run("rlm = bash = None")
    await run.kernel.restart(restore=False)
    assert (await run("callable(rlm), callable(bash)")).result == "(True, True)"


async def test_what_the_host_binds_wins_over_what_a_snapshot_holds(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    await run("rlm = bash = 'mine'; kept = 1")
    await run.kernel.snapshot()
    run.kernel.kill()
    assert (await run("callable(rlm), callable(bash), kept")).result == "(True, True, 1)"


async def test_host_requests_of_a_cell_come_with_its_id(bench: KernelBench) -> None:
    asked: list[Any] = []

    async def answer(type_: str, payload: dict[str, Any], cell_id: str | None) -> object:
        asked.append((type_, payload, cell_id))
        if type_ == "deep":
            raise DepthLimit(depth=2)
        if type_ == "unknown":
            raise MethodNotFound(method=type_)
        return {"n": 1}

    run = Run(await bench.kernel(host_requests=answer))
    assert (
        await run("await rlm.host_request('echo', {'a': 1})", cell_id="me")
    ).result == "{'n': 1}"
    assert asked == [("echo", {"a": 1}, "me")]
    for type_, error in (("deep", DepthLimit), ("unknown", MethodNotFound)):
        outcome = await run(f"await rlm.host_request({type_!r})")
        assert outcome.status == "error"
        assert outcome.error.ename == "HostError"
        assert error.meaning in outcome.error.evalue
    caught = "try:\n  await rlm.host_request('deep')\nexcept RuntimeError as e: print(e.code)"
    await run(caught)
    assert str(DepthLimit.code) in run.text


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import asyncio; await asyncio.sleep(1000)",
        "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
        "import subprocess; subprocess.run(['sleep', '1000'])",
        "await rlm.host_request('never')",
    ],
)
async def test_an_interrupt_ends_any_cell_and_the_next_one_runs(
    bench: KernelBench, code: str
) -> None:
    async def never(*_: object) -> object:
        await asyncio.Event().wait()
        return None

    # Slow to escalate: the runtime must have done it.
    waits = bench.host().waits.__class__(interrupt_again_ms=20_000, interrupt_kill_ms=20_000)
    run = Run(await bench.kernel(host=bench.host(waits=waits), host_requests=never))
    await run("kept = 5")
    call = asyncio.create_task(run(code))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    await asyncio.sleep(0.05)  # most likely inside; at any other moment it must end all the same
    run.kernel.interrupt()
    outcome = await in_time(call)
    assert (outcome.status, outcome.kernel_killed) == ("interrupted", False)
    assert (await run("kept")).result == "5"


async def test_an_interrupt_hits_the_cell_it_names_and_never_the_next_one(
    bench: KernelBench,
) -> None:
    run = Run(await bench.kernel())
    await run("import time")
    rng = random.Random(11)
    seen = set()
    for n in range(100):
        first = asyncio.create_task(run("for _ in range(20000): pass", cell_id=f"a{n}"))
        second = asyncio.create_task(run("for _ in range(2000): pass\n2", cell_id=f"b{n}"))
        for _ in range(rng.randrange(12)):
            await asyncio.sleep(0)
        run.kernel.interrupt(f"a{n}")
        seen.add((await in_time(first)).status)
        assert (await in_time(second)).result == "2"
    assert seen <= {"ok", "interrupted"}
    assert "interrupted" in seen


async def test_a_new_cell_right_behind_an_interrupt_runs(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    call = asyncio.create_task(run("while True: pass"))
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    run.kernel.interrupt()
    assert (await run("1 + 1")).result == "2"
    assert (await in_time(call)).status == "interrupted"


async def test_a_cell_that_does_not_yield_is_killed_and_the_next_one_revived(
    bench: KernelBench,
) -> None:
    run = Run(await bench.kernel())
    await run("kept = 5")
    await run.kernel.snapshot()
    call = asyncio.create_task(run("sum(range(10**11))"))  # C code that looks at no signal
    await until(lambda: run.kernel.status is KernelStatus.BUSY)
    run.kernel.interrupt()
    outcome = await in_time(call)
    assert (outcome.status, outcome.kernel_killed) == ("interrupted", True)
    after = await run("kept")
    assert after.result == "5"
    assert after.revival.reason == "killed"
    assert "kept" in after.revival.restored


@pytest.mark.parametrize(
    ("code", "exit_code", "signal"),
    [
        ("os.kill(os.getpid(), 9)", None, "SIGKILL"),
        ("os.kill(os.getpid(), 11)", None, "SIGSEGV"),
        ("os._exit(0)", 0, None),
        ("os._exit(7)", 7, None),
    ],
)
async def test_a_death_in_a_cell_fails_it_at_once(
    bench: KernelBench, code: str, exit_code: int | None, signal: str | None
) -> None:
    run = Run(await bench.kernel())
    await run("kept = 5")
    await run.kernel.snapshot()
    started = time.monotonic()
    with pytest.raises(KernelDied) as died:
        await run(f"import os; {code}")
    assert time.monotonic() - started < 20
    assert died.value.data["exit_code"] == exit_code
    assert died.value.data["signal"] == signal
    after = await run("kept")
    assert (after.result, after.revival.reason) == ("5", "died")


async def test_a_session_of_another_day_has_its_functions_and_shared_objects(
    bench: KernelBench,
) -> None:
    run = Run(await bench.kernel())
    await run("a = [1]; b = a\ndef grow(): a.append(len(a)); return b")
    await run("gone = open('/dev/null')")
    await run.kernel.aclose()
    again = Run(await bench.kernel())
    outcome = await again("grow()")
    assert outcome.result == "[1, 1]"
    assert {"a", "b", "grow"} <= set(outcome.revival.restored)
    assert "gone" not in outcome.revival.restored


async def test_a_snapshot_that_was_changed_on_disk_never_runs(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    await run("a = 1")
    await run.kernel.aclose()
    path = bench.session_dir / "kernel-state.dill"
    changed = bytearray(path.read_bytes())
    changed[40] ^= 1
    path.write_bytes(changed)
    again = Run(await bench.kernel())
    outcome = await again("'a' in globals()")
    assert outcome.result == "False"
    assert "not signed" in outcome.revival.refused
    await again.kernel.aclose()
    assert path.read_bytes() == changed


async def test_output_of_late_tasks_and_threads_goes_where_it_belongs(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    code = (
        "import asyncio, threading\n"
        "async def late():\n"
        "    await asyncio.sleep(0.05); print('task', flush=True)\n"
        "t = asyncio.create_task(late())\n"
        "def work(): print('thread', flush=True)\n"
        "threading.Timer(0.05, work).start()\n"
    )
    await run(code, cell_id="early")
    await run("await asyncio.sleep(0.3)", cell_id="later")
    said = [e for e in bench.background if isinstance(e, kernel.Stdout) and e.text.strip()]
    heard = {e.text.strip(): e.id for e in said}
    assert heard == {"task": "early", "thread": None}
    assert run.text == ""


async def test_nothing_a_cell_started_outlives_its_kernel(bench: KernelBench) -> None:
    number = f"9{os.getpid()}.{int.from_bytes(os.urandom(3), 'big')}"
    run = Run(await bench.kernel())
    await run(
        "import subprocess, os\n"
        f"subprocess.Popen(['sleep', '{number}'], start_new_session=True)\n"
        f"subprocess.Popen(['setsid', 'env', '-i', 'sleep', '{number}'])\n"
        f"h = bash('sleep {number}')\n"
    )
    await until(lambda: len(running(number)) == 3)
    pid = run.kernel.pid
    assert pid is not None
    assert alive(pid)
    await in_time(run.kernel.aclose())
    assert not running(number)
    assert not alive(pid)


async def test_a_flood_of_output_arrives_whole_and_the_loop_stays_awake(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticker = asyncio.create_task(tick())
    await run("for n in range(200000): print(n)")
    ticker.cancel()
    assert run.text == "".join(f"{n}\n" for n in range(200000))
    assert ticks > 10


async def test_a_busy_kernel_answers_questions_or_says_it_is_busy(bench: KernelBench) -> None:
    run = Run(await bench.kernel())
    await run("import asyncio; zebra = 1")
    call = asyncio.create_task(run("print('go', flush=True)\nawait asyncio.sleep(1000)"))
    await until(lambda: "go" in run.text)
    assert "zebra" in (await in_time(run.kernel.complete("zeb", 3))).matches
    assert run.kernel.status is KernelStatus.BUSY
    run.kernel.interrupt()
    await in_time(call)
