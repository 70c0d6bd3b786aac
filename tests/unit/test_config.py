"""The configuration: every key is known and in its range, and a client changes it without losing a word."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlm_host import config
from rlm_host.config_file import ConfigFile
from rlm_host.models.settings import read_providers
from rlm_protocol.config import ConfigChange
from rlm_protocol.errors import ConfigInvalid, Conflict, StoreUnavailable

TEXT = """\
# mine
model = "scripted/echo"  # a comment

[kernel]
packages = ["numpy"]  # and another

[providers."local.one"]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
"""


def open_file(path: Path) -> ConfigFile:
    return ConfigFile(path, lambda read: read_providers(read.providers, base_dir=read.base_dir))


def change(*path: str, value: Any = None) -> ConfigChange:
    return ConfigChange(path=path, value=value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("max_depth = 1", "max_depth"),
        ("[children]\nmax_depth = -1", "children.max_depth"),
        ("[children]\nmax_running = 0", "children.max_running"),
        ("[children]\nmax_living = 0", "children.max_living"),
        ("[children]\nmax_depth = 1.5", "children.max_depth"),
        ("thinking = 'deeply'", "thinking"),
        ("model = 5", "model"),
        ("[budget.day]\ntokens = -1", "budget.day.tokens"),
        ("[budget.host]\nusd = nan", "budget.host.usd"),
        ("[budget.host]\nseconds = 5", "budget.host.seconds"),
        ("[skills]\nworkspace = 1", "skills.workspace"),
    ],
)
def test_a_key_out_of_range_is_refused_by_its_name(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigInvalid, match=key) as refused:
        config.load(tmp_path)
    assert str(tmp_path / "config.toml") in str(refused.value)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"price": {"input_usd_per_mtok": float("nan"), "output_usd_per_mtok": 1}}, ">= 0"),
        ({"price": {"input_usd_per_mtok": -1, "output_usd_per_mtok": 1}}, ">= 0"),
        ({"price": {"input_usd_per_mtok": float("inf"), "output_usd_per_mtok": 1}}, "<= 1000000"),
        ({"context_window_tokens": 0}, ">= 1"),
        ({"max_output_tokens": -5}, ">= 1"),
    ],
)
def test_a_model_has_no_impossible_numbers(table: dict[str, Any], why: str) -> None:
    given = {"openai": {"models": [{"name": "m", **table}]}}
    with pytest.raises(ConfigInvalid, match=why):
        read_providers(given, base_dir=Path("/"))


def test_paths_of_the_file_start_where_it_lies(tmp_path: Path) -> None:
    for python, found in (
        ("envs/a/bin/python", str(tmp_path / "envs/a/bin/python")),
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("python3.12", "python3.12"),
        ("~/env", str(Path.home() / "env")),
    ):
        (tmp_path / "c.toml").write_text(f"kernel.python = '{python}'")
        assert config.load(tmp_path / "home", tmp_path / "c.toml").kernel_python == found
    assert config.Config().kernel_python is None


def test_a_change_keeps_comments_order_and_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    path.chmod(0o600)
    read = open_file(path).read()
    said = open_file(path).write(
        [
            change("model", value="scripted/python"),
            change("kernel", "packages"),
            change("children", "max_running", value=2),
            change("providers", "local.one", "max_concurrent", value=3),
            change("log", "level"),
        ],
        read.digest,
    )
    written = path.read_text()
    assert "# mine" in written
    assert "# a comment" in written
    assert written.index("model") < written.index("[kernel]") < written.index("local.one")
    assert said.config == {
        "model": "scripted/python",
        "kernel": {},
        "children": {"max_running": 2},
        "providers": {
            "local.one": {
                "kind": "openai",
                "base_url": "http://127.0.0.1:1/v1",
                "max_concurrent": 3,
            }
        },
    }
    assert said.digest != read.digest
    assert config.load(tmp_path).children.max_running == 2


@pytest.mark.parametrize(
    "wrong",
    [
        change("modle", value="x"),
        change("model", value=5),
        change("model", "name", value="x"),
        change("children", "max_running", value=0),
        change("providers", "x", value={"kind": "openai"}),
        change("providers", "openai", "api_key", value="sk-secret"),
        change("kernel", "packages", value=["a", None]),
        change("source", value="/x"),
    ],
    ids=lambda wrong: ".".join(wrong.path),
)
def test_a_wrong_change_leaves_the_file_as_it_was(tmp_path: Path, wrong: ConfigChange) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    with pytest.raises(ConfigInvalid) as refused:
        open_file(path).write([change("model", value="scripted/python"), wrong])
    assert path.read_text() == TEXT
    assert "sk-secret" not in str(refused.value)


def test_a_file_that_is_wrong_already_is_not_repaired_by_guessing(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for content in (b"= 1", b"\xff", b"colour = 1"):
        path.write_bytes(content)
        with pytest.raises(ConfigInvalid):
            open_file(path).read()
        with pytest.raises(ConfigInvalid):
            open_file(path).write([change("model", value="scripted/echo")])
        assert path.read_bytes() == content


def test_the_first_change_makes_the_file_private_and_a_repeat_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "home" / "config.toml"
    file = open_file(path)
    file.remember()
    before = file.read()
    assert (before.exists, before.config, before.restart_needed) == (False, {}, False)
    first = file.write([change("model", value="scripted/echo")], before.digest)
    assert first.restart_needed
    assert path.stat().st_mode & 0o777 == 0o600
    there = path.stat().st_ino
    assert file.write([change("model", value="scripted/echo")], before.digest) == first
    assert path.stat().st_ino == there, "the repeat wrote it again"
    with pytest.raises(Conflict):
        file.write([change("model", value="scripted/python")], before.digest)


def test_a_mark_before_the_text_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b'\xef\xbb\xbf# mine\nmodel = "a/b"\n')
    assert config.load(tmp_path).model == "a/b"
    open_file(path).write([change("model", value="a/c")])
    assert config.load(tmp_path).model == "a/c"
    assert "# mine" in path.read_text()


def test_a_linked_file_stays_a_link(tmp_path: Path) -> None:
    kept, link = tmp_path / "dotfiles.toml", tmp_path / "config.toml"
    kept.write_text(TEXT)
    link.symlink_to(kept)
    open_file(link).write([change("log", "level", value="info")])
    assert link.is_symlink()
    assert 'level = "info"' in kept.read_text()


def test_what_cannot_be_read_or_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(StoreUnavailable, match=r"config\.toml"):
        open_file(tmp_path / "config.toml").read()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        open_file(tmp_path / "file" / "config.toml").write([change("log", "level", value="info")])


LOCAL = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}


def test_two_hosts_lose_none_of_each_others_changes(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"

    def write(name: str) -> None:
        for number in range(20):
            open_file(path).write([change("providers", f"{name}{number}", value=LOCAL)])

    with ThreadPoolExecutor(2) as threads:  # each opens the lock anew, as another process would
        list(threads.map(write, "ab"))
    assert len(open_file(path).read().config["providers"]) == 40
    assert sorted(os.listdir(tmp_path)) == [".config.toml.lock", "config.toml"]
