"""Output that was flushed is with the host before the next instruction of a cell."""

import threading
from typing import Any, cast

from rlm._capture import Outbox


class SlowWire:
    """A pipe to the host that takes bytes when the test lets it."""

    def __init__(self) -> None:
        self.writing, self.may_write = threading.Event(), threading.Event()
        self.written: list[bytes] = []

    def takes_more(self) -> bool:
        return True

    def put(self, frame: bytes) -> None:
        self.writing.set()
        self.may_write.wait()
        self.written.append(frame)


class Flusher:
    awake = True


def test_a_flush_waits_for_what_another_thread_is_writing() -> None:
    """The flusher has taken the text, and needs the GIL to write it, which the cell may hold."""
    wire = SlowWire()
    outbox = Outbox(cast(Any, wire), cast(Any, Flusher()))
    outbox.write("stdout", "go\n")
    flusher = threading.Thread(target=outbox.ship)
    flusher.start()
    wire.writing.wait()
    flushed = threading.Event()

    def flush() -> None:
        outbox.flush()
        assert wire.written
        flushed.set()

    cell = threading.Thread(target=flush)
    cell.start()
    assert not flushed.wait(0.05)
    wire.may_write.set()
    cell.join()
    flusher.join()
    assert flushed.is_set()
