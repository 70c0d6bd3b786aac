"""Kernels forked from templates: like cold ones, apart from each other, and cold when in doubt."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import venv
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rlm_host.kernels.cell import OutputEvent
from rlm_host.kernels.client import Kernel, Launch
from rlm_host.kernels.doctor import doctor
from rlm_host.kernels.opening import open_kernel
from rlm_host.kernels.recipe import Recipe
from rlm_host.processes import facts, spawn, templates
from rlm_host.processes.templates import key_of
from rlm_protocol.errors import KernelUnavailable
from support import probes
from support.processes import (
    FAKE,
    QUICK,
    Run,
    SystemClock,
    alive,
    in_time,
    my_children,
    no_requests,
    until,
)
from support.warm import WarmBench, ask, origin

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not facts.can_fork_guards(), reason="kernels start cold on this machine"),
]
WARM_ONLY = {"rlm._birth", "rlm._template", "rlm_protocol.warm"}
"""Modules that only a forked kernel has loaded; docs/architecture.md says so."""
LISTED = {"hash", "environ_at_start", "frozen"}
"""Probes that differ, as docs/architecture.md says."""


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WarmBench]:
    monkeypatch.setattr(templates, "SETTLE_S", 0)
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 1)
    before = set(os.listdir("/proc/self/fd"))
    async with WarmBench(tmp_path) as made:
        yield made
    assert not my_children()
    assert made.processes.running == 0
    await until(lambda: set(os.listdir("/proc/self/fd")) == before, "closed descriptors")
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 0)


async def test_the_first_kernel_starts_cold_and_the_next_ones_are_forked(bench: WarmBench) -> None:
    first = await bench.kernel(host=bench.host())
    assert await ask(first, "6 * 7") == 42
    assert origin(first) == os.getpid()
    template = await bench.spare()
    second, third = await bench.kernel(host=bench.host()), await bench.kernel(host=bench.host())
    assert await asyncio.gather(ask(second, "6 * 7"), ask(third, "6 * 8")) == [42, 48]
    assert origin(second) == origin(third) == template
    assert not facts.process(template).zombie
    assert len(os.listdir(f"/proc/{template}/task")) == 1


ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no locale": {"environ": {"LANG": None, "LC_ALL": None}},
    "other": {
        "env": {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "PYTHONOPTIMIZE": "1", "LC_ALL": "C"}
    },
    "odd": {"env": {"NAME": "two\nlines", "Ü": "ß", "EMPTY": "", "PYTHONWARNINGS": "ignore"}},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
async def test_a_cell_sees_the_same_cold_and_warm(bench: WarmBench, environment: str) -> None:
    given = ENVIRONMENTS[environment]
    environ = {**os.environ, "RLM_KERNEL_PYTHON": sys.executable, **given.get("environ", {})}
    host = bench.host(environ={k: v for k, v in environ.items() if v is not None})
    recipe = Recipe(env=given.get("env", {}))
    cold = await bench.kernel(host=host, recipe=recipe)
    seen_cold = await ask(cold, probes.CELL)
    template = await bench.spare()
    warm = await bench.kernel(host=host, recipe=recipe)
    seen_warm = await ask(warm, probes.CELL)
    assert (origin(cold), origin(warm)) == (os.getpid(), template)
    assert set(seen_warm["modules"]) - set(seen_cold["modules"]) <= WARM_ONLY
    assert set(seen_cold.pop("modules")) <= set(seen_warm.pop("modules"))
    assert len(seen_cold) >= 90
    different = {name for name in seen_cold if seen_cold[name] != seen_warm[name]}
    assert different <= LISTED


async def test_forks_of_one_template_share_no_secret(bench: WarmBench) -> None:
    first = await bench.kernel(host=bench.host())
    seen = [await ask(first, probes.SECRETS)]
    template = await bench.spare()
    for _ in range(3):
        kernel = await bench.kernel(host=bench.host())
        seen.append(await ask(kernel, probes.SECRETS))
        assert origin(kernel) == template
    for name in seen[0]:
        assert len({json.dumps(s[name]) for s in seen}) == len(seen), name


async def test_what_acts_at_a_start_takes_another_template_and_nothing_else_does(
    bench: WarmBench,
) -> None:
    argv, cwd = (sys.executable, "-P", "-m", "rlm.repl"), bench.cwd
    env = {"PATH": "/bin", "HOME": "/", "RLM_SESSION_DIR": "/a"}
    same = key_of(argv, env, cwd)
    assert key_of(argv, {**env, "PATH": "/x", "RLM_SESSION_DIR": "/b", "SHOP": "1"}, cwd) == same
    assert key_of(argv, env, Path("/elsewhere")) == same
    for name in ("PYTHONHASHSEED", "LC_ALL", "LANG", "TZ", "LD_PRELOAD", "MALLOC_ARENA_MAX"):
        assert key_of(argv, {**env, name: "1"}, cwd) != same, name
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HOME"):
        assert key_of(argv, {**env, name: "1"}, cwd) != same, name
    assert key_of((*argv, "x"), env, cwd) != same
    assert key_of(argv, env, cwd, ("json",)) != same
    searched = {**env, "PYTHONPATH": "lib"}
    assert key_of(argv, searched, cwd) != key_of(argv, searched, Path("/elsewhere"))
    read_early = {**env, "SHOP": "1"}
    assert key_of(argv, read_early, cwd, ("json",)) != key_of(argv, env, cwd, ("json",))
    umask = os.umask(0o027)
    try:
        assert key_of(argv, env, cwd) != same
    finally:
        os.umask(umask)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else hard and 1, hard))
    try:
        assert (key_of(argv, env, cwd) != same) is (hard != 0)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


async def test_another_key_starts_cold_beside_a_template(bench: WarmBench) -> None:
    first = await bench.kernel(host=bench.host())
    await ask(first, "1")
    await bench.spare()
    other = await bench.kernel(host=bench.host(), recipe=Recipe(env={"PYTHONHASHSEED": "1"}))
    assert await ask(other, "hash('a')") is not None
    assert origin(other) == os.getpid()


async def test_templates_are_few(bench: WarmBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "KEPT", 1)
    first = await bench.kernel(host=bench.host())
    await ask(first, "1")
    template = await bench.spare()
    forked = await bench.kernel(host=bench.host())
    await ask(forked, "x = 1")
    assert origin(forked) == template
    other = await bench.kernel(host=bench.host(), recipe=Recipe(env={"PYTHONHASHSEED": "1"}))
    await ask(other, "1")
    await until(lambda: not alive(template), "the end of the older template")
    await bench.spare(template)
    assert await ask(forked, "x") == 1
    assert origin(forked) == os.getpid()


async def test_a_launcher_is_never_left_out(bench: WarmBench) -> None:
    kernel = await bench.kernel(fake=True, host=bench.host())
    assert (await Run(kernel)("value 1")).result == "1"
    assert not bench.templates._keepers


async def test_an_early_module_may_leave_no_thread(tmp_path: Path, bench: WarmBench) -> None:
    early = tmp_path / "early"
    early.mkdir()
    (early / "restless.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    bench.templates.preload = ("restless",)
    recipe = Recipe(env={"PYTHONPATH": str(early)})
    kernel = await bench.kernel(host=bench.host(), recipe=recipe)
    for _ in range(templates.FAILURES):
        await ask(kernel, "1")
        await until(lambda: not bench.templates._tasks, "the end of the template")
        kernel.kill()
        await ask(kernel, "1")
    assert not bench.templates._tasks
    assert origin(kernel) == os.getpid()


async def test_early_modules_are_there_and_what_they_print_is_nobodys(
    tmp_path: Path, bench: WarmBench
) -> None:
    early = tmp_path / "early"
    early.mkdir()
    (early / "chatty.py").write_text("print('chatter')\n")
    bench.templates.preload = ("chatty",)
    recipe = Recipe(env={"PYTHONPATH": str(early)})
    kernel = await bench.kernel(host=bench.host(), recipe=recipe)
    loaded = "import sys; 'chatty' in sys.modules"
    assert await ask(kernel, loaded) is False
    template = await bench.spare()
    kernel.kill()
    assert await ask(kernel, loaded) is True
    assert origin(kernel) == template
    run = Run(kernel)
    assert (await run("import gc; _ = gc.collect()")).status == "ok"
    assert run.text == ""
    assert bench.background == []


async def test_what_early_modules_have_drawn_is_drawn_anew(
    tmp_path: Path, bench: WarmBench
) -> None:
    """A stand-in for numpy: a global generator, seeded at import, that nobody seeds at a fork."""
    package = tmp_path / "early" / "numpy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import random\n")
    (package / "random.py").write_text(
        "import os\nstate = []\ndef seed():\n    state[:] = os.urandom(8)\nseed()\n"
    )
    bench.templates.preload = ("numpy", "multiprocessing")
    host, recipe = bench.host(), Recipe(env={"PYTHONPATH": str(package.parent)})
    await ask(await bench.kernel(host=host, recipe=recipe), "1")
    template = await bench.spare()
    drawn = []
    for _ in range(2):
        kernel = await bench.kernel(host=host, recipe=recipe)
        code = "import multiprocessing as m, numpy; numpy.random.state, bytes(m.current_process().authkey)"
        drawn.append(await ask(kernel, code))
        assert origin(kernel) == template
    (state, key), (other_state, other_key) = drawn
    assert state != other_state
    assert key != other_key


async def test_what_is_no_template_costs_no_kernel(bench: WarmBench) -> None:
    """An interpreter that starts something else entirely, for ever."""
    launch = Launch(
        argv=(sys.executable, "-I", "-S", FAKE),
        env={"FAKE": "", "PATH": os.environ["PATH"]},
        cwd=bench.cwd,
        warm=True,
        versions=frozenset({"dev"}),
    )
    for _ in range(3):
        async with opened(bench, launch) as kernel:
            assert kernel.ready is not None
        await until(lambda: not bench.templates._tasks, "the end of what is no template")
    key = key_of(launch.argv, launch.env, launch.cwd)
    assert bench.templates._failures[key] == templates.FAILURES


def opened(bench: WarmBench, launch: Launch) -> contextlib.AbstractAsyncContextManager[Kernel]:
    on_background: Callable[[OutputEvent], None] = bench.background.append
    return open_kernel(
        bench.processes,
        launch,
        templates=bench.templates,
        host_requests=no_requests,
        on_background=on_background,
        on_state=lambda _: None,
        clock=SystemClock(),
        waits=QUICK,
    )


async def test_a_folder_that_is_gone_is_said_as_by_a_cold_start(bench: WarmBench) -> None:
    kernel = await bench.kernel(host=bench.host())
    await ask(kernel, "1")
    await bench.spare()
    lost = await bench.kernel(host=bench.host(), cwd=bench.cwd / "no" / "such")
    with pytest.raises(KernelUnavailable, match="cannot be started"):
        await ask(lost, "1")


async def test_an_environment_too_large_for_a_message_starts_cold(bench: WarmBench) -> None:
    recipe = Recipe(env={f"LONG_{n}": "x" * 60_000 for n in range(12)})
    kernel = await bench.kernel(host=bench.host(), recipe=recipe)
    await ask(kernel, "1")
    await bench.spare()
    kernel.kill()
    assert await ask(kernel, "import os; len(os.environ['LONG_7'])") == 60000
    assert origin(kernel) == os.getpid()


async def test_packages_that_were_installed_meanwhile_are_seen(
    bench: WarmBench, tmp_path: Path
) -> None:
    """A foreign interpreter, served by an overlay; a path file acts at a start only."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    environ = {k: v for k, v in os.environ.items() if k != "RLM_KERNEL_PYTHON"}
    host = bench.host(environ=environ)
    recipe = Recipe(python=str(folder))
    kernel = await bench.kernel(host=host, recipe=recipe)
    await ask(kernel, "1")
    template = await bench.spare()
    kernel.kill()
    await ask(kernel, "1")
    assert origin(kernel) == template
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "shop.py").write_text("price = 42\n")
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "shop.pth").write_text(f"{shop}\n")
    await bench.spare()
    kernel.kill()
    assert await ask(kernel, "import shop; shop.price") == 42
    assert origin(kernel) == os.getpid()
    assert await bench.spare(template) != template


