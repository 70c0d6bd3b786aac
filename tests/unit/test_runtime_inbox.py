"""Requests are read by lines, however the bytes are cut; and never more than has arrived."""

import itertools
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm import _wire
from rlm._wire import Inbox
from rlm_protocol.framing import Refused

LINES = [b"", b"{}", b"x" * 9000, b'{"a":1}\r', "é\u2028".encode(), b"y" * 70_000]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue


def taken(inbox: Inbox, seen_after: int = -1) -> list[bytes | Refused]:
    lines = inbox.take(seen_after)
    assert lines is not None
    assert not inbox.release()
    return lines


def feed(pieces: list[bytes], *, seen: bool = False) -> list[bytes | Refused]:
    """Write the pieces, and read after each; then close. `seen`: as the loop reads."""
    read_end, write_end = os.pipe()
    inbox = Inbox(read_end)
    got: list[bytes | Refused] = []
    try:
        for piece in pieces:
            for at in range(0, len(piece), 60_000):
                os.write(write_end, piece[at : at + 60_000])
                got += taken(inbox, inbox.reads if seen else -1)
        os.close(write_end)
        while not inbox.ended:
            got += taken(inbox)
    finally:
        for fd in inbox.own_fds:
            os.close(fd)
    return got


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(LINES), max_size=12),
    st.lists(st.integers(0, 100_000), max_size=8),
    st.booleans(),
)
def test_lines_do_not_depend_on_cuts(lines: list[bytes], cuts: list[int], seen: bool) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    at = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[a:b] for a, b in itertools.pairwise(at)]
    got = feed(pieces, seen=seen)
    assert [bytes(line).removesuffix(b"\r") for line in got] == [
        line.removesuffix(b"\r") for line in lines
    ]


def test_a_last_line_without_its_end_is_refused() -> None:
    *whole, last = feed([b"{}\n{", b'"a"'])
    assert whole == [b"{}"]
    assert isinstance(last, Refused)


def test_a_line_over_the_limit_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wire, "KERNEL_REQUEST_BYTES", 1000)
    got = feed([b"a\n", b"x" * 3000, b"x" * 3000 + b"\nb\n", b"c\n"])
    assert [line if isinstance(line, bytes) else "refused" for line in got] == [
        *(b"a", "refused", b"b", b"c")
    ]


def test_what_another_context_has_read_is_not_waited_for(pipe: tuple[int, int]) -> None:
    """The loop saw bytes; before it reads, a signal handler has read them."""
    inbox = Inbox(pipe[0])
    os.write(pipe[1], b"{}\n")
    seen_after = inbox.reads
    assert taken(inbox) == [b"{}"]
    assert taken(inbox, seen_after) == []
    for fd in inbox.own_fds[1:]:
        os.close(fd)


def test_who_could_not_read_is_not_forgotten(pipe: tuple[int, int]) -> None:
    inbox = Inbox(pipe[0])
    os.write(pipe[1], b"a\n")
    assert inbox.take() == [b"a"]
    os.write(pipe[1], b"b\n")
    assert inbox.take() is None, "it is not sorted yet"
    assert inbox.release()
    assert taken(inbox) == [b"b"]
    for fd in inbox.own_fds[1:]:
        os.close(fd)


def test_the_main_thread_waits_for_another_that_reads(pipe: tuple[int, int]) -> None:
    """It may come from code that never gives up the GIL, which the other needs to be done."""
    inbox = Inbox(pipe[0])
    reading = threading.Event()

    def read() -> None:
        assert inbox.take() == []
        reading.set()
        while not inbox._main_inside:
            continue
        inbox.release()

    thread = threading.Thread(target=read)
    thread.start()
    reading.wait()
    os.write(pipe[1], b"a\n")
    assert taken(inbox) == [b"a"]
    thread.join()
    for fd in inbox.own_fds[1:]:
        os.close(fd)


def test_another_thread_does_not_wait_for_the_main_one(pipe: tuple[int, int]) -> None:
    inbox = Inbox(pipe[0])
    assert inbox.take() == []
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(inbox.take()))
    thread.start()
    thread.join()
    assert got == [None]
    assert inbox.release(), "it wanted to"
    for fd in inbox.own_fds[1:]:
        os.close(fd)
