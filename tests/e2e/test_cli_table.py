"""Every command under every odd circumstance: an answer or one line that says why, never a trace."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support.cli import COMMAND, DEADLINE_S, cli_env, end, processes_of, prompt, rlm_host, wait_for

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "run: print('é' * 300)", "--model", "scripted/python"),
    "session list": ("session", "list"),
    "session show": ("session", "show", "nobody"),
    "models": ("models",),
    "auth status": ("auth", "status"),
    "auth remove": ("auth", "remove", "openai"),
    "loop list": ("loop", "list"),
    "kernel path": ("kernel", "path"),
    "doctor": ("doctor",),
    "schema": ("schema",),
    "stop": ("stop", "--all"),
    "attach": ("attach",),
    "attach --session": ("attach", "--session", "nobody"),
    "serve": ("serve", "--socket", "x" * 200),
}
FAILS = {"session show", "auth remove", "stop", "attach", "attach --session", "serve"}
"""They are asked for what does not exist here."""
NEEDS_NO_HOME = {"schema"}
NO_PLACE = "/sys/kernel/rlm"
"""Nobody can make a folder there, root neither."""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def run_all(env: Mapping[str, str], cwd: Path) -> dict[str, tuple[int, str, str]]:
    """Run every command, side by side; give exit codes and what they said."""
    running = {
        name: subprocess.Popen(
            [*COMMAND, *args],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name, args in COMMANDS.items()
    }
    done = {}
    try:
        for name, process in running.items():
            out, err = process.communicate(timeout=2 * DEADLINE_S)
            done[name] = process.returncode, out.decode(), err.decode()
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    return done


def check(done: Mapping[str, tuple[int, str, str]], failing: set[str]) -> None:
    for name, (code, out, err) in done.items():
        assert "Traceback" not in out + err, (name, err)
        assert code == (1 if name in failing else 0), (name, code, out, err)
        if code and name != "doctor":  # which says on stdout what is wrong
            *logged, line = err.strip().splitlines()
            assert name == "serve" or not logged, (name, err)
            assert line.startswith(f"rlm-host {COMMANDS[name][0]}: "), (name, err)
            assert line.endswith("."), (name, err)


CIRCUMSTANCES: dict[str, tuple[dict[str, str | None], set[str]]] = {
    "all at once, nothing there yet, an ascii terminal": (ASCII, FAILS),
    "no HOME, a narrow terminal without colour": (
        {"HOME": None, "COLUMNS": "12", "NO_COLOR": "1"},
        FAILS,
    ),
    "a home that cannot be made": (
        {"RLM_HOME": NO_PLACE},
        set(COMMANDS) - NEEDS_NO_HOME - {"models", "auth status", "kernel path"},
    ),
    "a home that is relative": ({"RLM_HOME": "here"}, set(COMMANDS) - NEEDS_NO_HOME),
}


@pytest.mark.parametrize(("changes", "failing"), CIRCUMSTANCES.values(), ids=list(CIRCUMSTANCES))
def test_no_circumstance_gives_a_trace(
    tmp_path: Path, changes: dict[str, str | None], failing: set[str]
) -> None:
    env: dict[str, str | None] = {**cli_env(tmp_path), **changes}
    check(run_all({k: v for k, v in env.items() if v is not None}, tmp_path), failing)


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "rlm").write_text("a file")
    done = run_all(cli_env(tmp_path), tmp_path)
    check(done, {name for name, (code, _, _) in done.items() if code})
    assert {"run", "doctor"} <= {name for name, (code, _, _) in done.items() if code == 1}
    assert (tmp_path / "rlm").read_text() == "a file"


@pytest.mark.parametrize(
    "args",
    [
        *([name, "--no-such-option"] for name in ("run", "demo", "serve", "attach", "stop")),
        *([name, "--no-such-option"] for name in ("session", "models", "auth", "loop", "kernel")),
        ["doctor", "--no-such-option"],
        ["schema", "more"],
        ["session"],
        ["session", "list", "--limit", "x"],
        ["run", "x"],
        ["run", "x", "--model", "a/b", "--cwd", "/no/such/folder"],
        ["attach", "--socket", "a", "--session", "b"],
        ["no-such-command"],
        ["--no-such-option"],
        ["--config"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_says_what_is_right(tmp_path: Path, args: Sequence[str]) -> None:
    done = rlm_host(tmp_path, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(("usage: rlm-host", "rlm-host: ")), done.stderr
    assert not (tmp_path / "rlm").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("models", "--json"),
        ("session", "list"),
        ("doctor",),
        ("run", "run: print('x' * 9000)", "--model", "scripted/python"),
        ("run", "run: print('x' * 9000)", "--model", "scripted/python", "--json"),
    ],
    ids=" ".join,
)
def test_a_reader_that_has_enough_ends_the_command_quietly(
    tmp_path: Path, args: Sequence[str]
) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" | head -c 1', "sh", *COMMAND, *args],
        env=cli_env(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (len(done.stdout), done.stderr) == (1, "")
    wait_for(lambda: processes_of(tmp_path / "rlm") == [], what="nothing is left running")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_run_in_order(tmp_path: Path, number: int, code: int) -> None:
    process = subprocess.Popen(
        [
            *(*COMMAND, "run", prompt({"call": "import time\nwhile True: time.sleep(0.01)"})),
            *("--model", "scripted/steps", "--json"),
        ],
        env=cli_env(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["method"] == "repl/status" and event["params"]["status"] == "busy":
                break
        process.send_signal(number)
        rest, said = process.communicate(timeout=DEADLINE_S)
    finally:
        end(process)
    assert process.returncode == code, said
    assert f"stopped by {signal.Signals(number).name}. What was acknowledged is in " in said
    assert '"status": "interrupted"' in rest, "the turn was ended, not abandoned"
    wait_for(lambda: processes_of(tmp_path / "rlm") == [], what="nothing is left running")


def test_colour_is_for_terminals_that_want_it(tmp_path: Path) -> None:
    coloured, plain = (in_terminal(tmp_path, **more) for more in ({}, {"NO_COLOR": "1"}))
    assert "\x1b[" in coloured
    assert "\x1b[3" not in plain
    assert "home" in plain


def in_terminal(tmp_path: Path, **more: str) -> str:
    """Give what the doctor writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "doctor"],
        env=cli_env(tmp_path, TERM="xterm-256color", **more),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    try:
        while data := read_terminal(ours):
            said += data
        assert process.wait(DEADLINE_S) == 0
    finally:
        os.close(ours)
        end(process)
    return said.decode()


def read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # everyone on the other side has gone
        return b""
