"""
The journal under faults: every operation fails, is torn or is the last one before a kill.

After each fault the journal opens unaided, holds every acknowledged record in order, and goes on.
"""

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from rlm_host.sessions.files import Files
from rlm_host.sessions.journal import Journal
from rlm_protocol.errors import StoreFull, StoreUnavailable
from support.journals import (
    NAME,
    Crash,
    FaultyFiles,
    TracedFiles,
    header,
    opened,
    power_losses,
    said,
    texts,
    write_journal,
    writer,
)

pytestmark = pytest.mark.anyio
WORDS = ["eins", "zwei ü", "drei", "x" * 90, "fünf", "sechs"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def appended(journal: Journal, text: str) -> bool:
    """Whether the record was acknowledged. Raises Crash when the process was killed meanwhile."""
    future = journal.append(said(text))
    await asyncio.wait([future])
    why = future.exception()
    if isinstance(why, Crash):
        raise why
    assert why is None or (isinstance(why, StoreFull | StoreUnavailable) and NAME in str(why))
    return why is None


async def work(folder: Path, files: Files) -> tuple[list[str], bool]:
    """Append the words, going on after errors; give those acknowledged and whether it was killed."""
    acknowledged: list[str] = []
    try:
        async with writer(folder, files=files) as journal:
            for word in WORDS:
                if await appended(journal, word):
                    acknowledged.append(word)
    except Crash:
        return acknowledged, True
    return acknowledged, False


async def check(folder: Path, acknowledged: list[str]) -> None:
    """The journal opens, holds what was acknowledged, in order, and takes the next record."""
    found = opened(folder)
    assert found.damage == [], "nothing but a torn tail may come of a kill or a full disk"
    read = texts(folder)
    assert set(acknowledged) <= set(read), "an acknowledged record is lost"
    assert read == [word for word in WORDS if word in read], "order, and no record twice"
    async with writer(folder) as journal:
        assert await appended(journal, "after")
        assert journal.last_seq == len(read) + 2
    assert texts(folder) == [*read, "after"]
    assert opened(folder).torn_bytes == 0


@pytest.mark.parametrize("persist", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("how", ["enospc", "eio", "short", "torn", "before", "after"])
async def test_a_fault_at_any_operation_loses_nothing_acknowledged(
    tmp_path: Path, how: str, persist: bool
) -> None:
    points = 0
    for nth in itertools.count(1):
        folder = tmp_path / str(nth)
        write_journal(folder, [header()])
        files = FaultyFiles(nth, how, persist=persist)
        acknowledged, killed = await work(folder, files)
        if not files.hit:
            assert acknowledged == WORDS
            break
        points += 1
        if how in ("torn", "before", "after"):
            assert killed
        elif how == "short":
            assert acknowledged == WORDS, "a short write is no error"
        elif not persist:
            assert len(acknowledged) == len(WORDS) - 1, "one record is refused, later ones are not"
        await check(folder, acknowledged)
    assert points >= 2 * len(WORDS)


async def test_a_fault_while_a_torn_tail_is_mended_leaves_it_to_the_next_start(
    tmp_path: Path,
) -> None:
    for how, nth in itertools.product(["enospc", "eio", "before", "after"], range(1, 6)):
        folder = tmp_path / f"{how}{nth}"
        path = write_journal(folder, [header(), said(WORDS[0])])
        path.write_bytes(path.read_bytes() + b'{"seq":3,"ge')
        files = FaultyFiles(nth, how)
        try:
            opened(folder, files)
        except (OSError, Crash):
            assert files.hit
        await check(folder, [WORDS[0]])


async def test_cut_at_every_byte_it_opens_with_every_whole_record(tmp_path: Path) -> None:
    records = [header(), *(said(word) for word in WORDS)]
    path = write_journal(tmp_path, records)
    whole = path.read_bytes()
    ends = list(itertools.accumulate(map(len, whole.splitlines(keepends=True))))
    for cut in range(ends[0] - 1, len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = opened(tmp_path)
        kept = sum(end - 1 <= cut for end in ends)  # the newline alone may be missing
        assert found.place.seq == kept, cut
        assert found.damage == []
        assert path.read_bytes() == whole[: ends[kept - 1]], cut


async def test_one_damaged_byte_anywhere_costs_one_record_at_most(tmp_path: Path) -> None:
    path = write_journal(tmp_path, [header(), *(said(word) for word in WORDS)])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for at in range(first, len(whole)):
        for value in {0, 10} - {whole[at]}:
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            read = texts(tmp_path)
            assert len(read) >= len(WORDS) - 1 - (whole[at] == 10), (at, value)
            assert read == [word for word in WORDS if word in read]


async def test_after_a_power_loss_nothing_acknowledged_is_missing(tmp_path: Path) -> None:
    """Unsynced writes are kept, lost or torn by sector; the model is the strictest that is real."""
    random_ = random.Random(7)
    path = write_journal(tmp_path / "run", [header()])
    start = path.read_bytes()
    files = TracedFiles(path)
    async with writer(tmp_path / "run", files=files) as journal:
        for batch in zip(WORDS[::2], WORDS[1::2], strict=True):
            await asyncio.gather(*(journal.append(said(word)) for word in batch))
            files.trace += [("ack", word) for word in batch]
    states = 0
    folder = tmp_path / "state"
    folder.mkdir()
    for done, disk in power_losses(start, files.trace, random_.randrange, variants=60):
        acknowledged = {value for kind, value in files.trace[:done] if kind == "ack"}
        (folder / NAME).write_bytes(disk)
        found = opened(folder)
        assert acknowledged <= set(texts(folder)), (done, len(disk))
        assert found.place.seq >= 1
        states += 1
        for left in folder.iterdir():
            left.unlink()
    assert states > 200


async def test_two_failures_in_a_row_heal_too(tmp_path: Path) -> None:
    write_journal(tmp_path, [header()])
    files = FaultyFiles(3, "eio", persist=True)
    async with writer(tmp_path, files=files) as journal:
        for word in WORDS[:3]:
            assert not await appended(journal, word)
        files.persist = False
        assert await appended(journal, WORDS[3])
    assert texts(tmp_path) == [WORDS[3]]
