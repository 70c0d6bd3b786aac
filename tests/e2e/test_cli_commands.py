"""The other commands, each with what a person gets wrong."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlm_host.client import HostClient
from support.cli import cli_env, end, prompt, rlm_host, serve

LOOP = {
    "config": {"tenant": "t", "workspace": "w", "maxGenerations": 3},
    "step": {
        "kind": "command",
        "argv": [
            sys.executable,
            "-c",
            "import json, sys; g = json.load(sys.stdin)['generation'];"
            "print(json.dumps({'reward': [0.2, 0.6, 0.1][g], 'artifactId': f'a{g}'}))",
        ],
    },
}


def test_sessions_are_listed_and_shown(tmp_path: Path) -> None:
    text = prompt({"call": "print('from the cell')"}, {"text": "the end"})
    assert rlm_host(tmp_path, "run", text, "--model", "scripted/steps").returncode == 0
    (listed,) = json.loads(rlm_host(tmp_path, "session", "list", "--json").stdout)["sessions"]
    assert listed["turns"] == 1
    assert listed["id"] in rlm_host(tmp_path, "session", "list").stdout
    assert json.loads(rlm_host(tmp_path, "session", "list", "--archived", "--json").stdout) == {
        "sessions": [],
        "nextCursor": None,
    }
    shown = rlm_host(tmp_path, "session", "show", listed["id"]).stdout
    assert "from the cell" in shown
    assert "the end" in shown
    assert listed["name"] in shown
    whole = json.loads(rlm_host(tmp_path, "session", "show", listed["id"], "--json").stdout)
    assert [item["type"] for item in whole["items"]] == ["userMessage", "replCell", "agentMessage"]
    missing = rlm_host(tmp_path, "session", "show", "nobody")
    assert missing.returncode == 1
    assert "[sessionNotFound]" in missing.stderr


def test_models_and_keys(tmp_path: Path) -> None:
    assert "scripted/steps" in rlm_host(tmp_path, "models").stdout
    assert "no key" in rlm_host(tmp_path, "models", "--all", "--limit", "500").stdout
    secret = "sk-canary-0123456789"
    kept = rlm_host(tmp_path, "auth", "set", "openai", given=f"{secret}\n")
    assert kept.returncode == 0
    file = tmp_path / "rlm/auth.json"
    assert file.stat().st_mode & 0o777 == 0o600
    states = json.loads(rlm_host(tmp_path, "auth", "status", "--json").stdout)
    assert {s["provider"]: s["status"] for s in states}["openai"] == "active"
    for args in (("auth", "status"), ("models", "--json"), ("doctor",)):
        done = rlm_host(tmp_path, *args)
        assert secret not in done.stdout + done.stderr
    assert rlm_host(tmp_path, "auth", "remove", "openai").returncode == 0
    again = rlm_host(tmp_path, "auth", "remove", "openai")
    assert again.returncode == 1
    assert "No key of openai" in again.stderr
    assert rlm_host(tmp_path, "auth", "set", "nobody", given="x").returncode == 1
    assert rlm_host(tmp_path, "auth", "set", "openai", given="\n").returncode == 1
    for log in (tmp_path / "rlm/logs").glob("*"):
        assert secret not in log.read_text()


def test_a_loop_is_run_watched_and_reported(tmp_path: Path) -> None:
    file = tmp_path / "loop.json"
    file.write_text(json.dumps(LOOP))
    done = rlm_host(tmp_path, "loop", "run", str(file))
    assert done.returncode == 0, done.stderr
    assert "best 0.6 a1" in done.stdout
    (run,) = json.loads(rlm_host(tmp_path, "loop", "list", "--json").stdout)["runs"]
    report = json.loads(rlm_host(tmp_path, "loop", "report", run["runId"], "--json").stdout)
    assert [g["action"] for g in report["generations"]] == ["accept", "accept", "reject"]
    assert "a1" in rlm_host(tmp_path, "loop", "report", run["runId"]).stdout
    assert json.loads(rlm_host(tmp_path, "loop", "show", run["runId"]).stdout)
    # a run that has ended is continued to the same end
    again = rlm_host(tmp_path, "loop", "run", run["runId"], "--csv")
    assert again.returncode == 0
    rows = again.stdout.splitlines()
    assert rows[0].startswith("generation,action,reason,reward,")
    assert [row.split(",")[6] for row in rows[1:]] == ["a0", "a1", "a2"]
    assert rlm_host(tmp_path, "loop", "report", run["runId"], "--csv").stdout == again.stdout


def test_a_loop_in_toml_is_paused_and_resumed(tmp_path: Path) -> None:
    file = tmp_path / "loop.toml"
    argv = json.dumps(LOOP["step"]["argv"])  # type: ignore[index]
    file.write_text(
        f'[config]\ntenant = "t"\nworkspace = "w"\nmaxGenerations = 3\n'
        f'[step]\nkind = "command"\nargv = {argv}\n'
    )
    assert rlm_host(tmp_path, "loop", "run", str(file)).returncode == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["loop", "run", "no-such-run"], "[runNotFound]"),
        (["loop", "report", "no-such-run"], "[runNotFound]"),
        (["loop", "cancel", "no-such-run"], "[runNotFound]"),
        (["loop", "run", "bad.json"], "[configInvalid]"),
        (["loop", "run", "list.json"], "[configInvalid]"),
        (["loop", "run", "wrong.json"], "[invalidParams]"),
    ],
)
def test_wrong_loops_are_refused(tmp_path: Path, args: list[str], said: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "wrong.json").write_text(json.dumps({**LOOP, "colour": 1}))
    done = rlm_host(tmp_path, *args)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_kernel_that_a_session_would_get(tmp_path: Path) -> None:
    assert rlm_host(tmp_path, "kernel", "path").stdout == f"{sys.executable}\n"
    done = rlm_host(tmp_path, "kernel", "doctor")
    assert done.returncode == 0
    assert sys.executable in done.stdout
    wrong = rlm_host(tmp_path, "kernel", "install", "--python", "/no/such/python")
    assert wrong.returncode == 1
    assert "[kernelUnavailable]" in wrong.stderr


def test_the_doctor_finds_and_mends(tmp_path: Path) -> None:
    env = cli_env(tmp_path)
    folder = Path(env["XDG_RUNTIME_DIR"]) / f"rlm-{os.getuid()}"
    folder.mkdir(mode=0o700)
    stale = folder / f"{'0' * 12}-{2**22 + 1}.sock"  # above every pid
    stale.touch()
    (tmp_path / "rlm").mkdir(mode=0o755)
    (tmp_path / "rlm").chmod(0o755)
    found = rlm_host(tmp_path, "doctor")
    assert found.returncode == 0
    assert "open to others" in found.stdout
    assert "1 of dead hosts" in found.stdout
    assert stale.exists()
    fixed = rlm_host(tmp_path, "doctor", "--fix")
    assert fixed.returncode == 0
    assert "removed 1 of killed hosts" in fixed.stdout
    assert list(folder.iterdir()) == []


def test_the_doctor_names_who_holds_sessions_and_what_is_damaged(tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    process = serve(tmp_path, socket)

    async def make() -> str:
        async with HostClient.attach(socket) as client:
            made = await client.session.create(cwd=str(tmp_path), options={"onDetach": "keep"})
            await client.loop.list()
            return made.session.id

    try:
        session_id = asyncio.run(make())
        found = rlm_host(tmp_path, "doctor")
        assert (found.returncode, found.stderr) == (0, "")
        assert f"1 in {tmp_path / 'rlm/sessions'}" in found.stdout
        assert f"process {process.pid} holds 1 sessions, among them {session_id}" in found.stdout
        assert "host.sqlite3 is whole" in found.stdout
    finally:
        end(process)
    for file in (tmp_path / "rlm").glob("*/*.sqlite3*"):
        file.write_bytes(b"not a database at all" * 100)
    found = rlm_host(tmp_path, "doctor")
    assert found.returncode == 1
    assert "holds" not in found.stdout
    assert "host.sqlite3 is damaged" in found.stdout
    assert "Nothing is lost" in found.stdout


def test_a_home_that_cannot_be_used_is_an_error_of_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "rlm").write_text("a file")
    done = rlm_host(tmp_path, "doctor")
    assert done.returncode == 1
    assert "ERROR" in done.stdout


def test_the_schema_is_the_one_in_the_repository(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert rlm_host(tmp_path, "schema").stdout == (root / "schemas/openrpc.json").read_text()
    out = tmp_path / "out"
    assert rlm_host(tmp_path, "schema", "--out", str(out)).returncode == 0
    for file in (root / "schemas").glob("*.json"):
        assert (out / "schemas" / file.name).read_text() == file.read_text()


def test_every_command_explains_itself(tmp_path: Path) -> None:
    listed = rlm_host(tmp_path, "--help").stdout
    commands = [line.split()[0] for line in listed.splitlines() if line[:2] == "  " != line[1:3]]
    assert {"run", "serve", "attach", "doctor", "loop"} <= set(commands)
    for command in commands:
        done = rlm_host(tmp_path, command, "--help")
        assert done.returncode == 0, command
        assert done.stdout.startswith("usage: rlm-host"), command


def test_a_broken_configuration_stops_every_command_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "rlm").mkdir()
    (tmp_path / "rlm/config.toml").write_text("colour = 1")
    for args in (
        ["models"],
        ["kernel", "path"],
        ["auth", "status"],
        ["run", "x", "--model", "y/z"],
    ):
        done = rlm_host(tmp_path, *args)
        assert done.returncode == 1, args
        assert "unknown key colour" in done.stderr, args


def test_stdout_that_is_closed_early_is_no_trace(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m rlm_host schema | head -c 10"],
        env=cli_env(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
