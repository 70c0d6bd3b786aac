"""Looking on while a run goes on, beginning a run as another one began, and a report as a page."""

import contextlib
import fcntl
import html.parser
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from rlm_host.faces import cli_loop
from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.stores.open import open_store
from support.cli import COMMAND, DEADLINE_S, cli_env, end, rlm_host, wait_for

REWARDS = (0.2, 0.6, 0.9, 0.1, 0.7, 0.95)
EVIL = "</td><script>alert('x')</script>"
PROGRAM = f"""
import os
from pathlib import Path
from rlm_host import LoopConfig, LoopObservation

config = LoopConfig("t", "w", max_generations=6, rollback_drop=0.5)

def step(ctx):
    while ctx.generation == 2 and not Path("go").exists() and not ctx.cancelled:
        ctx.heartbeat()
    reward = {REWARDS}[ctx.generation]
    return LoopObservation(reward=reward, artifact_id=f"a{{ctx.generation}}", live_reward=0.1 if ctx.generation == 3 else None)
"""
LINES = [
    "    0  accept          0.2  improved",
    "    1  accept          0.6  improved",
    "    2  accept          0.9  improved",
    "    3  rollback        0.1  live_regressed",
    "    4  accept          0.7  improved",
    "    5  accept         0.95  improved",
]
HEAD = "climb  completed  generation 6  best 0.95 a5  (max_generations)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "climb.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def finished(run_id: str = "climb", **more: object) -> None:
    """Make a run that is over."""

    def step(context) -> LoopObservation:
        n = context.generation
        return LoopObservation(
            reward=REWARDS[n],
            artifact_id=str(more.get("artifact", f"a{n}")),
            live_reward=0.1 if n == 3 else None,
        )

    with contextlib.closing(open_store("sqlite:r.db")) as store:
        config = LoopConfig("t", "w", max_generations=6, rollback_drop=0.5)
        loops = LoopKernel(store, config)
        loops.run(loops.submit(run_id), "w", step)


def started(tmp_path: Path, *args: str, stdout: int = subprocess.PIPE, **env: str):
    process = subprocess.Popen(
        [*COMMAND, "loop", *args, "--store", "sqlite:r.db"],
        env=cli_env(tmp_path) | env,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    return contextlib.closing(_Process(process))


class _Process:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def __getattr__(self, name: str):
        return getattr(self.process, name)

    def close(self) -> None:
        end(self.process)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def said(code: int, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert cli_loop.main(args) == code
    return capsys.readouterr().out


# --- watch ----------------------------------------------------------------------------------------


def test_a_finished_run_is_shown_at_once(folder: Path, capsys) -> None:
    finished()
    shown = said(0, capsys, "watch", "climb", "--store", "sqlite:r.db")
    assert shown.splitlines() == [*LINES, HEAD]


def test_another_process_is_watched_to_its_end(folder: Path) -> None:
    with started(folder, "run", "climb.py") as worker:
        wait_for(lambda: (folder / "r.db").exists(), what="the run")
        with started(folder, "watch", "climb") as watcher:
            seen = [watcher.stdout.readline().rstrip() for _ in range(2)]
            assert seen == LINES[:2]
            assert worker.poll() is None
            (folder / "go").touch()
            rest, errors = watcher.communicate(timeout=DEADLINE_S)
    assert (watcher.returncode, errors) == (0, "")
    assert rest.splitlines() == [*LINES[2:], HEAD]


def test_ctrl_c_ends_the_watching_and_not_the_run(folder: Path) -> None:
    with started(folder, "run", "climb.py") as worker:
        wait_for(lambda: (folder / "r.db").exists(), what="the run")
        with started(folder, "watch", "climb") as watcher:
            assert watcher.stdout.readline().rstrip() == LINES[0]
            watcher.send_signal(signal.SIGINT)
            _, errors = watcher.communicate(timeout=DEADLINE_S)
            assert watcher.returncode == 130
            assert errors.splitlines()[-1].startswith("rlm-host loop: stopped. The run goes on")
            assert "Traceback" not in errors
        assert worker.poll() is None
        (folder / "go").touch()
        assert worker.wait(DEADLINE_S) == 0


def test_a_reader_that_has_enough_is_no_error(folder: Path) -> None:
    with started(folder, "run", "climb.py"):
        wait_for(lambda: (folder / "r.db").exists(), what="the run")
        with started(folder, "watch", "climb") as watcher:
            watcher.stdout.readline()
            watcher.stdout.close()
            (folder / "go").touch()
            watcher.wait(DEADLINE_S)
            assert "Traceback" not in watcher.stderr.read()


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_narrow_terminal_is_not_overrun_and_a_dumb_one_gets_plain_lines(
    folder: Path, term: str
) -> None:
    finished()
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 14, 42, 0, 0))
    with started(folder, "watch", "climb", stdout=slave, TERM=term, COLUMNS="42") as watcher:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while chunk := os.read(master, 4096):
                shown += chunk
        assert watcher.wait(DEADLINE_S) == 0
    os.close(master)
    text = shown.decode()
    assert HEAD in text.replace("\r\n", "\n")
    if term == "dumb":
        assert "\x1b" not in text
        assert [line for line in text.splitlines() if line in LINES] == LINES
    else:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
        assert max(len(line) for line in plain if line != HEAD) <= 42
        assert any("●" in line for line in plain), "the plot"
        assert text.count("\x1b[?25h") >= text.count("\x1b[?25l"), "the cursor is shown again"


