"""Loops that are Python files: run under a store by whoever is there, moved, reported, pruned."""

import contextlib
import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rlm_host.faces import cli_loop
from rlm_host.loops.report import read_report
from rlm_host.loops.stores.open import open_store
from rlm_protocol.loop_records import GenerationDone
from support.cli import COMMAND, DEADLINE_S, cli_env, end, rlm_host, wait_for
from support.services import Postgres, Temporal

EXAMPLE = Path(__file__).parents[2] / "examples" / "loop_quickstart.py"
PROGRAM = """
import os
from pathlib import Path
from rlm_host import LoopConfig, LoopObservation, Verdict

config = LoopConfig("t", "w", max_generations=4)
notes = Path("notes.txt")

def step(ctx):
    with notes.open("a") as out:
        out.write(f"step {ctx.generation} of {os.getpid()}\\n")
    if ctx.generation == 2 and os.environ.get("HANG"):
        while not ctx.cancelled:
            ctx.heartbeat()
    print("measured")
    return LoopObservation(reward=[0.2, 0.6, 0.9, 0.7][ctx.generation], artifact_id=f"a{ctx.generation}")

def apply(ctx, observation):
    with notes.open("a") as out:
        out.write(f"apply {ctx.generation} {observation.artifact_id}\\n")

def careful(ctx, observation):
    return Verdict("deny" if observation.artifact_id == "a2" else "allow")

gates = [careful]
"""


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path}/runs.sqlite3"
        return
    server = request.getfixturevalue("postgres")
    url = server.new_url()
    yield url
    server.drop(url)


def program(tmp_path: Path, text: str = PROGRAM, name: str = "climb.py") -> str:
    (tmp_path / name).write_text(text)
    return name


@contextlib.contextmanager
def started(tmp_path: Path, *args: str, **env: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [*COMMAND, "loop", "run", *args],
        env=cli_env(tmp_path, **env),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            end(process)


def test_a_killed_worker_is_waited_for_and_another_finishes(tmp_path: Path, store_url: str) -> None:
    args = (program(tmp_path), "--store", store_url, "--run", "shared", "--lease-s", "2")
    notes = tmp_path / "notes.txt"
    with started(tmp_path, *args, "--worker", "first", HANG="1") as first:
        wait_for(lambda: notes.exists() and "step 2" in notes.read_text(), what="generation 2")
        with started(tmp_path, *args, "--worker", "second") as second:
            assert second.stdout is not None
            told = []
            for line in second.stdout:
                told.append(line)
                if "Waiting" in line:
                    break
            assert "Worker first holds run shared" in told[-1]
            first.send_signal(signal.SIGKILL)
            rest, errors = second.communicate(timeout=DEADLINE_S)
            assert (second.returncode, errors) == (0, "")
    assert "shared  completed  generation 4  best 0.7 a3  (max_generations)" in rest
    steps = [line.split()[1:] for line in notes.read_text().splitlines() if line[:4] == "step"]
    pids = {number: [pid for n, _, pid in steps if n == number] for number in "0123"}
    assert pids["0"] == pids["1"] == [str(first.pid)]
    assert pids["2"] == [str(first.pid), str(second.pid)]
    assert pids["3"] == [str(second.pid)]
    with contextlib.closing(open_store(store_url)) as store:
        done = [e.event for e in store.events("shared") if isinstance(e.event, GenerationDone)]
    assert [one.decision.action for one in done] == ["accept", "accept", "reject", "accept"]
    assert done[2].decision.reason == "gate_denied:careful"


def test_the_quickstart_of_two_processes_one_killed_is_finished_by_the_other(
    tmp_path: Path, postgres: Postgres
) -> None:
    """The example as it is: its first worker dies while the server holds back an append of it."""
    url = postgres.new_url()
    open_store(url).close()
    postgres.sql(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock_shared(4711); RETURN new; END $$;"
        "CREATE TRIGGER hold BEFORE INSERT ON loop_events FOR EACH ROW"
        " WHEN (new.key = 'generation:1') EXECUTE FUNCTION hold()",
        url,
    )
    args = (str(EXAMPLE), "--store", url, "--lease-s", "2")
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(url, autocommit=True) as holding:
        holding.execute("SELECT pg_advisory_lock(4711)")
        with started(tmp_path, *args, "--worker", "first") as first:
            wait_for(lambda: postgres.sql(waits) == [(1,)], what="the append of generation 1")
            with started(tmp_path, *args, "--worker", "second") as second:
                assert second.stdout is not None
                assert second.stdout.readline() == "run loop_quickstart, worker second\n"
                first.send_signal(signal.SIGKILL)
                first.wait(DEADLINE_S)
                holding.execute("SELECT pg_advisory_unlock(4711)")
                rest, errors = second.communicate(timeout=DEADLINE_S)
    assert (second.returncode, errors) == (0, "")
    end_line = "loop_quickstart  completed  generation 4  best 0.7 skill-1  (max_generations)"
    assert rest.splitlines()[-1] == end_line
    with contextlib.closing(open_store(url)) as store:
        report = read_report(store, "loop_quickstart")
    assert {claim.worker for claim in report.claims} == {"first", "second"}
    assert report.claims[-1].worker == "second"
    assert [g.action for g in report.generations] == ["accept", "reject", "reject", "reject"]
    postgres.drop(url)


def test_the_quickstart_runs_on_a_cluster_is_watched_and_moves_to_a_file(
    tmp_path: Path, temporal: Temporal
) -> None:
    store = ("--store", temporal.new_url())
    for _ in range(2):  # again, it says the same
        ran = rlm_host(tmp_path, "loop", "run", str(EXAMPLE), *store)
        end_line = "loop_quickstart  completed  generation 4  best 0.7 skill-1  (max_generations)"
        assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, end_line), ran.stderr
    watched = rlm_host(tmp_path, "loop", "watch", "loop_quickstart", *store).stdout.splitlines()
    assert [line.split()[1] for line in watched[:4]] == ["accept", "reject", "reject", "reject"]
    assert watched[-1] == end_line
    moved = rlm_host(tmp_path, "loop", "export", "loop_quickstart", *store).stdout
    taken = rlm_host(tmp_path, "loop", "import", "--store", "sqlite:r.db", given=moved)
    assert taken.stdout.strip() == end_line
    refused = rlm_host(tmp_path, "loop", "prune", *store, "--older-than", "1")
    assert (refused.returncode, "[unsupported]" in refused.stderr) == (1, True)


