"""
A session's journal file: append, be durable, survive whatever the disk and the power do.

Rule 1: an entry is handed on (folded, published, acknowledged) only once it is durable. Rule 2: no
byte of the file is changed but by appending and by cutting what was never acknowledged; damaged
spans stay where they are, with a copy beside. Rule 3: after a failed write or sync the handle is
poisoned: it is closed, and a new one is cut back to the last durable byte before it may append.
"""

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor

import msgspec

from rlm_protocol import records as r
from rlm_protocol.errors import RlmError, SessionClosed, StoreFull, StoreUnavailable

from ..paths import Directory
from .files import Files
from .scan import Found

log = logging.getLogger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """
    The end of what is durable. `chain` digests every record so far (see `chained`).

    `last` is where the last record's line begins.
    """

    gen: int
    seq: int
    offset: int
    chain: bytes = b""
    last: int = 0


def chained(chain: bytes, entry: r.Entry, crc: bytes) -> bytes:
    """Give the digest of a journal that grew by `entry`; it can be continued from a stored one."""
    return hashlib.blake2b(b"%s %d %s" % (chain, entry.seq, crc), digest_size=16).digest()


Batch = list[tuple[r.Entry, bytes, asyncio.Future[r.Entry]]]
"""Entries that become durable together, with their lines and who waits for them."""
OnDurable = Callable[[list[Found]], None]
"""Called in the loop with entries that have become durable, in order, before their appends end."""


class Journal:
    """
    The writer of one journal file. The caller holds its lease and has recovered it up to `place`.

    Call everything in the event loop; file operations run in `executor`. Entries that wait
    together share one write and one sync.
    """

    def __init__(
        self,
        directory: Directory,
        name: str,
        *,
        place: Place,
        files: Files,
        executor: Executor,
        now_ms: Callable[[], int],
        on_durable: OnDurable,
        on_failed: Callable[[], None],
    ) -> None:
        self._directory, self._name = directory, name
        self._files, self._executor, self._now_ms = files, executor, now_ms
        self._on_durable, self._on_failed = on_durable, on_failed
        self._place = place
        self._fd = -1  # opened by the first append, and again after a failure
        self._next_seq = place.seq + 1
        self._loop = asyncio.get_running_loop()
        self._waiting: Batch = []
        self._flushing = False
        self._at_rest = asyncio.Event()  # set while nothing waits and nothing is being written
        self._at_rest.set()
        self._lingering: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def place(self) -> Place:
        """The end of what is durable."""
        return self._place

    @property
    def last_seq(self) -> int:
        """The number of the record that was appended last, durable or not yet."""
        return self._next_seq - 1

    def append(self, record: r.Record, *, linger_ms: int = 0) -> asyncio.Future[r.Entry]:
        """
        Add a record; the future is done when it is durable.

        The future may be dropped: a failure is then only logged. With `linger_ms` the record waits
        so long for the next one, to become durable in the same write.

        Raises (from the future):
            StoreFull, StoreUnavailable: the path and the reason; nothing of this record is kept,
                nor of those that waited with it. A later append tries again on a new handle.
            SessionClosed: raised at once when the journal is closed.
        """
        if self._closed:
            raise SessionClosed
        at_ms, seq = self._now_ms(), self._next_seq
        line = r.encode_line(record, seq=seq, gen=self._place.gen, at_ms=at_ms)
        future: asyncio.Future[r.Entry] = self._loop.create_future()
        self._next_seq += 1
        self._waiting.append((r.Entry(seq, self._place.gen, at_ms, record), line, future))
        self._at_rest.clear()
        if not linger_ms:
            self._begin_flush()
        elif not self._flushing and self._lingering is None:
            self._lingering = self._loop.call_later(linger_ms / 1000, self._begin_flush)
        return future

    async def aclose(self) -> None:
        """Wait until everything appended is durable or has failed, and close the file."""
        self._closed = True
        self._begin_flush()
        await self._at_rest.wait()
        if self._fd != -1:
            self._files.close(self._fd)
            self._fd = -1

    def _begin_flush(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self._waiting and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Have everything that waits written by the executor; `_flushed` comes back from it."""
        batch, self._waiting = self._waiting, []
        self._executor.submit(self._write_and_tell, batch)

    def _flushed(self, batch: Batch, failure: BaseException | None) -> None:
        self._flushing = False
        if failure is None:
            self._succeed(batch)
        else:
            self._fail(batch, failure)
        if self._waiting:
            self._begin_flush()
        else:
            self._at_rest.set()

    def _succeed(self, batch: Batch) -> None:
        place, written = self._place, []
        offset, chain = place.offset, place.chain
        for entry, line, _ in batch:
            written.append(Found(entry, offset, offset + len(line), r.crc_of(line[:-1])))
            chain = chained(chain, entry, written[-1].crc)
            offset += len(line)
        self._place = Place(
            gen=place.gen, seq=batch[-1][0].seq, offset=offset, chain=chain, last=written[-1].offset
        )
        try:
            self._on_durable(written)
        except Exception:
            log.exception("folding durable records of %s failed", self._path)
        for entry, _, future in batch:
            if not future.done():
                future.set_result(entry)

    def _fail(self, batch: Batch, why: BaseException) -> None:
        # Those that came while this batch was written carry numbers that follow it: they fail too.
        batch, self._waiting = batch + self._waiting, []
        self._next_seq = self._place.seq + 1
        error = store_error(why, self._path) if isinstance(why, OSError) else why
        log.warning("%s", error)
        self._on_failed()
        for _, _, future in batch:
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: it is logged above, and may have been dropped

    # --- in the executor: one call at a time ---

    def _write_and_tell(self, batch: Batch) -> None:
        failure: BaseException | None = None
        try:
            self._write(b"".join(line for _, line, _ in batch))
        except BaseException as why:  # whoever waits must hear of it, whatever it is
            failure = why
        self._loop.call_soon_threadsafe(self._flushed, batch, failure)

    def _write(self, data: bytes) -> None:
        if self._fd == -1:
            self._fd = self._reopened()
        try:
            view = memoryview(data)
            while view:
                view = view[self._files.write(self._fd, view) :]
            self._files.sync(self._fd)
        except BaseException:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                self._files.close(fd)
            raise

    def _reopened(self) -> int:
        fd = self._files.open(self._directory, self._name, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(fd).st_size != self._place.offset:
                self._files.truncate(fd, self._place.offset)
                self._files.sync(fd)
        except BaseException:
            self._files.close(fd)
            raise
        return fd

    @property
    def _path(self) -> str:
        return str(self._directory.path / self._name)


def store_error(why: OSError, path: str) -> RlmError:
    """Give the declared error for a failed file operation; it names the path."""
    if why.errno in _FULL:
        return StoreFull(
            f"The disk is full: {path} could not be written. What was acknowledged is kept; make "
            "room and try again.",
            path=path,
        )
    return StoreUnavailable(
        f"{path} could not be used: {why.strerror or why}. What was acknowledged is kept; mend the "
        "cause and try again.",
        path=path,
        reason=why.strerror or str(why),
    )
