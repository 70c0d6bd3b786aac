"""`sandbox: workspace`: what a cell sees and reaches, that it obeys, and that nothing runs outside."""

import ast
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_host.kernels.cell import KernelStatus
from rlm_host.kernels.client import Waits
from rlm_host.kernels.doctor import kernel_path
from rlm_host.kernels.recipe import Recipe
from rlm_host.kernels.sandbox import View, arguments, interpreter_folders
from rlm_protocol.errors import KernelUnavailable
from support.processes import KernelBench, Run, in_time, my_children, until
from support.sandboxes import need_sandbox

pytestmark = pytest.mark.anyio

INSIDE = Recipe(sandbox="workspace")
PATIENT = Waits(interrupt_again_ms=60_000, interrupt_kill_ms=60_000)
"""Escalation must not do the work of the interrupt."""
GO = "import os; _ = os.write(1, b'go')\n"
CANARY = "sk-canary-5e1f"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[KernelBench]:
    async with KernelBench(tmp_path) as made:
        made.home.mkdir(mode=0o700)
        (made.home / "auth.json").write_text(CANARY)
        (made.cwd / "data.txt").write_text("work")
        yield made
    assert not my_children()


@pytest.fixture
async def run(bench: KernelBench) -> Run:
    need_sandbox()
    user = bench.home.parent / "user"
    (user / ".ssh").mkdir(parents=True)
    host = bench.host(
        waits=PATIENT,
        environ={
            **os.environ,
            "RLM_KERNEL_PYTHON": sys.executable,
            "HOME": str(user),
            "ANTHROPIC_API_KEY": CANARY,
        },
    )
    return Run(await bench.kernel(host=host, recipe=INSIDE))


async def value(run: Run, code: str) -> object:
    got = await run(code)
    assert got.error is None, got.error
    return ast.literal_eval(got.result)


TRY = """
import os
def attempt(path):
    try:
        with open(path, 'w') as file: file.write('x')
        return True
    except OSError: return False
"""


async def test_workspace_and_artifacts_are_written_and_nothing_else(
    bench: KernelBench, run: Run
) -> None:
    outside = bench.home.parent / "outside"
    outside.mkdir()
    await run(TRY)
    assert await value(run, "open('data.txt').read()") == "work"
    assert await value(run, "attempt('new.txt')")
    assert (bench.cwd / "new.txt").read_text() == "x"
    assert await value(run, "attempt(os.environ['RLM_SESSION_DIR'] + '/artifact')")
    assert (bench.session_dir / "artifact").read_text() == "x"
    refused = ["/usr/x", "/etc/x", "/x", f"{outside}/x", f"{sys.prefix}/x"]
    assert await value(run, f"[path for path in {refused} if attempt(path)]") == []
    assert await value(run, "attempt('/tmp/rlm-private') and attempt(os.environ['HOME'] + '/x')")
    assert "rlm-private" not in os.listdir("/tmp")
    await run(f"attempt({str(bench.home / 'x')!r})")  # at most in a private folder of that name
    assert not (bench.home / "x").exists()
    assert not list(outside.iterdir())
    assert {p.name for p in (bench.home.parent / "user").iterdir()} == {".ssh"}


async def test_what_is_secret_is_not_there(bench: KernelBench, run: Run) -> None:
    auth = str(bench.home / "auth.json")
    assert await value(run, f"import os; os.path.exists({auth!r})") is False
    assert await value(run, f"sorted(os.listdir({str(bench.home)!r}))") == [
        "overlays",
        "session-artifacts",
    ]
    assert await value(run, "os.listdir(os.environ['HOME'])") == []
    pattern = f"{CANARY[:-1]}[{CANARY[-1]}]"  # does not match itself
    places = "/proc/[0-9]*/environ /proc/[0-9]*/cmdline /tmp /run /var ~ ."
    search = f"grep -rlsa {pattern} {places}; true"
    got = await run(f"import subprocess; subprocess.getoutput({search!r})")
    assert got.result == "''"