def test_the_quickstart_runs_under_a_store_and_again_to_the_same_end(tmp_path: Path) -> None:
    args = ("loop", "run", str(EXAMPLE), "--store", "sqlite:runs.sqlite3")
    first, again = rlm_host(tmp_path, *args), rlm_host(tmp_path, *args)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout.count("live: skill-1") == 1
    assert "live: skill-1" not in again.stdout
    end_line = "loop_quickstart  completed  generation 4  best 0.7 skill-1  (max_generations)"
    assert first.stdout.splitlines()[-1] == again.stdout.splitlines()[-1] == end_line


def test_a_report_is_a_table_json_or_csv_and_nothing_else_is_on_stdout(tmp_path: Path) -> None:
    args = (program(tmp_path), "--store", "sqlite:r.db")
    ran = rlm_host(tmp_path, "loop", "run", *args, "--json")
    whole = json.loads(ran.stdout)
    assert whole["run"]["runId"] == "climb"
    assert "measured" in ran.stderr
    assert [g["action"] for g in whole["generations"]] == ["accept", "accept", "reject", "accept"]
    report = ("loop", "report", "climb", "--store", "sqlite:r.db")
    assert json.loads(rlm_host(tmp_path, *report, "--json").stdout) == whole
    rows = list(csv.DictReader(rlm_host(tmp_path, *report, "--csv").stdout.splitlines()))
    assert [row["artifactId"] for row in rows] == ["a0", "a1", "a2", "a3"]
    assert [row["applied"] for row in rows] == ["true", "true", "false", "true"]
    assert [float(row["reward"]) for row in rows] == [0.2, 0.6, 0.9, 0.7]
    assert rows[0]["gain"] == ""
    assert rows[3]["stop"] == "max_generations"
    table = rlm_host(tmp_path, *report).stdout
    assert "gate_denied:careful" in table
    for tenant, found in (("t", ["climb"]), ("somebody else", [])):
        args = ("list", "--store", "sqlite:r.db", "--json", "--tenant", tenant)
        listed = rlm_host(tmp_path, "loop", *args).stdout
        assert [run["runId"] for run in json.loads(listed)["runs"]] == found


