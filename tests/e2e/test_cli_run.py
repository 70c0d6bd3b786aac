"""`rlm-host run`: a prompt watched to its end, and every way to stop it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.cli import COMMAND, DEADLINE_S, cli_env, end, processes_of, prompt, rlm_host, wait_for

MODEL = ("--model", "scripted/steps")


def test_a_turn_is_shown_with_cell_result_and_cost(tmp_path: Path) -> None:
    text = prompt({"call": "print('seen')\n6 * 7"}, {"text": "the answer is 42"})
    done = rlm_host(tmp_path, "run", text, *MODEL)
    assert done.returncode == 0, done.stderr
    assert "seen" in done.stdout
    assert "=> 42" in done.stdout
    assert done.stdout.count("the answer is 42") == 1
    assert "cost $0.00" in done.stdout
    (journal,) = (tmp_path / "rlm/sessions").glob("*.jsonl")
    assert str(journal) in done.stdout
    assert processes_of(tmp_path / "rlm") == []
    assert (tmp_path / "rlm").stat().st_mode & 0o777 == 0o700


def test_json_lines_for_programs(tmp_path: Path) -> None:
    done = rlm_host(tmp_path, "run", "-", *MODEL, "--json", given=prompt({"text": "hello"}))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    methods = [line["method"] for line in lines[:-1]]
    assert methods[0] == "turn/started"
    assert methods.count("turn/completed") == 1
    assert lines[-1]["text"] == "hello"
    assert lines[-1]["status"] == "completed"
    assert lines[-1]["usage"]["own"]["responses"] == 1


def test_a_failing_cell_is_shown_and_the_turn_goes_on(tmp_path: Path) -> None:
    done = rlm_host(tmp_path, "run", prompt({"call": "1 / 0"}, {"text": "so be it"}), *MODEL)
    assert done.returncode == 0
    assert "ZeroDivisionError: division by zero" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["x", "--model", "nobody/none"], 1, "[modelUnavailable]"),
        (["x", "--model", "openai/gpt-5"], 1, "rlm-host"),
        (["x", "--model", "scripted/steps", "--cwd", "/no/such"], 2, "is not a folder"),
        (["x", *MODEL, "--thinking", "hard"], 1, "[invalidParams]"),
        (["x"], 2, "--model"),
        ([], 2, "prompt"),
        (["x", *MODEL, "--colour"], 2, "--colour"),
    ],
)
def test_what_a_person_gets_wrong_is_one_clear_line(
    tmp_path: Path, args: list[str], code: int, said: str
) -> None:
    done = rlm_host(tmp_path, "run", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert not list((tmp_path / "rlm/sessions").glob("*"))


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize(
    "step",
    [
        {"call": "import time\nwhile True: time.sleep(0.05)"},
        {"call": "import asyncio\nawait asyncio.sleep(600)"},
        {"call": "import subprocess\nsubprocess.run(['sleep', '600'])"},
    ],
    ids=["sync", "await", "subprocess"],
)
def test_ctrl_c_stops_it_with_code_130_and_leaves_nothing_running(
    tmp_path: Path, step: dict[str, object], presses: int
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", prompt(step, {"text": "late"}), *MODEL, "--json"],
        env=cli_env(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["method"] == "item/started" and event["params"]["item"]["type"] == "replCell":
                break
        wait_for(lambda: len(processes_of(tmp_path / "rlm")) >= 3, what="a kernel runs")
        began = time.monotonic()
        for _ in range(presses):
            os.killpg(process.pid, signal.SIGINT)
        rest, said = process.communicate(timeout=DEADLINE_S)
        took_s = time.monotonic() - began
    finally:
        end(process)
    assert process.returncode == 130, said
    assert "stopped" in said
    assert "Traceback" not in said
    assert took_s < 10, rest  # 2 s on a machine of one's own
    wait_for(lambda: processes_of(tmp_path / "rlm") == [], what="nothing is left running")


def test_ctrl_c_before_anything_has_begun(tmp_path: Path) -> None:
    for delay_s in (0.05, 0.2, 0.4, 0.8):
        process = subprocess.Popen(
            [*COMMAND, "run", prompt({"call": "await asyncio.sleep(600)"}), *MODEL],
            env=cli_env(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        try:
            try:
                process.wait(delay_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE_S)
        finally:
            end(process)
        assert "rlm_host/" not in said, "a trace of ours"
        if "Traceback" not in said:  # else Python itself was stopped while it started
            assert process.returncode in (130, -signal.SIGINT), said
    wait_for(lambda: processes_of(tmp_path / "rlm") == [], what="nothing is left running")