async def test_processes_of_the_machine_are_out_of_reach(run: Run) -> None:
    pids = await value(run, "import os; sorted(int(n) for n in os.listdir('/proc') if n.isdigit())")
    assert isinstance(pids, list)
    assert len(pids) <= 4
    kill = f"import os\ntry: os.kill({os.getpid()}, 0)\nexcept ProcessLookupError: print('none')"
    await run(kill)
    assert "none" in run.text
    assert (
        await value(run, "int(open('/proc/self/status').read().split('CapEff:')[1][:17], 16)") == 0
    )


CONNECT = """
import socket
def reach(port):
    try:
        with socket.create_connection(('127.0.0.1', port), 5): return True
    except OSError: return False
"""


@pytest.mark.parametrize("network", [None, True])
async def test_the_network_is_there_only_when_asked_for(
    bench: KernelBench, network: bool | None
) -> None:
    need_sandbox()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = Run(await bench.kernel(recipe=Recipe(sandbox="workspace", network=network)))
        await run(CONNECT)
        assert await value(run, f"reach({port})") is bool(network)
        own = "s = socket.create_server(('127.0.0.1', 0)); reach(s.getsockname()[1])"
        assert await value(run, own), "a cell's own servers work"
        assert (await run("s.close()")).error is None


HANGING = {
    "a catastrophic re": "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')",
    "a loop": "while True: pass",
    "await": "import asyncio; await asyncio.sleep(3600)",
    "a subprocess": "import subprocess; subprocess.run(['sleep', '3600'])",
}


@pytest.mark.parametrize("kind", HANGING)
async def test_an_interrupt_ends_the_cell_and_the_sandbox_lives_on(run: Run, kind: str) -> None:
    await run("before = 1; open('/tmp/mine', 'w').close()")
    outside = {fact.pid for fact in my_children()}

    def interrupt(event: object) -> None:
        if "go" in getattr(event, "text", ""):
            run.kernel.interrupt()

    got = await run(GO + HANGING[kind], on_event=interrupt)
    assert (got.status, got.kernel_killed) == ("interrupted", False)
    assert await value(run, "import os; before, os.path.exists('/tmp/mine')") == (1, True)
    assert {fact.pid for fact in my_children()} >= outside


async def test_a_killed_sandbox_is_revived_from_its_snapshot(run: Run) -> None:
    await run("import subprocess; kept = 7; _ = subprocess.Popen(['sleep', '3600'])")
    assert "kept" in (await run.kernel.snapshot()).saved
    run.kernel.kill()
    await until(
        lambda: run.kernel.status is KernelStatus.ABSENT and not my_children(),
        "the end of the sandbox",
    )
    got = await run("kept")
    assert (got.result, got.revival.reason) == ("7", "killed")


async def test_the_managed_environment_runs_inside(bench: KernelBench) -> None:
    need_sandbox()
    environ = {k: v for k, v in os.environ.items() if k != "RLM_KERNEL_PYTHON"}
    run = Run(await bench.kernel(host=bench.host(environ=environ), recipe=INSIDE))
    prefix = await value(run, "import sys; sys.prefix")
    assert str(prefix).startswith(str(bench.home / "kernel-venvs"))
    await run(TRY)
    assert await value(run, "attempt(sys.prefix + '/x')") is False


async def test_the_managed_environment_runs_inside_a_workspace_that_holds_the_home(
    tmp_path: Path,
) -> None:
    need_sandbox()
    environ = {k: v for k, v in os.environ.items() if k != "RLM_KERNEL_PYTHON"}
    async with KernelBench(tmp_path) as bench:
        bench.home = bench.cwd / ".rlm"
        environ["HOME"] = str(bench.cwd)
        run = Run(await bench.kernel(host=bench.host(environ=environ), recipe=INSIDE))
        prefix = await value(run, "import sys; sys.prefix")
        assert str(prefix).startswith(str(bench.home / "kernel-venvs"))