async def test_sixteen_at_once(bench: WarmBench) -> None:
    await ask(await bench.kernel(host=bench.host()), "1")
    template = await bench.spare()
    kernels = [await bench.kernel(host=bench.host(), persistent=False) for _ in range(16)]
    results = await asyncio.gather(*(ask(k, f"{n} * {n}") for n, k in enumerate(kernels)))
    assert results == [n * n for n in range(16)]
    assert {origin(k) for k in kernels} == {template}
    assert len({k.pid for k in kernels}) == 16


async def test_after_a_kill_a_spare_takes_over_with_the_last_snapshot(bench: WarmBench) -> None:
    kernel = await bench.kernel(host=bench.host())
    run = Run(kernel)
    await run("x = [1, 2]; y = x")
    await kernel.snapshot()
    template = await bench.spare()
    stuck = asyncio.create_task(run("import os; _ = os.write(1, b'go'); sum(range(10**13))"))
    await until(lambda: "go" in run.text)
    kernel.interrupt()
    outcome = await in_time(stuck)
    assert (outcome.status, outcome.kernel_killed) == ("interrupted", True)
    outcome = await run("x is y, x")
    assert outcome.result == "(True, [1, 2])"
    assert outcome.revival.reason == "killed"
    assert origin(kernel) == template


