"""The journal: what is written is read, damage hides nothing, failures are told and healed."""

import asyncio
import errno
import json
import threading
import tracemalloc
from pathlib import Path

import pytest

from rlm_host.paths import Directory
from rlm_host.processes.ledger import this_process
from rlm_host.sessions import recovery
from rlm_host.sessions.files import Files
from rlm_host.sessions.lease import Holder, Lease
from rlm_host.sessions.recovery import checkpoint_name, encode_checkpoint, peek, verify
from rlm_protocol import records as r
from rlm_protocol.errors import (
    SchemaTooNew,
    SessionClosed,
    SessionLeased,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)
from support.journals import (
    NAME,
    FaultyFiles,
    TracedFiles,
    header,
    opened,
    said,
    texts,
    write_journal,
    writer,
)

pytestmark = pytest.mark.anyio
SIX = [header(), *(said(text) for text in "abcde")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- lines ----------------------------------------------------------------------------------------


def test_a_line_is_flat_json_with_its_place_and_checksum() -> None:
    line = r.encode_line(r.SessionRenamed(name="new"), seq=7, gen=1, at_ms=9)
    assert line.endswith(b"\n")
    told = json.loads(line)
    assert told.pop("crc")
    assert told == {"seq": 7, "gen": 1, "at": 9, "type": "session_renamed", "name": "new"}
    assert r.decode_line(line[:-1]) == r.Entry(7, 1, 9, r.SessionRenamed(name="new"))


def test_any_changed_byte_is_seen() -> None:
    line = bytearray(r.encode_line(said("text"), seq=7, gen=1, at_ms=9)[:-1])
    for at in range(len(line)):
        changed = bytes([*line[:at], line[at] ^ 1, *line[at + 1 :]])
        assert isinstance(r.decode_line(changed), r.BadRecord), at


def test_a_record_of_a_newer_host_is_kept_and_skipped() -> None:
    line = r.encode_line(r.SessionRenamed(name="new"), seq=7, gen=1, at_ms=9)
    newer = line.replace(b"session_renamed", b"session_blessed")[: -r.CRC_BYTES - 1]
    entry = r.decode_line(newer + b',"crc":"%08x"}' % r.zlib.crc32(newer))
    assert entry == r.Entry(7, 1, 9, r.UnknownRecord("session_blessed"))


# --- writing --------------------------------------------------------------------------------------


async def test_what_was_acknowledged_is_read_back_in_order(tmp_path: Path) -> None:
    write_journal(tmp_path, [header()])
    async with writer(tmp_path) as journal:
        for text in ("one", "zwei €", "drei"):
            entry = await journal.append(said(text))
        assert entry.seq == journal.last_seq == 4
    assert texts(tmp_path) == ["one", "zwei €", "drei"]


async def test_records_that_wait_together_share_one_sync(tmp_path: Path) -> None:
    syncs = []

    class Counting(Files):
        def sync(self, fd: int) -> None:
            syncs.append(fd)
            super().sync(fd)

    write_journal(tmp_path, [header()])
    async with writer(tmp_path, files=Counting()) as journal:
        await asyncio.gather(*(journal.append(said(str(n))) for n in range(100)))
        assert len(syncs) == 1
        first = journal.append(said("x"))
        await asyncio.sleep(0)  # its write has begun: what comes now waits for the next one
        await asyncio.gather(first, *(journal.append(said(str(n))) for n in range(100)))
        assert len(syncs) <= 3
    assert len(texts(tmp_path)) == 201


async def test_a_record_that_lingers_is_durable_with_the_next_one(tmp_path: Path) -> None:
    write_journal(tmp_path, [header()])
    files = TracedFiles(tmp_path / NAME)
    async with writer(tmp_path, files=files) as journal:
        first = journal.append(said("a"), linger_ms=60_000)
        await asyncio.sleep(0.05)
        assert not first.done()
        assert files.trace == []
        await journal.append(said("b"))
        assert first.done()
    assert [kind for kind, _ in files.trace] == ["write", "sync"]
    assert texts(tmp_path) == ["a", "b"]


async def test_a_record_that_lingers_alone_is_durable_in_its_time(tmp_path: Path) -> None:
    write_journal(tmp_path, [header()])
    async with writer(tmp_path) as journal:
        await asyncio.wait_for(journal.append(said("a"), linger_ms=20), 20)
        await asyncio.wait_for(journal.append(said("b"), linger_ms=20), 20)
        last = journal.append(said("c"), linger_ms=60_000)
        await asyncio.wait_for(journal.aclose(), 20)
        assert last.done()
    assert texts(tmp_path) == ["a", "b", "c"]


async def test_a_failed_write_fails_what_lingers_behind_it(tmp_path: Path) -> None:
    """Its number follows one that was never given: it cannot be written as it is."""
    write_journal(tmp_path, [header()])
    begun, go = threading.Event(), threading.Event()

    class Failing(Files):
        def sync(self, fd: int) -> None:
            begun.set()
            assert go.wait(20)
            raise OSError(errno.EIO, "no")

    async with writer(tmp_path, files=Failing()) as journal:
        first = journal.append(said("a"))
        await asyncio.to_thread(begun.wait, 20)
        lingering = journal.append(said("b"), linger_ms=60_000)
        go.set()
        for one in (first, lingering):
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(one, 20)
        assert journal.last_seq == 1


async def test_a_bug_in_writing_reaches_whoever_waits(tmp_path: Path) -> None:
    write_journal(tmp_path, [header()])

    class Buggy(Files):
        def write(self, fd: int, data: memoryview) -> int:
            raise ZeroDivisionError

    async with writer(tmp_path, files=Buggy()) as journal:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(journal.append(said("a")), 20)


async def test_nothing_is_handed_on_before_it_is_durable(tmp_path: Path) -> None:
    story: list[str] = []

    class Telling(Files):
        def sync(self, fd: int) -> None:
            super().sync(fd)
            story.append("synced")

    write_journal(tmp_path, [header()])
    async with writer(
        tmp_path, files=Telling(), on_durable=lambda found: story.append("handed on")
    ) as journal:
        await journal.append(said("x"))
        story.append("acknowledged")
    assert story == ["synced", "handed on", "acknowledged"]


async def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    write_journal(tmp_path, [header()])
    async with writer(tmp_path) as journal:
        pending = journal.append(said("last"))
        await journal.aclose()
        assert pending.done()
        with pytest.raises(SessionClosed):
            journal.append(said("too late"))
    assert texts(tmp_path) == ["last"]


@pytest.mark.parametrize(("how", "kind"), [("enospc", StoreFull), ("eio", StoreUnavailable)])
async def test_a_failed_sync_poisons_the_handle_and_the_next_append_heals(
    tmp_path: Path, how: str, kind: type[Exception]
) -> None:
    write_journal(tmp_path, [header()])
    failed: list[str] = []
    files = FaultyFiles(6, how)  # open, write, sync; write, sync of the next record is the sixth
    async with writer(tmp_path, files=files, on_failed=lambda: failed.append("told")) as journal:
        await journal.append(said("kept"))
        files.left = 2
        with pytest.raises(kind) as refused:
            await journal.append(said("lost"))
        assert str(tmp_path / NAME) in str(refused.value)
        assert failed == ["told"]
        entry = await journal.append(said("after"))
        assert entry.seq == 3, "the number of the lost record is given again"
    assert texts(tmp_path) == ["kept", "after"]
    assert opened(tmp_path).damage == []


async def test_those_that_wait_behind_a_failure_fail_with_it(tmp_path: Path) -> None:
    write_journal(tmp_path, [header()])
    async with writer(tmp_path, files=FaultyFiles(3, "eio")) as journal:
        first = journal.append(said("a"))
        await asyncio.sleep(0)
        results = await asyncio.gather(
            first, *(journal.append(said(str(n))) for n in range(3)), return_exceptions=True
        )
        assert [type(one) for one in results] == [StoreUnavailable] * 4
        await journal.append(said("z"))
    assert texts(tmp_path) == ["z"]


# --- opening --------------------------------------------------------------------------------------


def test_a_torn_last_line_is_cut_and_said(tmp_path: Path) -> None:
    path = write_journal(tmp_path, SIX)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"seq":7,"gen":1,"at":7,"ty')
    found = opened(tmp_path)
    assert (found.torn_bytes, found.damage, found.place.gen) == (27, [], 1)
    assert path.read_bytes() == whole


async def test_an_append_is_never_glued_to_a_torn_line(tmp_path: Path) -> None:
    path = write_journal(tmp_path, [header(name="größer €"), said("ein ü")])
    path.write_bytes(path.read_bytes() + '{"seq":3,"text":"ü'.encode()[:-1])
    async with writer(tmp_path) as journal:
        await journal.append(said("next"))
    assert texts(tmp_path) == ["ein ü", "next"]


def test_a_last_line_without_its_newline_alone_is_kept(tmp_path: Path) -> None:
    path = write_journal(tmp_path, SIX)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert opened(tmp_path).state.seq == 6
    assert path.read_bytes() == whole


LINE_3 = 3


@pytest.mark.parametrize(
    ("name", "spoil", "lost"),
    [
        ("a byte that is no UTF-8", lambda ls: [*ls[:2], b"\xff" + ls[2][1:], *ls[3:]], "b"),
        ("a run of NULs", lambda ls: [*ls[:2], bytes(len(ls[2])), *ls[3:]], "b"),
        ("NULs before a line", lambda ls: [*ls[:2], bytes(500) + ls[2], *ls[3:]], ""),
        ("a byte order mark", lambda ls: [b"\xef\xbb\xbf" + ls[0], *ls[1:]], ""),
        ("a stub and the next record", lambda ls: [*ls[:2], ls[2][:40] + ls[3], *ls[4:]], "b"),
        ("an empty line", lambda ls: [*ls[:3], b"\n", *ls[3:]], ""),
        ("a line of text", lambda ls: [*ls[:3], b"hello\n", *ls[3:]], ""),
        ("a lost line", lambda ls: [*ls[:2], *ls[3:]], "b"),
        ("a line twice", lambda ls: [*ls[:3], ls[2], *ls[3:]], ""),
        ("a nest that is too deep", lambda ls: [*ls[:2], b"[" * 100_000 + b"\n", *ls[2:]], ""),
    ],
)
def test_damage_in_the_middle_hides_nothing_else(tmp_path: Path, name, spoil, lost) -> None:
    path = write_journal(tmp_path, SIX)
    lines = path.read_bytes().splitlines(keepends=True)
    spoiled = b"".join(spoil(lines))
    path.write_bytes(spoiled)
    found = opened(tmp_path)
    assert texts(tmp_path) == [text for text in "abcde" if text not in lost]
    assert found.place.seq == 6
    assert len(found.damage) == 1
    damage = found.damage[0]
    assert path.read_bytes() == spoiled, "nothing is rewritten"
    span = spoiled[damage.offset : damage.offset + damage.size_bytes]
    assert span in (tmp_path / "s.corrupt").read_bytes(), "the damaged bytes are kept"


async def test_damage_is_recorded_once(tmp_path: Path) -> None:
    path = write_journal(tmp_path, SIX)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\xff\n", *lines[3:]]))
    async with writer(tmp_path) as journal:
        [damage] = opened(tmp_path).damage
        await journal.append(damage)
    again = opened(tmp_path)
    assert again.damage == []
    assert again.state.damage == [damage]
    assert (damage.after_seq, damage.before_seq) == (2, 4)


def test_whole_lines_lost_at_the_end_make_old_cursors_untrue(tmp_path: Path) -> None:
    path = write_journal(tmp_path, SIX)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 100 + b"\nrubbish\n")
    found = opened(tmp_path)
    assert (found.place.seq, found.place.gen) == (6, 2)
    assert path.read_bytes() == whole
    assert b"rubbish" in (tmp_path / "s.corrupt").read_bytes()


