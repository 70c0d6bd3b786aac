"""Runs `rlm-host` commands as a person does: a process, its output, its exit code."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.fake_client import host_env

COMMAND = (sys.executable, "-m", "rlm_host")
DEADLINE_S = 60


def cli_env(tmp_path: Path, **more: str) -> dict[str, str]:
    """A home and a folder for sockets of this test's own."""
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    return host_env(tmp_path, XDG_RUNTIME_DIR=str(run), COLUMNS="200", **more)


def rlm_host(
    tmp_path: Path, *args: str, given: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. No command may ever show a trace."""
    done = subprocess.run(
        [*COMMAND, *args],
        env=cli_env(tmp_path),
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=cwd or tmp_path,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def processes_of(home: Path) -> list[int]:
    """Give every process whose environment names this home: hosts, kernels, what cells start."""
    mark = str(home).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def serve(tmp_path: Path, socket: Path) -> "subprocess.Popen[str]":
    """Start a host on a socket and wait until it listens; `end` it."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--socket", str(socket)],
        env=cli_env(tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "serves on" in process.stderr.readline()
    return process


@contextlib.contextmanager
def serving(tmp_path: Path) -> Iterator[Path]:
    """Own a host for the length of the block; give the socket on which it serves."""
    path = tmp_path / "s.sock"
    process = serve(tmp_path, path)
    try:
        yield path
    finally:
        end(process)


def end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Make sure that it is gone."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait(DEADLINE_S)
    if process.stderr is not None:
        process.stderr.close()


def prompt(*steps: dict[str, object]) -> str:
    """The prompt that makes `scripted/steps` do these steps."""
    return json.dumps(list(steps))


def wait_for(condition: object, *, what: str, args: Sequence[object] = ()) -> None:
    """Wait until `condition(*args)` holds."""
    until, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition(*args):  # type: ignore[operator]
        assert time.monotonic() < until, what
        pause.wait(0.02)