WITNESS = """
import os
class Witness:
    def __reduce__(self):
        return os.path.exists, (f"/proc/{os.getpid()}",)
seen = Witness()
"""


async def test_a_spare_acts_only_once_the_killed_kernel_can_act_no_more(
    bench: WarmBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ready before: the guard, which would end the killed one, does not answer here."""
    monkeypatch.setattr(spawn, "GUARD_ANSWER_S", 0.5)
    kernel = await bench.kernel(host=bench.host())
    await ask(kernel, WITNESS)
    await kernel.snapshot()
    template = await bench.spare()
    old = kernel.pid
    assert old is not None
    os.kill(facts.process(old).parent, signal.SIGSTOP)
    kernel.kill()
    assert await ask(kernel, "seen") is False, "when the names came back"
    assert origin(kernel) == template


async def test_a_spare_that_was_killed_costs_nothing(bench: WarmBench) -> None:
    kernel = await bench.kernel(host=bench.host())
    await ask(kernel, "1")
    template = await bench.spare()
    (guard,) = (f for f in my_children() if f.parent == template)
    os.kill(guard.pid, signal.SIGKILL)
    await until(lambda: not alive(guard.pid))
    kernel.kill()
    assert await ask(kernel, "2") == 2
    assert origin(kernel) == template


async def test_the_doctor_says_who_owns_kernels(bench: WarmBench) -> None:
    async def said(**changes: Any) -> str:
        findings = await doctor(bench.host(**changes), bench.cwd)
        return next(f.text for f in findings if f.subject == "processes")

    assert "template and guard" in await said()
    assert "template" not in await said(templates=None)
    assert "guard" in await said(templates=None)


async def test_closing_the_templates_leaves_their_kernels_alone(bench: WarmBench) -> None:
    kernel = await bench.kernel(host=bench.host())
    await ask(kernel, "1")
    await bench.spare()
    kernel.kill()
    await ask(kernel, "x = 1")
    await bench.templates.aclose()
    assert await ask(kernel, "x") == 1
    kernel.kill()
    assert await ask(kernel, "2") == 2