def test_a_hosts_own_run_is_watched_too(folder: Path) -> None:
    step = [sys.executable, "-c", "print('{\"reward\": 0.5}')"]
    config = {"tenant": "t", "workspace": "w", "maxGenerations": 2}
    submitted = {"config": config, "step": {"kind": "command", "argv": step}, "runId": "mine"}
    (folder / "mine.json").write_text(json.dumps(submitted))
    assert rlm_host(folder, "loop", "run", "mine.json").returncode == 0
    watched = rlm_host(folder, "loop", "watch", "mine")
    assert (
        watched.stdout.splitlines()[-1]
        == "mine  completed  generation 2  best 0.5   (max_generations)"
    )
    forked = rlm_host(folder, "loop", "fork", "mine", "0", "--as", "yours", "--json")
    assert json.loads(forked.stdout)["generation"] == 1
    assert rlm_host(folder, "loop", "run", "yours").returncode == 0
    page = rlm_host(folder, "loop", "report", "yours", "--json").stdout
    assert [claim["worker"].split()[0] for claim in json.loads(page)["claims"]] == ["rlm-host"]


# --- fork -----------------------------------------------------------------------------------------


def test_a_fork_goes_on_from_its_generation_with_the_same_file(folder: Path, capsys) -> None:
    finished()
    store = ("--store", "sqlite:r.db")
    forked = said(0, capsys, "fork", "climb", "2", "--as", "other", *store)
    assert forked == "other  running  generation 3  best 0.9 a2\n"
    assert said(0, capsys, "fork", "climb", "2", "--as", "other", *store) == forked
    (folder / "go").touch()
    ran = said(0, capsys, "run", "climb.py", "--run", "other", *store)
    assert ran.splitlines()[-1] == HEAD.replace("climb", "other")
    parent = json.loads(said(0, capsys, "report", "climb", *store, "--json"))
    child = json.loads(said(0, capsys, "report", "other", *store, "--json"))
    assert child["generations"] == parent["generations"]
    assert child["claims"][0]["token"] == 1
    unnamed = json.loads(said(0, capsys, "fork", "climb", "5", "--json", *store))
    assert len(unnamed["runId"]) == 32


@pytest.mark.parametrize("at", ["6", "-1"])
def test_a_fork_of_what_has_not_happened_is_refused(folder: Path, capsys, at: str) -> None:
    finished()
    assert cli_loop.main(("fork", "climb", "--store", "sqlite:r.db", "--", at)) == 1
    told = capsys.readouterr().err
    assert f"Run climb has not completed generation {at}, only those before 6." in told


def test_an_id_that_is_taken_is_refused(folder: Path, capsys) -> None:
    finished()
    finished("taken")
    assert cli_loop.main(("fork", "climb", "2", "--as", "taken", "--store", "sqlite:r.db")) == 1
    assert "[conflict]" in capsys.readouterr().err


# --- report ---------------------------------------------------------------------------------------


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_as_a_page_needs_nothing_else_and_trusts_no_artifact(folder: Path, capsys) -> None:
    finished(artifact=EVIL)
    page = _Page()
    page.feed(said(0, capsys, "report", "climb", "--store", "sqlite:r.db", "--html"))
    assert page.links == []
    assert "script" not in page.tags
    assert EVIL in page.text
    assert page.tags.count("circle") == len(REWARDS)
    assert page.tags.count("polyline") == 1
    assert "live_regressed" in page.text
    assert "CPython 3." in page.text


def test_a_run_without_a_generation_has_a_page_and_a_table(folder: Path, capsys) -> None:
    with contextlib.closing(open_store("sqlite:r.db")) as store:
        LoopKernel(store, LoopConfig("t", "w", max_generations=1)).submit("new")
    for form in ((), ("--html",), ("--csv",), ("--json",)):
        assert said(0, capsys, "report", "new", "--store", "sqlite:r.db", *form)
