"""Pipes served by the loop itself. Reading hands bytes over; writing never waits."""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

READ_BYTES = 64 * 1024
"""
One turn of the loop takes at most this much from one pipe: a flood starves nobody. It is what a
pipe holds; a larger buffer is mapped anew for each read.
"""

T = TypeVar("T")


class PipeReader:
    """Owns the reading end of a pipe: hands over chunks as they come, then b"" once, and closes."""

    def __init__(self, fd: int, on_data: Callable[[bytes], None]) -> None:
        self._fd = fd
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    @property
    def closed(self) -> bool:
        """Tell whether the end was reached or `close` was called."""
        return self._fd == -1

    def close(self) -> None:
        """Stop reading. What still lies in the pipe is lost; `on_data` gets its b""."""
        if not self.closed:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._on_data(b"")

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self.close()


class PipeWriter:
    """
    Owns the writing end of a pipe. Bytes leave in order; what the peer does not take yet waits.

    A peer that is gone takes nothing more: its end is noticed elsewhere, here it is silence.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self._watching = False
        self._closing = False
        os.set_blocking(fd, False)

    @property
    def closed(self) -> bool:
        """Tell whether nothing more can be written."""
        return self._fd == -1 or self._closing

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return sum(len(part) for part, _ in self._waiting)

    def write(self, data: bytes, *, on_taken: Callable[[], None] | None = None) -> None:
        """Send `data` after everything before it; `on_taken` is called when the pipe has it all."""
        if self.closed:
            return
        self._waiting.append((memoryview(data), on_taken))
        if len(self._waiting) == 1:
            self._flush()
            if self._waiting:
                self._watching = True
                self._loop.add_writer(self._fd, self._flush)

    def close(self, *, flush: bool = False) -> None:
        """Give the peer its end of stream; with `flush` after what still waits."""
        if self._fd == -1:
            return
        if flush and self._waiting:
            self._closing = True
            return
        self._waiting.clear()
        self._stop_watching()
        os.close(self._fd)
        self._fd = -1

    def _flush(self) -> None:
        while self._waiting:
            part, on_taken = self._waiting[0]
            try:
                taken = os.write(self._fd, part)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._closing = False
                self.close()
                return
            if taken < len(part):
                self._waiting[0] = (part[taken:], on_taken)
                continue
            self._waiting.popleft()
            if on_taken is not None:
                on_taken()
        self._stop_watching()
        if self._closing:
            self._closing = False
            self.close()

    def _stop_watching(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._fd)


async def to_the_end(work: Awaitable[T]) -> T:
    """
    Run clean-up that must not be cut short: it ends first, then a cancellation goes on its way.

    anyio's shield alone lets `Task.cancel` through, `asyncio.shield` alone leaves the work behind.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as why:
                cancelled = why
    if cancelled is not None:
        with contextlib.suppress(BaseException):
            task.result()
        raise cancelled
    return task.result()
