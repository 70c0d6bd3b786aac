"""Which Python a kernel gets, and that nobody's environment is touched. No test needs a network."""

import asyncio
import os
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rlm_host import paths
from rlm_host.kernels import installer, managed, overlay, wheel
from rlm_host.kernels.building import read_marker
from rlm_host.kernels.doctor import doctor, install, kernel_path
from rlm_host.kernels.interpreters import Interpreter, Interpreters
from rlm_host.kernels.managed import folder_of, python_of
from rlm_host.kernels.recipe import Recipe
from rlm_protocol.errors import KernelUnavailable
from support.processes import KernelBench, Run, in_time, my_children, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[KernelBench]:
    async with KernelBench(tmp_path) as made:
        yield made
    assert not my_children()


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without pip and without anything of ours."""
    folder = tmp_path_factory.mktemp("foreign") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the slowest step where a test is not about it."""

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(managed, "compile_all", nothing)
    monkeypatch.setattr(overlay, "compile_all", nothing)


without_compiling = pytest.mark.usefixtures("uncompiled")


def plain(bench: KernelBench, **more: object) -> object:
    """A host whose user has not named an interpreter."""
    environ = {k: v for k, v in os.environ.items() if k != "RLM_KERNEL_PYTHON"}
    return bench.host(environ=environ, **more)


