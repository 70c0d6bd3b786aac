import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rlm_host.processes import ledger as ledger_module
from rlm_host.processes.ledger import Ledger, Owner, Started, this_process


def record(tag: str, **more: object) -> Started:
    fields = {"pid": 1, "started": "1", "label": "x", "owner": this_process()}
    return Started(tag=tag, **{**fields, **more})


def test_what_was_started_and_not_ended_is_open(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for tag in "abc":
        ledger.add(record(tag))
    ledger.remove("b")
    ledger.remove("never")
    assert [r.tag for r in ledger.open_records()] == ["a", "c"]
    assert (tmp_path / "orphans.jsonl").stat().st_mode & 0o777 == 0o600


def test_half_a_line_and_garbage_cost_themselves_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(record("a"))
    with (tmp_path / "orphans.jsonl").open("ab") as file:
        file.write(b'\xff\x00garbage\n{"type":"started","tag":"tor')
    ledger.add(record("b"))
    ledger.remove("a")
    assert [r.tag for r in ledger.open_records()] == ["b"]
    assert "cannot be read" in caplog.text


def test_settling_forgets_and_rewrites(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for tag in "abc":
        ledger.add(record(tag))
    ledger.remove("a")
    ledger.settle({"b"})
    assert len((tmp_path / "orphans.jsonl").read_bytes().splitlines()) == 1
    assert [r.tag for r in ledger.open_records()] == ["c"]


def test_a_long_file_is_rewritten_without_what_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "COMPACT_BYTES", 5_000)
    ledger = Ledger(tmp_path)
    ledger.add(record("kept"))
    for n in range(200):
        ledger.add(record(f"t{n}"))
        ledger.remove(f"t{n}")
    assert (tmp_path / "orphans.jsonl").stat().st_size < 6_000
    assert [r.tag for r in ledger.open_records()] == ["kept"]


WRITER = """
import sys
from pathlib import Path
from rlm_host.processes.ledger import Ledger, Started, this_process
ledger = Ledger(Path(sys.argv[1]))
for n in range(100):
    tag = f"{sys.argv[2]}-{n}"
    ledger.add(Started(tag=tag, pid=1, started="1", label="x", owner=this_process()))
    if n % 2:
        ledger.remove(tag)
    if n % 10 == 0:
        ledger.settle(set())
"""


def test_hosts_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "abc"
    ]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    tags = {r.tag for r in Ledger(tmp_path).open_records()}
    assert tags == {f"{name}-{n}" for name in "abc" for n in range(0, 100, 2)}


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "orphans.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"symbolic link|Too many levels"):
        Ledger(tmp_path).add(record("a"))
    assert (tmp_path / "target").read_bytes() == b"precious"


def test_an_owner_knows_where_its_pids_count() -> None:
    here = this_process()
    assert here.pid == os.getpid()
    assert here.is_here(here)
    other = msgspec.structs.replace(here, machine="other", boot="other")
    assert not other.is_here(here)
    assert not other.is_over(here)
    earlier = msgspec.structs.replace(here, boot="earlier")
    assert not earlier.is_here(here)
    assert earlier.is_over(here)
    container = msgspec.structs.replace(here, namespace="pid:[1]")
    assert not container.is_here(here)
    assert not container.is_over(here)
    assert isinstance(here, Owner)