def test_a_damaged_header_changes_nothing(tmp_path: Path) -> None:
    path = write_journal(tmp_path, SIX)
    spoiled = b"x" + path.read_bytes()[1:]
    path.write_bytes(spoiled)
    with pytest.raises(StoreCorrupt) as refused:
        opened(tmp_path)
    assert str(path) in str(refused.value)
    assert [one.name for one in tmp_path.iterdir()] == [NAME]
    assert path.read_bytes() == spoiled


def test_a_journal_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    path = write_journal(tmp_path, [header(schema=r.SCHEMA + 1), said("x")])
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew):
        opened(tmp_path)
    assert path.read_bytes() == before


def test_a_large_journal_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = write_journal(tmp_path, [header()])
    big = "x" * 1_000_000
    with path.open("ab") as file:
        for seq in range(2, 42):
            file.write(r.encode_line(said(big, str(seq)), seq=seq, gen=1, at_ms=1))
        file.write(b"\0" * 3_000_000 + b"\n")
        file.write(r.encode_line(said("end"), seq=42, gen=1, at_ms=1))
    tracemalloc.start()
    try:
        assert opened(tmp_path).state.seq == 42
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000, peak


def test_a_line_without_end_is_damage_and_no_memory(tmp_path: Path, monkeypatch) -> None:
    from rlm_host.sessions import scan

    monkeypatch.setattr(scan, "LINE_BYTES", 10_000)
    path = write_journal(tmp_path, SIX)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"x" * 50_000 + b"\n", *lines[3:]]))
    found = opened(tmp_path)
    assert texts(tmp_path) == list("abcde")
    assert found.damage[0].size_bytes == 50_001


