"""With what code a run was submitted and claimed: said of any folder, soon, and never in the way."""

import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from rlm_host.loops import provenance
from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.provenance import packages_digest, provenance_of
from rlm_host.loops.stores.sqlite import SqliteRunStore

IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c"}
IDENTITY |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.c"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Look anew each time, and at no repository that the tests may lie in."""
    monkeypatch.setattr(provenance, "FRESH_S", -1.0)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | IDENTITY, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "step.py").write_text("one")
    (root / ".gitignore").write_text("*.sqlite3\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_a_clean_tree_is_its_commit(repository: Path) -> None:
    seen = provenance_of(repository / "src")
    assert seen.commit == git(repository, "rev-parse", "HEAD")
    assert (seen.dirty_digest, seen.unknown) == (None, None)
    assert seen.interpreter.startswith(("CPython 3.", "PyPy"))


def test_every_change_has_a_digest_of_its_own_and_taking_it_back_has_none(repository: Path) -> None:
    step = repository / "src" / "step.py"
    digests = []

    def look() -> None:
        digests.append(provenance_of(repository / "src").dirty_digest)

    look()
    step.write_text("two")
    look()
    step.write_text("one")
    look()
    (repository / "new ü.py").write_text("x")
    look()
    (repository / "new ü.py").write_text("y")
    look()
    (repository / "new ü.py").unlink()
    step.unlink()
    look()
    git(repository, "checkout", "-q", ".")
    (repository / "runs.sqlite3").write_text("a run store is no code")
    look()
    assert digests[0] is digests[2] is digests[6] is None
    changed = [digests[n] for n in (1, 3, 4, 5)]
    assert None not in changed
    assert len(set(changed)) == 4


def test_nothing_of_the_repository_is_written_and_no_hook_of_it_is_run(repository: Path) -> None:
    hook = repository / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {repository}/ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    os.utime(repository / "src" / "step.py", (1, 1))  # status would like to write this down
    index = (repository / ".git" / "index").read_bytes()
    assert provenance_of(repository).commit is not None
    assert (repository / ".git" / "index").read_bytes() == index
    assert not (repository / "ran").exists()


def test_where_there_is_nothing_to_see_it_says_why(tmp_path: Path, repository: Path, monkeypatch):
    assert "not a git repository" in provenance_of(tmp_path).unknown
    assert provenance_of(tmp_path / "gone").unknown == "git or the folder is not there"
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/nobody\n")
    unborn = provenance_of(repository)
    assert unborn.commit is None
    assert unborn.unknown.startswith("fatal: ")
    (repository / ".git" / "HEAD").write_text("garbage")
    assert provenance_of(repository).unknown.startswith("fatal: ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance_of(repository).unknown == "git or the folder is not there"


def test_a_commit_that_is_known_stays_so_when_the_changes_are_too_many(
    repository: Path, monkeypatch
) -> None:
    monkeypatch.setattr(provenance, "CHANGED_BYTES", 10)
    (repository / "large").write_text("x" * 11)
    seen = provenance_of(repository)
    assert seen.commit == git(repository, "rev-parse", "HEAD")
    assert (seen.dirty_digest, seen.unknown) == (
        None, "more has changed in the working tree than is read",
    )  # fmt: skip


def test_a_git_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch) -> None:
    fake, pid_file = tmp_path / "git", tmp_path / "pid"
    fake.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {pid_file}.new\nmv {pid_file}.new {pid_file}\nwait\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    began = time.monotonic()
    seen = provenance_of(tmp_path, time_s=2.0)
    assert time.monotonic() - began < 20
    assert (seen.commit, seen.unknown) == (None, "git rev-parse took too long")
    child = Path(f"/proc/{int(pid_file.read_text())}/stat")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline


def test_packages_are_told_apart_by_their_versions(tmp_path: Path) -> None:
    digests = []
    for number, version in enumerate(("1.0", "1.1")):
        folder = tmp_path / str(number)
        (folder / f"thing-{version}.dist-info").mkdir(parents=True)
        (folder / "thing").mkdir()
        digests.append(packages_digest((str(folder), str(tmp_path / "nowhere"))))
    assert digests[0] != digests[1]
    assert digests[0] == packages_digest((str(tmp_path / "0"),))


# --- in a run -------------------------------------------------------------------------------------


def test_submission_and_every_claim_record_it_and_it_makes_no_other_run(
    tmp_path: Path, repository: Path
) -> None:
    store = SqliteRunStore(tmp_path / "runs.sqlite3")
    config = LoopConfig("t", "w", max_generations=2, step_attempts=1)
    loops = LoopKernel(store, config, code=repository)
    loops.submit("run")

    def step(context) -> LoopObservation:
        if context.token == 1:
            raise OSError("not today")
        return LoopObservation(reward=0.5)

    loops.run("run", "monday", step)
    (repository / "src" / "step.py").write_text("two")
    loops.submit("run")
    report = loops.run("run", "tuesday", step)
    store.close()
    commit = git(repository, "rev-parse", "HEAD")
    assert (report.provenance.commit, report.provenance.dirty_digest) == (commit, None)
    assert [(c.token, c.worker) for c in report.claims] == [(1, "monday"), (2, "tuesday")]
    assert [c.provenance.commit for c in report.claims] == [commit, commit]
    assert [c.provenance.dirty_digest is None for c in report.claims] == [True, False]
    told = json.loads(json.dumps(report.to_dict()))
    assert told["claims"][1]["provenance"]["commit"] == told["provenance"]["commit"] == commit
    assert dataclasses.asdict(report.claims[0])["at_ms"] > 0