async def test_a_home_inside_the_workspace_is_hidden(tmp_path: Path) -> None:
    need_sandbox()
    async with KernelBench(tmp_path) as bench:
        bench.home = bench.cwd / ".rlm"
        bench.home.mkdir()
        (bench.home / "auth.json").write_text(CANARY)
        session_dir = bench.home / "session-artifacts" / "s1"
        run = Run(await bench.kernel(recipe=INSIDE, session_dir=session_dir))
        seen = await value(run, "import os; sorted(os.listdir('.rlm')), os.path.isdir('.rlm/keys')")
        assert seen == (["overlays", "session-artifacts"], False)
        await run("open(os.environ['RLM_SESSION_DIR'] + '/x', 'w').close()")
        assert (session_dir / "x").exists()


def listen(server: socket.socket, path: Path) -> None:
    server.bind(os.path.relpath(path))  # a socket's path must be short
    server.listen()


async def test_a_hosts_socket_inside_the_workspace_is_hidden(bench: KernelBench) -> None:
    """Who attaches to the host can have a session without a sandbox."""
    need_sandbox()
    folder, named = bench.cwd / "rlm-0", bench.cwd / "named.sock"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        for server, path in ((one, folder / "host.sock"), (two, named)):
            listen(server, path)
        run = Run(await bench.kernel(recipe=INSIDE, host=bench.host(hidden=(folder, named))))
        assert await value(run, "import os; os.listdir('rlm-0')") == []
        attach = "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('named.sock')"
        assert (await run(attach)).error.ename == "ConnectionRefusedError"


async def test_a_workspace_that_is_reached_by_a_link_is_there_by_both_names(
    tmp_path: Path,
) -> None:
    need_sandbox()
    async with KernelBench(tmp_path) as bench:
        link = tmp_path / "link"
        link.symlink_to(bench.cwd)
        run = Run(await bench.kernel(recipe=INSIDE, cwd=link))
        await run("open('here', 'w').close()")
        there = f"import os; os.path.exists({str(bench.cwd / 'here')!r}), os.path.exists({str(link / 'here')!r})"
        assert await value(run, there) == (True, True)


# --- never outside, never without -----------------------------------------------------------------


async def refused(bench: KernelBench, recipe: Recipe = INSIDE, **more: object) -> KernelUnavailable:
    with pytest.raises(KernelUnavailable) as why:
        await Run(await bench.kernel(recipe=recipe, host=bench.host(**more)))("1")
    return why.value


def with_path(*folders: Path) -> dict[str, str]:
    return {
        **os.environ,
        "RLM_KERNEL_PYTHON": sys.executable,
        "PATH": os.pathsep.join(map(str, folders)),
    }


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


async def test_without_bubblewrap_nothing_runs_and_the_error_says_how_to_get_it(
    bench: KernelBench, tmp_path: Path
) -> None:
    why = await refused(bench, environ=with_path(tmp_path / "empty"))
    assert "apt install bubblewrap" in str(why)
    assert why.data["sandbox"] == "workspace"


async def test_a_system_that_forbids_sandboxes_is_named(bench: KernelBench, tmp_path: Path) -> None:
    script(tmp_path / "bin" / "bwrap", "echo 'setting up uid map: Permission denied' >&2; exit 1")
    why = await refused(bench, environ=with_path(tmp_path / "bin", Path("/usr/bin")))
    assert "user namespaces" in str(why)
    assert "Permission denied" in why.data["why"]


async def test_a_workspaces_own_bubblewrap_is_not_run(bench: KernelBench) -> None:
    marker = bench.cwd / "ran"
    script(bench.cwd / "bin" / "bwrap", f"touch {marker}")
    await refused(bench, environ=with_path(bench.cwd / "bin", Path("bin")))
    assert not marker.exists()