def test_a_run_is_moved_and_the_old_one_pruned(tmp_path: Path) -> None:
    rlm_host(tmp_path, "loop", "run", program(tmp_path), "--store", "sqlite:a.db")
    moved = rlm_host(tmp_path, "loop", "export", "climb", "--store", "sqlite:a.db").stdout
    assert moved.count("\n") > 4
    into = ("loop", "import", "--store", "sqlite:b.db")
    cut = rlm_host(tmp_path, *into, given=moved[: len(moved) // 2])
    assert (cut.returncode, "[storeCorrupt]" in cut.stderr) == (1, True)
    for _ in range(2):
        taken = rlm_host(tmp_path, *into, "--json", given=moved)
        assert json.loads(taken.stdout)["bestArtifactId"] == "a3"
    reports = [
        rlm_host(tmp_path, "loop", "report", "climb", "--store", f"sqlite:{name}.db").stdout
        for name in "ab"
    ]
    assert reports[0] == reports[1]
    prune = ("loop", "prune", "--store", "sqlite:a.db", "--older-than")
    assert rlm_host(tmp_path, *prune, "1").stdout == "0 runs deleted\n"
    assert rlm_host(tmp_path, *prune, "0").stdout == "1 runs deleted\n"
    gone = rlm_host(tmp_path, "loop", "export", "climb", "--store", "sqlite:a.db")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "[runNotFound]" in gone.stderr


def test_a_paused_run_rests_until_it_is_resumed(tmp_path: Path) -> None:
    args = ("--store", "sqlite:r.db")
    name = program(tmp_path, PROGRAM.replace("print(", "raise OSError("))
    left = rlm_host(tmp_path, "loop", "run", name, *args)
    assert left.returncode == 1
    assert left.stderr.splitlines() == [
        "rlm-host loop: step of generation 0 failed: OSError: measured. What was recorded is kept;"
        " the same command goes on with the run."
    ]
    paused = rlm_host(tmp_path, "loop", "pause", "climb", *args, "--reason", "night")
    assert "paused" in paused.stdout
    program(tmp_path)
    assert "(night)" in rlm_host(tmp_path, "loop", "run", name, *args).stdout
    rlm_host(tmp_path, "loop", "resume", "climb", *args)
    assert "completed" in rlm_host(tmp_path, "loop", "run", name, *args).stdout


def test_a_failed_run_says_why_and_fails_the_command(tmp_path: Path) -> None:
    text = PROGRAM.replace(
        "def apply(ctx, observation):", "def apply(ctx, observation):\n    1 / 0"
    )
    args = ("loop", "run", program(tmp_path, text), "--store", "sqlite:r.db")
    for _ in range(2):  # it has ended: again, it says the same
        done = rlm_host(tmp_path, *args)
        assert done.returncode == 1
        why = "apply of generation 0 failed: ZeroDivisionError: division by zero."
        assert done.stderr == f"rlm-host loop: {why}\n"
        assert "climb  failed  generation 0  (apply_failed)" in done.stdout


def test_ctrl_c_ends_the_waiting_for_another(tmp_path: Path) -> None:
    args = (program(tmp_path), "--store", f"sqlite:{tmp_path}/r.db")
    notes = tmp_path / "notes.txt"
    with started(tmp_path, *args, HANG="1") as first:
        wait_for(lambda: notes.exists() and "step 2" in notes.read_text(), what="generation 2")
        with started(tmp_path, *args) as second:
            assert second.stdout is not None
            assert any("Waiting" in line for line in second.stdout)
            second.send_signal(signal.SIGINT)
            _, errors = second.communicate(timeout=DEADLINE_S)
            assert second.returncode == 128 + signal.SIGINT
            assert errors.splitlines()[-1].startswith("rlm-host loop: stopped by SIGINT.")
        assert first.poll() is None


def test_ctrl_c_gives_the_run_back(tmp_path: Path) -> None:
    args = (program(tmp_path), "--store", f"sqlite:{tmp_path}/r.db")
    notes = tmp_path / "notes.txt"
    with started(tmp_path, *args, HANG="1") as first:
        wait_for(lambda: notes.exists() and "step 2" in notes.read_text(), what="generation 2")
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT" in errors
    assert "Traceback" not in errors
    with contextlib.closing(open_store(args[2])) as store:
        row = store.head("climb")
    assert (row.status, row.owner, row.head.generation) == ("running", None, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "There is no file wrong.py."),
        ("x = 1\nprint(y)", "NameError: name 'y' is not defined (line 2)."),
        ("config = {}", "must define config as a LoopConfig: it is dict."),
        (PROGRAM.replace("=4", "=0"), "max_generations must be a whole number from 1"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        program(tmp_path, text, "wrong.py")
    done = rlm_host(tmp_path, "loop", "run", "wrong.py", "--store", "sqlite:r.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.startswith("rlm-host loop: [configInvalid] ")
    assert done.stderr.endswith("Nothing was changed.\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("run", "climb.py"), 2, "climb.py needs --store"),
        (("run", "climb.json", "--store", "sqlite:r.db"), 2, "go with a FILE.py"),
        (("run", "climb.py", "--store", "mysql://x"), 1, "[configInvalid]"),
        (("run", "climb.py", "--store", "sqlite:climb.py"), 1, "[storeCorrupt]"),
        (("run", "climb.py", "--store", "sqlite:r.db", "--run", "a/b"), 1, "run_id must be"),
        (("run", "climb.py", "--store", "sqlite:r.db", "--lease-s", "0"), 2, "from 1 to 3600"),
        (("prune", "--store", "sqlite:r.db", "--older-than", "-1"), 2, "from 0 to 36500"),
        (("report", "nobody", "--store", "sqlite:r.db"), 1, "[runNotFound]"),
        (("report", "nobody", "--store", "sqlite:r.db", "--csv", "--html"), 2, "not allowed with"),
        (("import",), 2, "--store"),
        (("import", "--store", "temporal://localhost:1"), 1, "[unsupported]"),
        (("export", "nobody", "--store", "sqlite:r.db"), 1, "[runNotFound]"),
        (("export", "nobody"), 2, "--store"),
        (("list", "--store", "temporal:///x"), 1, "[configInvalid]"),
        (("list", "--store", "temporal://h:1/a?speed=9"), 1, "[configInvalid]"),
        (("list", "--status", "asleep"), 2, "invalid choice"),
        (("list", "--limit", "0", "--store", "sqlite:r.db"), 2, "from 1 to 1000"),
        (("list", "--limit", "many"), 2, "from 1 to 1000"),
        (("show", "nobody", "--store", "sqlite:r.db"), 1, "[runNotFound]"),
        (("watch", "nobody", "--store", "sqlite:r.db"), 1, "[runNotFound]"),
        (("watch",), 2, "RUN"),
        (("fork", "nobody", "0", "--store", "sqlite:r.db"), 1, "[runNotFound]"),
        (("fork", "nobody", "first", "--store", "sqlite:r.db"), 2, "invalid int value"),
        (("cancel", "nobody", "--store", "sqlite:r.db"), 1, "[runNotFound]"),
        (("pause", "nobody", "--store", "sqlite:/nowhere/at/all"), 1, "[storeUnavailable]"),
        (("resume",), 2, "RUN"),
        ((), 2, "required"),
    ],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    program(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "climb", raising=False)
    with pytest.raises(SystemExit) as exited:
        sys.exit(cli_loop.main(args))
    assert exited.value.code == code
    assert said in capsys.readouterr().err


def test_another_configuration_needs_another_run(tmp_path: Path) -> None:
    args = ("--store", "sqlite:r.db")
    rlm_host(tmp_path, "loop", "run", program(tmp_path), *args)
    changed = program(tmp_path, PROGRAM.replace("max_generations=4", "max_generations=3"))
    refused = rlm_host(tmp_path, "loop", "run", changed, *args)
    assert refused.returncode == 1
    assert "[conflict]" in refused.stderr
    assert "completed" in rlm_host(tmp_path, "loop", "run", changed, *args, "--run", "b").stdout
