"""
The two ends of a byte stream, read and written without ever waiting.

A descriptor that was handed to us may share its file description with other processes, so no flag
of it is changed: a pipe is opened anew, a socket is asked per call, anything else is polled.
"""

import contextlib
import os
import select
import selectors
import socket
import stat
from collections.abc import Callable
from functools import partial

CHUNK_BYTES = 64 * 1024
"""Bytes taken by one read: what a pipe holds. A larger buffer is mapped anew for each read."""
POLLED_BYTES = select.PIPE_BUF
"""A descriptor that polls as writable takes this much without waiting (POSIX, pipe(7))."""


class Endpoint:
    """
    Owns a readable and a writable descriptor (the same one for a socket) until `close`.

    `read_fd` and `write_fd` are for the loop to watch; `watchable` is False for what no loop can
    watch, such as a file as stdin: then `read` may block and belongs into a thread.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """Take over both descriptors."""
        self._socks: list[socket.socket] = []
        self.watchable = _watchable(read_fd)
        self.read_fd, self._read = self._open(read_fd, os.O_RDONLY)
        if write_fd == read_fd and self._socks:
            self.write_fd, self._write = read_fd, _sender(self._socks[0])
        else:
            self.write_fd, self._write = self._open_writer(write_fd)
        self._closed = False

    @classmethod
    def of_socket(cls, sock: socket.socket) -> "Endpoint":
        """Take over a connected stream socket."""
        fd = sock.detach()
        return cls(fd, fd)

    def read(self) -> bytes | None:
        """Give what has arrived: b"" at the end of the stream (or a reset), None for nothing."""
        try:
            return self._read()
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def write(self, data: memoryview) -> int:
        """
        Write as much as goes without waiting; give the number of bytes, 0 when it is full.

        Raises:
            OSError: the reader is gone, or the device refuses.
        """
        try:
            return self._write(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close both descriptors; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        owned = {sock.fileno() for sock in self._socks}
        for sock in self._socks:
            sock.close()
        for fd in {self.read_fd, self.write_fd} - owned:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open(self, fd: int, access: int) -> tuple[int, Callable[[], bytes]]:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            sock = self._adopt(fd)
            return fd, partial(sock.recv, CHUNK_BYTES, socket.MSG_DONTWAIT)
        fd = _reopened(fd, access)
        return fd, partial(os.read, fd, CHUNK_BYTES)

    def _open_writer(self, fd: int) -> tuple[int, Callable[[memoryview], int]]:
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            return fd, _sender(self._adopt(fd))
        again = _reopened(fd, os.O_WRONLY)
        if again != fd:
            return again, partial(os.write, again)
        return fd, _polled_writer(fd)

    def _adopt(self, fd: int) -> socket.socket:
        sock = socket.socket(fileno=fd)
        self._socks.append(sock)
        return sock


def _sender(sock: socket.socket) -> Callable[[memoryview], int]:
    flags = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
    return lambda data: sock.send(data, flags)


def _polled_writer(fd: int) -> Callable[[memoryview], int]:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)

    def write(data: memoryview) -> int:
        return os.write(fd, data[:POLLED_BYTES]) if poll.poll(0) else 0

    return write


def _reopened(fd: int, access: int) -> int:
    """Give a non-blocking description of our own for the same pipe, else the descriptor itself."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    try:
        again = os.open(f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no /proc, or the pipe belongs to another user
        return fd
    os.close(fd)
    return again


def _watchable(fd: int) -> bool:
    """Tell whether a loop can watch it: not a file, not /dev/null."""
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(fd, selectors.EVENT_READ)
        except (PermissionError, ValueError):
            return False
    return True
