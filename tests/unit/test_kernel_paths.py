import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host import paths
from rlm_host.paths import Directory
from rlm_protocol.errors import ConfigInvalid, InvalidParams
from support.unprivileged import as_somebody


def test_the_home_is_named_or_below_the_users(tmp_path: Path) -> None:
    assert paths.rlm_home({"RLM_HOME": "/x/y"}) == Path("/x/y")
    assert paths.rlm_home({"HOME": str(tmp_path)}) == tmp_path / ".rlm"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["relative", "/a/\udcff", "/" + "x" * 400])
@pytest.mark.parametrize("variable", ["RLM_HOME", "HOME"])
def test_a_home_where_no_files_can_lie_is_refused_by_the_variables_name(
    variable: str, value: str
) -> None:
    with pytest.raises(ConfigInvalid, match=rf"^{variable} must be "):
        paths.rlm_home({variable: value})


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # as in a container that was given any
    with pytest.raises(ConfigInvalid, match="set RLM_HOME"):
        paths.rlm_home({})
    assert paths.rlm_home({"RLM_HOME": "/x"}) == Path("/x")


def test_a_home_that_may_not_be_searched_gives_way_too(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"  # as with a HOME that sudo has kept
    theirs.mkdir(mode=0o700)
    code = "import sys; from rlm_host import paths; print(paths.rlm_home({'HOME': sys.argv[1]}))"
    program = [*as_somebody(), sys.executable, "-c", code, str(theirs / "home")]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert said.strip() == str(theirs / "home" / ".local" / "share" / "rlm")


def test_a_home_that_cannot_be_written_gives_way_to_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be made below a file, not even by root")
    env = {"HOME": str(tmp_path / "file")}
    assert paths.rlm_home(env) == tmp_path / "file" / ".local" / "share" / "rlm"
    data = {**env, "XDG_DATA_HOME": str(tmp_path / "data")}
    assert paths.rlm_home(data) == tmp_path / "data" / "rlm"


def test_ephemeral_sessions_lie_below_the_temp_folder(tmp_path: Path) -> None:
    home = paths.ephemeral_home({"TMPDIR": str(tmp_path)})
    assert home == tmp_path / f"rlm-{os.getuid()}"


def test_the_layout_is_the_seeds() -> None:
    home = Path("/h")
    assert paths.journal(home, "s-1") == Path("/h/sessions/s-1.jsonl")
    assert paths.artifacts(home, "s-1") == Path("/h/session-artifacts/s-1")
    assert paths.run_store(home, "my-work") == Path("/h/runs/my-work.sqlite3")


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "...", "a/b", "../x", "a b", "x" * 65, "a\0", "a\n"]
)
def test_what_is_no_id_names_no_file(bad: str) -> None:
    for where in (paths.journal, paths.artifacts):
        with pytest.raises(InvalidParams):
            where(Path("/h"), bad)
    assert paths.run_store(Path("/h"), bad).parent == Path("/h/runs")


@given(st.text(max_size=80))
def test_every_outside_name_has_a_stored_name_that_is_an_id(name: str) -> None:
    assert paths.is_id(paths.stored_name(name))
    assert paths.stored_name(name) == name or not paths.is_id(name)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    made = Directory.open(tmp_path / "d")
    yield made
    made.close()


def test_files_and_folders_are_the_owners_alone(directory: Directory) -> None:
    directory.write("f", b"1")
    directory.create("g", b"2")
    with directory.sub("s") as sub:
        sub.write("h", b"3")
    modes = {p.name: p.stat().st_mode & 0o777 for p in directory.path.rglob("*")}
    assert modes == {"f": 0o600, "g": 0o600, "s": 0o700, "h": 0o600}
    assert directory.path.stat().st_mode & 0o777 == 0o700


def test_writing_replaces_and_creating_does_not(directory: Directory) -> None:
    directory.write("f", b"1")
    directory.write("f", b"2")
    with pytest.raises(FileExistsError):
        directory.create("f", b"3")
    assert directory.read("f") == b"2"
    directory.rename("f", "g")
    assert (directory.exists("f"), directory.exists("g")) == (False, True)
    directory.remove("g")
    directory.remove("g")
    assert list(directory.path.iterdir()) == []


def test_links_are_never_followed(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"precious")
    (directory.path / "file").symlink_to(tmp_path / "outside" / "f")
    (directory.path / "folder").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        directory.read("file")
    with pytest.raises(OSError, match="symbolic links"):
        directory.open_file("file", os.O_WRONLY | os.O_TRUNC)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        directory.sub("folder")
    directory.write("file", b"mine")  # the link is replaced, not what it points at
    assert (tmp_path / "outside" / "f").read_bytes() == b"precious"


def test_what_is_no_regular_file_is_not_opened(directory: Directory) -> None:
    os.mkfifo(directory.path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match=r"not a regular file|not the name"):
            directory.read(name)
    for name in ("..", "a/b", "", "a\0b"):
        with pytest.raises(OSError, match="not the name"):
            directory.write(name, b"")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write("f", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            directory.write("f", b"new")
    assert directory.read("f") == b"old"
    assert [p.name for p in directory.path.iterdir()] == ["f"]
