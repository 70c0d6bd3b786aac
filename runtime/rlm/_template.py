"""
The template: a process that has loaded what every kernel loads, and runs nothing of anybody's.

`host -> template -> guard -> kernel`: on an order it forks a guard, which forks its kernel; that
one waits for its environment and serves as if it had just been started. The template has one
thread, adopts and ends what a killed guard leaves behind, and ends with its host. What it was
started with is what its kernels start with; the host keeps one for each such set.
"""

import contextlib
import gc
import importlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from rlm_protocol import warm
from rlm_protocol.framing import UNDECODABLE

from . import _birth, _guard, _linux
from ._page import Page

EVERY_KERNEL = ("_boot", "_bootstrap", "_bash")
"""Our modules that a kernel has loaded by the end of its first cell."""
GUARDS_END_S = 2.0
"""After the host is gone its guards may take this long to end by themselves."""
_ORDER_BYTES = 64 * 1024
_LOOKS = 3
"""The list of children may pass over some while another ends (proc(5))."""
_FORK_FDS = 5


def serve() -> _guard.Channels:
    """Be the template that `RLM_TEMPLATE_FD` asks for. Returns in forked kernels only."""
    link = socket.socket(fileno=int(os.environ.pop(warm.TEMPLATE_FD)))
    link.set_inheritable(False)
    owner_fd = _guard.watch_parent()
    if os.getppid() != _maker(link):
        os._exit(125)  # the host had ended before its child could watch it
    if owner_fd is None or not _linux.become_subreaper():
        link.send(warm.encode(warm.Refused(reason="this machine has no pidfd or no subreaper")))
        os._exit(1)
    return _Template(link, owner_fd).run()


class _Template:
    """One poll loop: orders of the host, ends of guards, the end of the host."""

    def __init__(self, link: socket.socket, owner_fd: int) -> None:
        self._link = link
        self._owner_fd = owner_fd
        self._guards: dict[int, int] = {}  # pidfd -> pid
        self._birth = _birth.Conditions()
        self._poller = select.poll()
        for fd in (link.fileno(), owner_fd):
            self._poller.register(fd, select.POLLIN)

    def run(self) -> _guard.Channels:
        """Serve orders until host or link end. Returns in a kernel."""
        while True:
            for fd, _ in self._poller.poll():
                if fd == self._owner_fd:
                    self._follow_host()
                elif fd in self._guards:
                    self._bury(fd)
                elif (channels := self._obey()) is not None:
                    return channels

    def _obey(self) -> _guard.Channels | None:
        """Carry out one order. Returns in the kernel that it made, and None in the template."""
        data, fds = _birth.receive(self._link, _ORDER_BYTES)
        if not data:
            self._poller.unregister(self._link.fileno())  # the host is at its end, or close to it
            return None
        try:
            order = warm.decode_order(data)
        except UNDECODABLE as why:
            self._tell(warm.Refused(reason=f"no order: {why}"))
        else:
            if isinstance(order, warm.Retire):
                self._sweep()
                os._exit(0)
            elif isinstance(order, warm.Prepare):
                self._prepare(order.preload)
            elif len(fds) == _FORK_FDS:
                return self._fork(fds)
            else:
                self._tell(warm.Refused(reason=f"{len(fds)} descriptors came with an order"))
        for fd in fds:
            os.close(fd)
        return None

    def _prepare(self, preload: Sequence[str]) -> None:
        try:
            for name in (*(f"rlm.{own}" for own in EVERY_KERNEL), *preload):
                importlib.import_module(name)
            with contextlib.suppress(ImportError):
                importlib.import_module("rlm._build")  # a checkout has none
            Page()  # loads what it is made of
            sys.stdout.flush()  # what a module has printed is not for every kernel to say again
            sys.stderr.flush()
        except BaseException as why:  # whatever a foreign module raises: it is not for this process
            self._refuse(f"{type(why).__name__} while modules were loaded: {why}")
        if (threads := _threads_after_fork()) != 1:
            self._refuse(f"{threads} threads run after modules were loaded: {', '.join(preload)}")
        self._birth = _birth.Conditions()
        gc.collect()
        gc.freeze()  # what is here stays: collections of kernels neither walk nor copy it
        self._tell(warm.Ready())

    def _refuse(self, reason: str) -> NoReturn:
        self._tell(warm.Refused(reason=reason))
        os._exit(1)

    def _fork(self, fds: list[int]) -> _guard.Channels | None:
        try:
            pid = os.fork()
        except OSError as why:
            self._tell(warm.Refused(reason=f"the system refused to fork: {why}"))
            pid = -1
        if pid == 0:
            return self._become_guard(fds)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            pidfd = os.pidfd_open(pid)
            self._guards[pidfd] = pid
            self._poller.register(pidfd, select.POLLIN)
            self._tell(warm.Born(pid=pid), [pidfd])
        return None

    def _become_guard(self, fds: list[int]) -> _guard.Channels:
        os.setsid()
        self._link.close()
        for pidfd in self._guards:
            os.close(pidfd)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
            os.close(fd)
        control, birth = fds[3:]
        channels = _guard.split(control=control, owner_fd=self._owner_fd, private=[birth])
        self._birth.take(birth)
        return channels

    def _bury(self, pidfd: int) -> None:
        """Reap a guard, and end what it has left: it may have been killed itself."""
        pid = self._guards.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._sweep()
        self._tell(warm.Gone(pid=pid, code=code))

    def _sweep(self) -> None:
        """End everything that is under no living guard."""
        if self._reap() or not _linux.lists_children():
            _linux.kill_descendants(self._reap, self._guards.values())

    def _reap(self) -> bool:
        """Reap what has ended, but guards. Tells whether any other child is left."""
        if not self._guards:
            return _linux.reap()
        found = (_linux.children(os.getpid()) for _ in range(_LOOKS))
        others = set().union(*found).difference(self._guards.values())
        for pid in others:
            os.waitpid(pid, os.WNOHANG)
        return bool(others)

    def _follow_host(self) -> NoReturn:
        """Let guards end their trees, then end what is left of all of them."""
        deadline = time.monotonic() + GUARDS_END_S
        while self._guards and (left := deadline - time.monotonic()) > 0:
            poller = select.poll()
            for pidfd in self._guards:
                poller.register(pidfd, select.POLLIN)
            for pidfd, _ in poller.poll(left * 1000):
                os.waitpid(self._guards.pop(pidfd), 0)
        self._guards.clear()
        self._sweep()
        os._exit(0)

    def _tell(self, message: warm.Told, fds: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._link, [warm.encode(message)], fds, socket.MSG_DONTWAIT)
        except OSError:
            return  # the host is gone, or does not listen: it takes what it does not hear as lost


def _maker(link: socket.socket) -> int:
    """Give the pid of the process that made a pair of sockets (unix(7), SO_PEERCRED)."""
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)


def _threads_after_fork() -> int:
    """
    Count the threads of this process when it forks.

    Libraries that know about forks (OpenBLAS) end their threads at the first one, and start them
    again when they are needed.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return _linux.threads()