def state_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What would change if anything in the folder were touched."""
    return {
        str(p.relative_to(folder)): (s.st_ino, s.st_mtime_ns, s.st_size)
        for p in sorted(folder.rglob("*"))
        for s in [p.lstat()]
    }


def site_of(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


@without_compiling
async def test_a_workspaces_venv_is_used_as_it_is(bench: KernelBench, empty_venv: Path) -> None:
    (bench.cwd / ".venv").symlink_to(empty_venv)
    (site_of(empty_venv) / "shop.py").write_text("price = 42\n")
    (bench.cwd / "rlm").mkdir()
    (bench.cwd / "rlm" / "__init__.py").write_text("raise SystemExit('not ours')\n")
    (bench.cwd / "msgspec.py").write_text("raise SystemExit('not ours')\n")
    before = state_of(empty_venv)
    kernel = await bench.kernel(host=plain(bench))
    run = Run(kernel)
    assert (await run("import shop; shop.price")).result == "42"
    venv_ = repr(str(bench.cwd / ".venv"))
    assert (await run("import sys, os; sys.prefix")).result == venv_
    assert (await run("os.environ['VIRTUAL_ENV']")).result == venv_
    ours = "[sys.modules[n].__file__ for n in ('rlm', 'rlm_protocol', 'msgspec')]"
    overlay_ = str(paths.overlays(bench.home))
    assert (await run(f"all(f.startswith({overlay_!r}) for f in {ours})")).result == "True"
    child = "subprocess.run([sys.executable, '-P', '-c', 'import rlm'], stderr=-1).stderr[-30:]"
    assert "No module named 'rlm'" in (await run(f"import subprocess; {child}")).result
    await run("x = 1; f = lambda: x")
    assert {"f", "shop", "x"} <= set((await kernel.snapshot()).saved)
    kernel.kill()
    assert (await run("f()")).result == "1"
    after = state_of(empty_venv)
    assert {n for n in after if "__pycache__" not in n} == set(before)
    site = str(site_of(empty_venv).relative_to(empty_venv))  # Python itself caches shop.py there
    assert all(after[name] == before[name] for name in before if name != site)


async def test_the_managed_environment_needs_no_network_and_is_made_once(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed, "find_uv", lambda _: None)
    monkeypatch.setattr(
        managed, "install_into", lambda *_: pytest.fail("it wants to install from an index")
    )
    host = plain(bench)
    runs = [
        Run(await bench.kernel(host=host, session_dir=bench.home / name, persistent=False))
        for name in ("one", "two")
    ]
    code = "import rlm, msgspec, dill, cloudpickle, sys; sys.prefix"
    outcomes = await asyncio.gather(*(run(code) for run in runs))
    folder = folder_of(bench.home, ())
    assert {o.result for o in outcomes} == {repr(str(folder))}
    marker = read_marker(folder)
    assert marker is not None
    assert marker.runtime == wheel.runtime().version
    assert (bench.home / "kernel-venv").resolve() == folder
    assert list(site_of(folder).glob("msgspec/__pycache__/*.pyc")), "it is not compiled"
    assert not list(site_of(folder).glob("rlm_protocol/conformance"))
    assert folder.parent.stat().st_mode & 0o077 == 0


async def test_two_versions_in_turn_touch_no_environment_and_no_running_kernel(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = wheel.runtime()
    digest = "0123456789ab"
    other = msgspec.structs.replace(
        ours,
        version=f"0.0.0+{digest}",
        digest=digest,
        files={**ours.files, "rlm/_build.py": f'VERSION = "0.0.0+{digest}"\n'.encode()},
    )
    hosts = {}
    states: dict[str, dict[str, tuple[int, int, int]]] = {}
    living: list[Run] = []
    for turn in range(20):
        version = (ours, other)[turn % 2]
        monkeypatch.setattr(wheel, "runtime", lambda version=version: version)
        host = hosts.setdefault(version.version, plain(bench))
        kernel = await bench.kernel(
            host=host, session_dir=bench.home / f"s{turn}", persistent=False
        )
        run = Run(kernel)
        assert (await run("import sys; mark = 7; sys.prefix")).result == repr(
            str(folder_of(bench.home, ()))
        )
        folder = folder_of(bench.home, ())
        assert state_of(folder) == states.setdefault(version.version, state_of(folder))
        if turn < 2:
            living.append(run)
        else:
            await kernel.aclose()
    assert len(states) == 2
    for run in living:
        assert (await run("mark")).result == "7"
        assert run.kernel.revival is None
    monkeypatch.setattr(wheel, "runtime", lambda: ours)
    for version, state in states.items():
        monkeypatch.setattr(
            wheel, "runtime", lambda v=version: ours if v == ours.version else other
        )
        assert state_of(folder_of(bench.home, ())) == state


@without_compiling
async def test_what_was_added_survives_an_upgrade_or_is_named_as_lost(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Run(await bench.kernel(host=plain(bench), persistent=False))("1")
    site = site_of(folder_of(bench.home, ()))
    for name, record in (("shop", "shop.py,,\nshop-1.0.dist-info/METADATA,,\n"), ("mill", None)):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
        if record:
            (info / "RECORD").write_text(record)
        (site / f"{name}.py").write_text("price = 42\n")
    ours = wheel.runtime()
    newer = msgspec.structs.replace(
        ours,
        version="9.9.9+fff",
        files={**ours.files, "rlm/_build.py": b'VERSION = "9.9.9+fff"\n'},
    )
    monkeypatch.setattr(wheel, "runtime", lambda: newer)
    run = Run(await bench.kernel(host=plain(bench), session_dir=bench.home / "2", persistent=False))
    assert (await run("import shop; shop.price")).result == "42"
    marker = read_marker(folder_of(bench.home, ()))
    assert marker is not None
    assert (marker.kept, marker.lost) == (("shop==1.0",), ("mill==1.0",))
    findings = await doctor(plain(bench), bench.cwd)
    assert any("mill==1.0" in f.text for f in findings)


@without_compiling
async def test_without_the_venv_module_uv_makes_the_environment(
    bench: KernelBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = script(
        tmp_path / "python",
        f'for a; do [ "$a" = venv ] && echo "No module named venv" >&2 && exit 1; done\n'
        f'exec {sys.executable} "$@"',
    )
    monkeypatch.setattr(sys, "_base_executable", base)
    monkeypatch.setattr(managed, "find_uv", lambda _: None)
    run = Run(await bench.kernel(host=plain(bench), persistent=False))
    with pytest.raises(KernelUnavailable, match="Install Python's venv module") as refused:
        await run("1")
    assert "No module named venv" in refused.value.data["why"]
    uv = script(
        tmp_path / "uv",
        f'for a; do last="$a"; done\nexec {sys.executable} -m venv --without-pip "$last"',
    )
    monkeypatch.setattr(managed, "find_uv", lambda _: uv)
    assert (await run("1+1")).result == "2"


@without_compiling
async def test_remains_of_a_dead_host_are_made_anew(bench: KernelBench) -> None:
    folder = folder_of(bench.home, ())
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("half made")
    (folder.parent / f"{folder.name}.lock").write_text("")
    run = Run(await bench.kernel(host=plain(bench), persistent=False))
    assert (await run("1+1")).result == "2"
    # Its Python was uninstalled since: made anew as well.
    await run.kernel.aclose()
    python_of(folder).unlink()
    python_of(folder).symlink_to("/no/such/python")
    again = Run(await bench.kernel(host=plain(bench), persistent=False))
    assert (await again("1+1")).result == "2"


async def test_a_place_that_cannot_be_written_is_said(bench: KernelBench) -> None:
    bench.home.mkdir()
    (bench.home / "kernel-venvs").write_text("a file in the way")
    with pytest.raises(KernelUnavailable, match="cannot be written"):
        await Run(await bench.kernel(host=plain(bench), persistent=False))("1")


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


OLD = 'echo \'{"version": [3, 9, 2], "executable": "/old", "prefix": "/", "base_prefix": "/", "implementation": "CPython"}\''


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OLD, "3.11 or newer; this one is CPython 3.9.2"),
        (OLD.replace("CPython", "PyPy").replace("3, 9", "3, 11"), "this one is PyPy 3.11.2"),
        ("exit 1", "cannot be run"),
        ("echo hello", "cannot be run"),
        ("echo broken shim >&2; exit 127", "broken shim"),
    ],
)
async def test_an_interpreter_that_cannot_serve_is_refused_with_what_helps(
    bench: KernelBench, tmp_path: Path, text: str, message: str
) -> None:
    python = script(tmp_path / "python", text)
    for host, recipe in (
        (bench.host(environ={**os.environ, "RLM_KERNEL_PYTHON": python}), Recipe()),
        (bench.host(), Recipe(python=python)),
    ):
        run = Run(await bench.kernel(host=host, recipe=recipe))
        with pytest.raises(KernelUnavailable) as refused:
            await run("1")
        assert message in str(refused.value)
        assert "RLM_KERNEL_PYTHON=" in str(refused.value)
        with pytest.raises(KernelUnavailable):
            await run("1")  # and again: nothing is substituted
        await run.kernel.aclose()


@pytest.mark.parametrize(
    "python", ["/bin/false", "/no/such/python", "no-such-python", "gone/.venv"]
)
async def test_what_is_no_interpreter_is_refused_at_once(bench: KernelBench, python: str) -> None:
    run = Run(await bench.kernel(recipe=Recipe(python=python)))
    with pytest.raises(KernelUnavailable):
        await run("1")
    assert run.kernel.status == "absent"


async def test_names_on_the_path_venv_folders_and_relative_paths_are_found(
    bench: KernelBench, empty_venv: Path
) -> None:
    (bench.cwd / "env").symlink_to(empty_venv)
    path = f"{empty_venv}/bin{os.pathsep}{os.environ['PATH']}"
    host = bench.host(environ={**os.environ, "PATH": path})
    for python, expected in (
        ("./env", bench.cwd / "env"),
        ("./env/bin/python", bench.cwd / "env"),
        ("python", empty_venv),
    ):
        found = await kernel_path(host, bench.cwd, Recipe(python=python))
        assert found == expected / "bin" / "python"


def unlike_ours(**more: object) -> Interpreter:
    fields = {"executable": "/x/python", "version": (3, 99, 0), "prefix": "/", "base_prefix": "/"}
    return Interpreter(**{**fields, "abi": "cpython-399", **more})


async def test_another_abi_without_uv_is_refused_with_the_command_that_helps(
    bench: KernelBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "find_uv", lambda _: None)
    host = bench.host()
    make = {"home": host.home, "environ": {}, "processes": host.processes, "clock": host.clock}
    with pytest.raises(KernelUnavailable, match="rlm-host kernel install --python /x/python"):
        await overlay.ensure_overlay(unlike_ours(), **make)
    left = [p for p in paths.overlays(host.home).iterdir() if p.suffix != ".lock"]
    assert left == []


@without_compiling
async def test_another_abi_gets_its_compiled_part_once(
    bench: KernelBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = script(
        tmp_path / "uv",
        'for a; do case "$p" in --target) t="$a";; esac; p="$a"; done\n'
        f'mkdir -p "$t/msgspec"; echo "$@" >> {tmp_path}/calls',
    )
    monkeypatch.setattr(installer, "find_uv", lambda _: uv)
    host = bench.host()
    make = {"home": host.home, "environ": {}, "processes": host.processes, "clock": host.clock}
    other = unlike_ours(executable=sys.executable)
    first = await overlay.ensure_overlay(other, **make)
    assert await overlay.ensure_overlay(other, **make) == first
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    assert f"msgspec=={wheel.runtime().pins['msgspec']}" in (tmp_path / "calls").read_text()
    assert (first / "packages" / "msgspec").exists()
    assert (first / "packages" / "dill").exists()
    # One that has a msgspec of its own needs nothing compiled, whatever its ABI.
    own = unlike_ours(executable=sys.executable, packages=wheel.runtime().pins)
    pure = await overlay.ensure_overlay(own, **make)
    assert pure != first
    assert not (pure / "packages" / "msgspec").exists()


def test_requirements_come_from_the_user_only_in_the_tested_range() -> None:
    pins = wheel.runtime().pins
    assert overlay.missing(unlike_ours()) == ("msgspec", "dill", "cloudpickle")
    assert overlay.missing(unlike_ours(packages=pins)) == ()
    assert overlay.missing(unlike_ours(packages=overlay.LOWEST)) == ()
    too_old = {"msgspec": "0.19.9", "dill": "0.3.9", "cloudpickle": "3.0.1"}
    too_new = {"msgspec": "99.0", "dill": "99.0", "cloudpickle": "99.0rc1"}
    for packages in (too_old, too_new, dict.fromkeys(pins, "nonsense")):
        assert overlay.missing(unlike_ours(packages=packages)) == tuple(wheel.PINNED)


@without_compiling
async def test_install_makes_ready_and_says_where(bench: KernelBench, empty_venv: Path) -> None:
    host = plain(bench)
    findings = await doctor(host, bench.cwd)
    assert any("rlm-host kernel install" in (f.help or "") for f in findings)
    assert await kernel_path(host, bench.cwd) == python_of(folder_of(bench.home, ()))
    assert not bench.home.joinpath("kernel-venvs").exists()
    folder = await in_time(install(host, bench.cwd))
    assert folder == folder_of(bench.home, ())
    assert read_marker(folder) is not None
    made = await in_time(install(host, bench.cwd, str(empty_venv)))
    assert (made / "boot.py").exists()
    findings = await doctor(host, bench.cwd)
    assert any(f.subject == "environment" and f.level == "ok" for f in findings)
    assert not any(f.level == "error" for f in findings)


async def test_doctor_names_what_is_shadowed_and_what_cannot_run(
    bench: KernelBench, empty_venv: Path, tmp_path: Path
) -> None:
    (bench.cwd / ".venv").symlink_to(empty_venv)
    info = site_of(empty_venv) / "dill-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dill\nVersion: 99.0\n")
    findings = await doctor(plain(bench), bench.cwd)
    shadowed = next(f for f in findings if f.subject == "dill")
    assert shadowed.level == "warning"
    assert "99.0" in shadowed.text
    broken = {**os.environ, "RLM_KERNEL_PYTHON": script(tmp_path / "python", "exit 1")}
    findings = await doctor(bench.host(environ=broken), bench.cwd)
    assert [f.level for f in findings if f.subject.startswith("interpreter")] == ["error"]
    dev = await doctor(bench.host(), bench.cwd)
    assert any("checkout" in f.text for f in dev)


async def test_an_interpreter_is_asked_again_only_when_it_has_changed(
    bench: KernelBench, empty_venv: Path
) -> None:
    known = Interpreters()
    ask = {"env": {"PATH": os.environ["PATH"]}, "packages": ("cloudpickle",)}
    python = str(empty_venv / "bin" / "python")
    first = await known.look_at(bench.processes, python, **ask)
    assert await known.look_at(bench.processes, python, **ask) is first
    info = site_of(empty_venv) / "cloudpickle-3.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloudpickle\nVersion: 3.1.0\n")
    second = await known.look_at(bench.processes, python, **ask)
    assert (first.packages, second.packages) == ({}, {"cloudpickle": "3.1.0"})
    info.joinpath("METADATA").unlink()
    info.rmdir()


@without_compiling
async def test_a_place_that_another_is_making_is_waited_for(bench: KernelBench) -> None:
    folder = folder_of(bench.home, ())
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import fcntl, pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1]); path.parent.mkdir(parents=True)\n"
        "file = path.open('w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.read()",
        f"{folder}.lock",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    await in_time(holder.stdout.readline())
    call = asyncio.create_task(Run(await bench.kernel(host=plain(bench), persistent=False))("1"))
    await until(lambda: bench.statuses)
    await asyncio.sleep(0.2)
    assert not folder.exists()
    holder.kill()  # its lock ends with it
    await holder.wait()
    assert (await in_time(call)).result == "1"