async def test_a_workspaces_interpreter_never_runs_outside(
    bench: KernelBench, tmp_path: Path
) -> None:
    need_sandbox()
    escaped, seen = tmp_path / "escaped", bench.cwd / "seen"
    script(bench.cwd / ".venv" / "bin" / "python", f"touch {seen} {escaped}; exit 3")
    (bench.cwd / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    environ = {k: v for k, v in os.environ.items() if k != "RLM_KERNEL_PYTHON"}
    why = await refused(bench, environ=environ)
    assert "cannot be run" in str(why)
    assert seen.exists(), "it was asked inside"
    assert not escaped.exists()
    seen.unlink()
    host = bench.host(environ=environ, defaults=INSIDE)
    with pytest.raises(KernelUnavailable):  # the command line's questions obey the setting too
        await kernel_path(host, bench.cwd)
    assert seen.exists()
    assert not escaped.exists()


async def test_a_package_of_the_workspaces_interpreter_never_runs_outside(
    bench: KernelBench, tmp_path: Path
) -> None:
    """A foreign environment gets its overlay without being started for it."""
    need_sandbox()
    import venv

    escaped = tmp_path / "escaped"
    venv.create(bench.cwd / ".venv", with_pip=False, symlinks=True)
    site = next((bench.cwd / ".venv").glob("lib/python3*/site-packages"))
    (site / "x.pth").write_text("import sys; import evil\n")
    (site / "evil.py").write_text(
        f"try: open({str(escaped)!r}, 'w').close()\nexcept OSError: pass\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "RLM_KERNEL_PYTHON"}
    run = Run(await bench.kernel(recipe=INSIDE, host=bench.host(environ=environ)))
    got = await run("import sys; sys.prefix, 'evil' in sys.modules")
    assert got.result == repr((str(bench.cwd / ".venv"), True))
    assert not escaped.exists()


@pytest.mark.parametrize("workspace", ["/", "home"])
async def test_a_workspace_that_holds_what_must_be_hidden_is_refused(
    bench: KernelBench, workspace: str
) -> None:
    folder = bench.home if workspace == "home" else Path(workspace)
    view = View(home=bench.home, user_home=None, workspace=folder)
    with pytest.raises(KernelUnavailable):
        arguments(view)


def test_a_link_of_the_workspace_shows_only_installations_of_python(tmp_path: Path) -> None:
    precious, workspace = tmp_path / "precious", tmp_path / "work"
    (precious / "bin").mkdir(parents=True)
    shutil.copy("/bin/sh", precious / "bin" / "python")
    (workspace / ".venv" / "bin").mkdir(parents=True)
    (workspace / ".venv" / "bin" / "python").symlink_to(precious / "bin" / "python")
    (workspace / ".venv" / "pyvenv.cfg").write_text(f"home = {precious}/bin\n")
    python, home = workspace / ".venv" / "bin" / "python", tmp_path / "home"
    assert interpreter_folders(python, workspace, home) == ()
    (precious / "lib" / "python3.12").mkdir(parents=True)
    (precious / "lib" / "python3.12" / "os.py").touch()
    assert interpreter_folders(python, workspace, home) == (precious,)


async def test_a_childs_folder_that_is_a_link_leads_nowhere(
    bench: KernelBench, tmp_path: Path
) -> None:
    """A parent's cell may put a link where its child's folder was."""
    outside = tmp_path / "outside"
    outside.mkdir()
    bench.session_dir.mkdir(parents=True)
    (bench.session_dir / "sub-1").symlink_to(outside)
    with pytest.raises(KernelUnavailable, match="sub-1"):
        await Run(await bench.kernel(recipe=INSIDE, session_dir=bench.session_dir / "sub-1"))("1")
    assert not list(outside.iterdir())


async def test_a_kernel_that_rests_is_let_go_and_comes_back_inside(run: Run) -> None:
    await run("x = 1")
    assert await in_time(run.kernel.unload())
    assert await value(run, "x") == 1
