"""`.rlm-contract.json`: results count when the document names them, and survive whatever happens."""

import os
from pathlib import Path
from typing import Any

import pytest

from rlm_host import paths
from rlm_host.children.contract_journal import NAME, ContractJournal
from rlm_protocol.child import ChildAdmitted, ContextPolicy, ResultContract
from rlm_protocol.errors import ResultConflict, ResultInvalid, ResultMissing


def admission(**more: Any) -> ChildAdmitted:
    return ChildAdmitted(
        **{
            "child_id": "sub-1",
            "parent_id": "root",
            "session_id": "s-1",
            "directory": "sub-1",
            "name": "api",
            "model": "a/b",
            "prompt": "p",
            "depth": 1,
            "max_depth": 2,
            "contract": ResultContract(sink="out/answer.json"),
            "context": ContextPolicy(fields=("a",)),
            **more,
        }
    )


def reopened(path: Path, generation: int = 1) -> ContractJournal:
    return ContractJournal.load(path, admission(), generation=generation, now_ms=9)


def names(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


def test_a_document_says_what_was_agreed_and_what_became_of_each_task(tmp_path: Path) -> None:
    journal = ContractJournal.create(tmp_path, admission(), now_ms=1)
    journal.note(1, prompt_durable_at_ms=2)
    journal.note(1, replied=True)
    journal.note(1, ended_at_ms=3, outcome="replied")
    journal.note(1, notice_admitted=True)
    journal.give(2, now_ms=4)
    journal.note(7, replied=True)
    again = reopened(tmp_path, 2)
    assert again.document == journal.document
    assert again.document.context == ContextPolicy(fields=("a",))
    first, second = again.document.tasks
    assert (first.prompt_durable_at_ms, first.replied, first.outcome) == (2, True, "replied")
    assert first.notice_admitted
    assert (second.generation, second.given_at_ms, second.outcome) == (2, 4, None)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_a_result_is_written_once(tmp_path: Path) -> None:
    journal = ContractJournal.create(tmp_path, admission(), now_ms=1)
    stored = journal.store(1, b"[1]", now_ms=2)
    assert journal.store(1, b"[1]", now_ms=5) == stored
    with pytest.raises(ResultConflict):
        journal.store(1, b"[2]", now_ms=5)
    assert reopened(tmp_path).read(1) == (1, b"[1]")
    assert (tmp_path / "out/answer.json").read_bytes() == b"[1]"


def test_the_newest_result_is_the_one_that_is_read(tmp_path: Path) -> None:
    journal = ContractJournal.create(tmp_path, admission(), now_ms=1)
    with pytest.raises(ResultMissing):
        journal.read(None)
    journal.store(1, b"1", now_ms=1)
    journal.give(2, now_ms=2)
    assert journal.read(None) == (1, b"1")
    with pytest.raises(ResultMissing):
        journal.read(2)
    journal.store(2, b"2", now_ms=3)
    assert journal.read(None) == (2, b"2")
    assert journal.read(1) == (1, b"1")
    assert (tmp_path / "out/answer.json").read_bytes() == b"2"
    with pytest.raises(ResultMissing):
        journal.read(3)


def test_a_result_that_was_changed_later_is_refused(tmp_path: Path) -> None:
    journal = ContractJournal.create(tmp_path, admission(), now_ms=1)
    stored = journal.store(1, b"1", now_ms=1)
    (tmp_path / stored.file).write_bytes(b"2")
    with pytest.raises(ResultInvalid):
        journal.read(1)
    (tmp_path / stored.file).unlink()
    with pytest.raises(ResultInvalid):
        journal.read(1)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"version":2}', b"[]", None])
def test_a_damaged_document_is_set_aside_and_no_result_is_lost(
    tmp_path: Path, damage: bytes | None
) -> None:
    journal = ContractJournal.create(tmp_path, admission(), now_ms=1)
    journal.store(1, b"1", now_ms=1)
    journal.give(2, now_ms=2)
    if damage is None:
        (tmp_path / NAME).unlink()
    else:
        (tmp_path / NAME).write_bytes(damage)
    again = reopened(tmp_path, 2)
    assert again.read(None) == (1, b"1")
    assert [task.generation for task in again.document.tasks] == [1, 2]
    kept = tmp_path / f"{NAME}.corrupt"
    assert (kept.read_bytes() if kept.exists() else None) == damage
    assert reopened(tmp_path, 2).document == again.document


def test_a_document_of_another_child_is_not_believed(tmp_path: Path) -> None:
    ContractJournal.create(tmp_path, admission(child_id="sub-9"), now_ms=1)
    assert reopened(tmp_path).document.child_id == "sub-1"


def test_no_link_leads_a_result_out_of_the_directory(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "child"
    outside.mkdir()
    inside.mkdir()
    journal = ContractJournal.create(inside, admission(), now_ms=1)
    (inside / "out").symlink_to(outside)
    with pytest.raises(OSError, match="out"):
        journal.store(1, b"1", now_ms=1)
    assert list(outside.iterdir()) == []
    (inside / "results" / "1.json").unlink()
    (inside / "results").rmdir()
    (inside / "results").symlink_to(outside)
    with pytest.raises(ResultInvalid):
        journal.read(1)
    assert list(outside.iterdir()) == []


def test_a_kill_or_full_disk_at_any_write_loses_nothing_that_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fsync and rename fails in turn; the next host then tells the same story."""
    real_fsync, real_rename = os.fsync, os.rename
    for nth in range(1, 50):
        path, left = tmp_path / str(nth), [nth]
        path.mkdir()
        journal = ContractJournal.create(path, admission(), now_ms=1)

        def failing(real: Any, left: list[int] = left) -> Any:
            def call(*args: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(28, "No space left on device")
                return real(*args, **more)

            return call

        monkeypatch.setattr(paths.os, "fsync", failing(real_fsync))
        monkeypatch.setattr(paths.os, "rename", failing(real_rename))
        acknowledged = False
        try:
            journal.store(1, b"1", now_ms=2)
            acknowledged = True
        except OSError:
            pass
        monkeypatch.undo()
        again = reopened(path)
        result = again.document.tasks[0].result
        assert result is not None or not acknowledged
        if result is not None:
            assert again.read(1) == (1, b"1")
        again.store(1, b"1", now_ms=3)
        assert again.read(None) == (1, b"1")
        assert {
            n for n in names(path) if n.startswith((".rlm-contract.json.", "results/."))
        } == set()
        if acknowledged:
            assert left[0] > 0
            return
    pytest.fail("the story never came to its end")