# --- checkpoints ----------------------------------------------------------------------------------


def checkpointed(folder: Path) -> recovery.Recovered:
    found = opened(folder)
    body = encode_checkpoint(found.state, found.folds, found.place, found.marks)
    (folder / checkpoint_name(NAME)).write_bytes(body)
    return found


async def test_a_checkpoint_gives_the_same_state_as_the_whole_journal(tmp_path: Path) -> None:
    write_journal(tmp_path, SIX)
    checkpointed(tmp_path)
    async with writer(tmp_path) as journal:
        await journal.append(r.SessionRenamed(name="later"))
    short = opened(tmp_path)
    assert short.from_seq == 6
    (tmp_path / checkpoint_name(NAME)).unlink()
    long = opened(tmp_path)
    assert long.from_seq == 0
    assert (short.state, short.place) == (long.state, long.place)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, 200, -1])
def test_a_spoiled_checkpoint_is_passed_over(tmp_path: Path, cut: int) -> None:
    write_journal(tmp_path, SIX)
    checkpointed(tmp_path)
    path = tmp_path / checkpoint_name(NAME)
    path.write_bytes(path.read_bytes()[:cut])
    assert (opened(tmp_path).from_seq, opened(tmp_path).state.seq) == (0, 6)


def test_a_checkpoint_of_another_journal_is_passed_over(tmp_path: Path) -> None:
    write_journal(tmp_path, SIX)
    checkpointed(tmp_path)
    write_journal(tmp_path, [header(name="another"), *SIX[1:4]])
    found = opened(tmp_path)
    assert (found.from_seq, found.state.name) == (0, "another")


