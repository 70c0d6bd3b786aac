"""The examples run as programs, without a key, and go on where they were."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlm_host.faces import cli_loop
from rlm_host.loops.report import read_report
from rlm_host.loops.stores.sqlite import SqliteRunStore

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_regular_expression_is_evolved_and_a_second_run_says_the_same(tmp_path: Path) -> None:
    told = run("evolve_regex.py", tmp_path)
    assert told[-1].startswith("target ")
    assert told[-2].endswith("[A-Z]{2}-[0-9]{4}")
    assert run("evolve_regex.py", tmp_path) == told


def test_a_function_is_improved_under_its_tests_and_rolled_back_when_it_falls(
    tmp_path: Path,
) -> None:
    told = [line.split()[1:3] for line in run("improve_function.py", tmp_path)]
    assert told == [
        ["accept", "improved"],
        ["reject", "gate_denied:test_suite"],
        ["rollback", "live_regressed"],
        ["accept", "improved"],
        ["reject", "no_gain"],
        ["accept", "improved"],
        ["5", "1.00"],
    ]
    space: dict = {}
    exec((tmp_path / "improved_slug.py").read_text(), space)
    assert space["slug"]("Naïve  plan!") == "naive-plan"


@pytest.mark.parametrize("name", ["evolve_regex.py", "improve_function.py"])
def test_the_command_finds_in_an_example_what_it_runs_itself(tmp_path, monkeypatch, name) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    run(name, tmp_path)
    store = ["--store", f"sqlite:{tmp_path}/other.sqlite3"]
    assert cli_loop.main(["run", str(EXAMPLES / name), "--run", "other", *store]) == 0
    runs = [SqliteRunStore(tmp_path / f) for f in (f"{name[:-3]}.sqlite3", "other.sqlite3")]
    told = [
        [
            (g.action, g.reason, g.artifact_id)
            for g in read_report(s, s.list().runs[0].run_id).generations
        ]
        for s in runs
    ]
    for opened in runs:
        opened.close()
    if name == "improve_function.py":  # the other one has its seeds from the run's id
        assert told[0] == told[1]
    assert {"accept", "reject"} <= {action for action, _, _ in told[1]}


@pytest.mark.parametrize("name", ["evolve_regex.py", "improve_function.py"])
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 100
