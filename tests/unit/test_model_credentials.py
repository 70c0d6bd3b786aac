"""Credentials: where a key comes from, when it is dead, and that no secret leaves."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rlm_host.models.credentials import LEEWAY_MS, Credentials
from rlm_host.models.settings import read_providers
from rlm_protocol.errors import ConfigInvalid, StoreUnavailable

CANARY = "sk-canary-4711"
NOW_MS = 1_800_000_000_000
PROVIDERS = read_providers(
    {"ollama": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}}, base_dir=Path("/")
)


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "auth.json"


def credentials(
    file: Path, env: dict[str, str] | None = None, clock: Clock | None = None
) -> Credentials:
    return Credentials(file, PROVIDERS, env=env or {}, now_ms=clock or Clock())


def put(file: Path, content: bytes, mode: int = 0o600) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)


def test_without_a_key_the_state_says_what_to_do_and_local_servers_need_none(file: Path) -> None:
    one = credentials(file)
    missing = one.state("openai")
    assert (missing.status, missing.usable, one.secret("openai")) == ("missing", False, None)
    assert "OPENAI_API_KEY" in missing.reason
    assert "rlm-host auth set openai" in missing.reason
    for keyless in ("ollama", "scripted"):
        assert (one.state(keyless).status, one.secret(keyless)) == ("none_needed", "")
    assert one.state("nobody").status == "missing"
    assert one.secret("nobody") is None
    assert not file.exists(), "looking writes nothing"
    assert not file.parent.exists()


def test_the_file_comes_before_the_environment(file: Path) -> None:
    one = credentials(file, {"OPENAI_API_KEY": "sk-env"})
    assert (one.secret("openai"), one.state("openai").source) == ("sk-env", "environment")
    one.set("openai", " sk-file\n")
    assert (one.secret("openai"), one.state("openai").source) == ("sk-file", "auth.json")
    assert one.remove("openai")
    assert not one.remove("openai")
    assert one.secret("openai") == "sk-env"


def test_a_stored_key_is_private_and_another_process_sees_it(file: Path) -> None:
    one, other = credentials(file), credentials(file)
    assert other.secret("openai") is None
    old = os.umask(0)
    try:
        one.set("openai", "sk-1")
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert other.secret("openai") == "sk-1"
    one.set("openai", "sk-2")
    assert other.secret("openai") == "sk-2"
    assert sorted(p.name for p in file.parent.iterdir()) == ["auth.json", "auth.json.lock"]


def test_two_writers_lose_no_key(file: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from rlm_host.models.credentials import Credentials\n"
        "from rlm_host.models.settings import KNOWN, ProviderSetting\n"
        "names = [f'{sys.argv[2]}{n}' for n in range(20)]\n"
        "table = {n: ProviderSetting(kind='openai', base_url='http://a') for n in names}\n"
        "one = Credentials(pathlib.Path(sys.argv[1]), table, env={}, now_ms=lambda: 0)\n"
        "for n in names: one.set(n, 'k')\n"
    )
    argv = [sys.executable, "-c", code, str(file)]
    writers = [subprocess.Popen([*argv, letter]) for letter in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(msgspec.json.decode(file.read_bytes())) == 60


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610])
def test_a_file_that_others_can_use_is_refused_with_the_cure(file: Path, mode: int) -> None:
    put(file, b'{"openai": {"key": "sk-1"}}', mode)
    state = credentials(file).state("openai")
    assert (state.status, state.usable) == ("unreadable", False)
    assert f"chmod 600 {file}" in state.reason
    with pytest.raises(ConfigInvalid, match="chmod 600"):
        credentials(file).set("anthropic", "sk-2")
    assert file.read_bytes() == b'{"openai": {"key": "sk-1"}}'
    # The environment and what needs no key go on working.
    one = credentials(file, {"OPENAI_API_KEY": "sk-env"})
    assert one.state("openai").source == "environment"
    assert one.state("scripted").usable


def test_a_link_or_a_folder_or_a_pipe_is_not_read(file: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere.json", b'{"openai": {"key": "sk-1"}}')
    file.parent.mkdir()
    file.symlink_to(tmp_path / "elsewhere.json")
    assert credentials(file).state("openai").status == "unreadable"
    file.unlink()
    file.mkdir()
    assert credentials(file).state("openai").status == "unreadable"
    file.rmdir()
    os.mkfifo(file, 0o600)
    assert credentials(file).state("openai").status == "unreadable"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"openai": "' + CANARY.encode() + b'"}',
        b'{"openai": {"key": ""}}',
        b'{"openai": {"key": 5}}',
        b'{"openai": {"key": "a", "access": "' + CANARY.encode() + b'"}}',
        b"\xff" * 100,
        b" " * ((1 << 20) + 1),
    ],
)
def test_a_damaged_file_is_left_alone_and_never_quoted(file: Path, content: bytes) -> None:
    put(file, content)
    state = credentials(file).state("openai")
    assert (state.status, state.usable) == ("unreadable", False)
    assert "damaged" in state.reason
    assert CANARY not in state.reason
    with pytest.raises(ConfigInvalid, match="damaged"):
        credentials(file).set("openai", "sk-1")
    assert file.read_bytes() == content


def test_a_key_expires_with_a_leeway(file: Path) -> None:
    clock = Clock()
    one = credentials(file, {"OPENAI_API_KEY": "sk-env"}, clock)
    one.set("openai", "sk-1", expires_at_ms=NOW_MS + LEEWAY_MS + 1)
    assert one.state("openai").expires_at_ms == NOW_MS + LEEWAY_MS + 1
    assert one.secret("openai") == "sk-1"
    clock.now_ms += 1
    assert one.secret("openai") == "sk-env"
    assert credentials(file, clock=clock).state("openai").status == "expired"


def test_a_refused_value_is_dead_until_it_changes(file: Path) -> None:
    one = credentials(file, env := {"OPENAI_API_KEY": "sk-env"})
    one.set("openai", "sk-file")
    one.reject("openai", "sk-file")
    assert one.secret("openai") == "sk-env"
    one.reject("openai", "sk-env")
    state = one.state("openai")
    assert (state.status, one.secret("openai")) == ("rejected", None)
    assert "auth.json" in state.reason
    one.set("openai", "sk-file")  # the same again: still dead
    assert one.secret("openai") is None
    env["OPENAI_API_KEY"] = "sk-new"
    assert one.secret("openai") == "sk-new"
    one.set("openai", "sk-newer")
    assert one.secret("openai") == "sk-newer"
    one.set("anthropic", "sk-file")  # another provider's equal value is another key
    assert one.secret("anthropic") == "sk-file"


@pytest.mark.parametrize("key", ["", "  ", "sk-\x00", "sk-\n1", "schlüssel"])
def test_what_cannot_be_a_key_is_not_stored(file: Path, key: str) -> None:
    with pytest.raises(ConfigInvalid, match="nothing was stored"):
        credentials(file).set("openai", key)
    with pytest.raises(ConfigInvalid, match="no provider 'opnai'"):
        credentials(file).set("opnai", "sk-1")
    assert not file.exists()


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "flat").write_text("")
    with pytest.raises(StoreUnavailable, match="the keys are unchanged"):
        credentials(tmp_path / "flat" / "auth.json").set("openai", "sk-1")


def test_the_leftover_of_a_dead_writer_does_not_stop_the_next(file: Path) -> None:
    put(file.with_name("auth.json.new"), b"half a fi")
    one = credentials(file)
    one.set("openai", "sk-1")
    assert one.secret("openai") == "sk-1"


def test_no_state_holds_a_secret(file: Path) -> None:
    one = credentials(file, {"ANTHROPIC_API_KEY": CANARY + "-env"})
    one.set("openai", CANARY)
    one.reject("openai", CANARY)
    states = one.states()
    assert {state.provider for state in states} == set(PROVIDERS)
    assert b"canary" not in msgspec.json.encode(states)
    assert "canary" not in repr(states) + repr(one)


def test_whoever_keeps_secrets_out_of_logs_hears_of_each_before_it_is_used(file: Path) -> None:
    heard: list[str] = []
    one = Credentials(
        file,
        PROVIDERS,
        env={"OPENAI_API_KEY": CANARY},
        now_ms=Clock(),
        on_secret=heard.append,
    )
    one.state("openai")
    assert heard == [], "looking at the state gives nothing out"
    assert one.secret("openai") == CANARY
    one.secret("scripted")
    assert heard == [CANARY]