def test_what_a_checkpoint_stood_for_is_verified_afterwards(tmp_path: Path) -> None:
    path = write_journal(tmp_path, SIX)
    place = checkpointed(tmp_path).place
    with Directory.open(tmp_path) as directory:
        assert verify(directory, NAME, place, []) == []
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"text":"b"', b'"text":"X"'))
    with Directory.open(tmp_path) as directory:
        [damage] = verify(directory, NAME, place, []) or []
        assert (damage.after_seq, damage.before_seq) == (2, 4)
        assert verify(directory, NAME, place, [damage]) == []
    other = [header(), *(said(text) for text in "aXcde")]
    write_journal(tmp_path, other)
    with Directory.open(tmp_path) as directory:
        assert verify(directory, NAME, place, []) is None, "valid, but not what it was"


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    path = write_journal(tmp_path, SIX)
    path.write_bytes(path.read_bytes() + b"torn")
    before = path.read_bytes()
    with Directory.open(tmp_path) as directory:
        state, _ = peek(directory, NAME)
    assert state.seq == 6
    assert path.read_bytes() == before


# --- owners ---------------------------------------------------------------------------------------


def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    write_journal(tmp_path, SIX)
    holder = Holder(owner=this_process(), since_ms=5, socket="/run/x")
    with Directory.open(tmp_path) as directory:
        lease = Lease.take(directory, NAME, holder)
        with pytest.raises(SessionLeased) as refused:
            Lease.take(directory, NAME, holder)
        owner = refused.value.data["owner"]
        assert (owner["pid"], owner["since"], owner["socket"]) == (
            this_process().pid,
            5,
            "/run/x",
        )
        (tmp_path / "s.owner").write_bytes(b"\xff garbage")
        with pytest.raises(SessionLeased):
            Lease.take(directory, NAME, holder)
        lease.release()
        lease.release()
        Lease.take(directory, NAME, holder).release()
    assert not (tmp_path / "s.owner").exists()
