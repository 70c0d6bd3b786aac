"""
Our end of a guard's control socket.

A guard is the process that stands between the host and what it started: it outlives the kernel,
ends with the host, and kills the whole tree below it either way. It gets a SOCK_SEQPACKET socket
through RLM_GUARD_FD and knows four words: `int` (SIGINT to the kernel alone), `term`, `kill` (the
whole tree), and `memory N` (bytes that the tree may hold). It says `pid N` at the start and `exit
CODE` at the end (negative: a signal), before that `oom` when it has killed the tree for its memory.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

GUARD_FD = "RLM_GUARD_FD"
_MESSAGE_BYTES = 64


class GuardLink:
    """
    Owns our end of the socket. A guard that is gone, or never was, answers nothing.

    Whoever starts the guard closes `theirs` then: the guard's death is our end of stream.
    """

    def __init__(self, on_pid: Callable[[int], None]) -> None:
        self._on_pid = on_pid
        self._loop = asyncio.get_running_loop()
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._loop.add_reader(self._ours, self._readable)
        self.pid: int | None = None
        """The kernel's own pid, once the guard has said it."""
        self.out_of_memory = False
        """The guard has ended the tree because it held too much."""
        self.exit_code: int | None = None
        """How the kernel ended. When it is set, the guard has left no process behind."""

    def interrupt(self) -> bool:
        """Ring the doorbell: SIGINT to the kernel's pid alone. False: there is no guard to ask."""
        return self._tell(b"int")

    def terminate(self) -> bool:
        """Ask for SIGTERM to the kernel's group."""
        return self._tell(b"term")

    def kill(self) -> bool:
        """Ask for the end of the whole tree."""
        return self._tell(b"kill")

    def limit_memory(self, limit_bytes: int) -> None:
        """Say what the tree may hold. The guard need not have started yet."""
        with contextlib.suppress(OSError):
            self._ours.send(b"memory %d" % limit_bytes)

    def close(self) -> None:
        """Read what was still said, then close. To a living guard this is the host's death."""
        self._readable()
        if self._ours.fileno() != -1:
            self._loop.remove_reader(self._ours)
            self._ours.close()
        self.theirs.close()

    def _tell(self, word: bytes) -> bool:
        if self.pid is None or self._ours.fileno() == -1:
            return False
        try:
            self._ours.send(word)
        except OSError:
            return False
        return True

    def _readable(self) -> None:
        while self._ours.fileno() != -1:
            try:
                message = self._ours.recv(_MESSAGE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message = b""
            if not message:
                self._loop.remove_reader(self._ours)
                self._ours.close()
                return
            self._heard(message)

    def _heard(self, message: bytes) -> None:
        word, _, number = message.partition(b" ")
        with contextlib.suppress(ValueError):
            if word == b"pid":
                self.pid = int(number)
                self._on_pid(self.pid)
            elif word == b"oom":
                self.out_of_memory = True
            elif word == b"exit":
                self.exit_code = int(number)
