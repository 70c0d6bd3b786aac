"""
Interrupts: the pure rule of who is hit (`Targets`), and its delivery on the main thread.

An interrupt hits the request that it names and no other, from the moment the request has been
received until its `done` is sent. Who is running is read off the interrupted stack, not from flags,
so there is no moment at which a KeyboardInterrupt can rise in the runtime's own code.
"""

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`: on every cell
import asyncio
import enum
import os
import selectors
import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from . import _clock, _linux

STARVED_S = 0.1
"""A cancelled cell whose loop has not turned for this long is starved by another task."""

_get_ident = threading.get_ident
_pthread_sigmask, _mask = signal.pthread_sigmask, _signal.pthread_sigmask
_SIGINT = int(signal.SIGINT)
_SIG_BLOCK, _SIG_UNBLOCK = int(signal.SIG_BLOCK), int(signal.SIG_UNBLOCK)
_F = TypeVar("_F", bound=Callable[..., Any])


class Verdict(enum.Enum):
    """What becomes of an interrupt."""

    NOW = enum.auto()
    PARKED = enum.auto()
    DROPPED = enum.auto()


class Targets:
    """
    Which requests are in flight and which of them must be interrupted. Pure.

    Rule 1: with an id, only that request. Rule 2: without, the active request, else the first that
    waits. Rule 3: for a waiting request it is parked, and dies with that request. Rule 4: for any
    other id it is dropped.
    """

    def __init__(self) -> None:
        self.active: str | None = None
        self._waiting: dict[str, bool] = {}  # id -> an interrupt is parked for it

    def admit(self, id_: str) -> bool:
        """Note a request. False when its id is in flight: refuse it, the first goes on."""
        if id_ == self.active or id_ in self._waiting:
            return False
        self._waiting[id_] = False
        return True

    def begin(self, id_: str) -> bool:
        """Make a waiting request the active one. True when it must be interrupted at once."""
        self.active = id_
        return self._waiting.pop(id_)

    def end(self) -> None:
        """Close the active request: from here on nothing can hit it."""
        self.active = None

    def aim(self, id_: str | None) -> Verdict:
        """Decide on one interrupt."""
        target = id_ if id_ is not None else self.active
        if target is None:
            target = next(iter(self._waiting), None)
        if target is None:
            return Verdict.DROPPED
        if target == self.active:
            return Verdict.NOW
        if target in self._waiting:
            self._waiting[target] = True
            return Verdict.PARKED
        return Verdict.DROPPED


class Where(enum.Enum):
    """What the main thread was doing when a signal came."""

    CELL = enum.auto()  # code of the active request, or what it called
    CORE = enum.auto()  # the runtime itself
    IDLE = enum.auto()  # the loop between two callbacks
    ELSEWHERE = enum.auto()  # another task or callback of a cell


_HERE = os.path.dirname((lambda: None).__code__.co_filename)
_CORE = frozenset(
    os.path.join(_HERE, f"{name}.py")
    for name in (
        *("_bridge", "_capture", "_cells", "_execution", "_frames", "_interrupt", "_loop"),
        *("_page", "_protect", "_runtime", "_serial", "_snapshot", "_wire"),
    )
)
_LOOP = frozenset((os.path.dirname(asyncio.__file__), selectors.__file__))
_boundaries: set[CodeType] = set()
_loops: set[CodeType] = set()


def boundary(function: _F) -> _F:
    """Mark a function that runs code of the active request: above its frame is the cell's."""
    _boundaries.add(function.__code__)
    return function


def turns_the_loop(function: _F) -> _F:
    """Mark the function that runs the event loop: above its frame are other tasks."""
    _loops.add(function.__code__)
    return function


def locate(frame: FrameType | None) -> Where:
    """Read off a stack who is running."""
    at = frame
    while at is not None:
        code = at.f_code
        if code in _boundaries:
            return Where.CORE if at is frame else Where.CELL
        if code in _loops:
            assert frame is not None
            file = frame.f_code.co_filename
            idle = file in _LOOP or os.path.dirname(file) in _LOOP or at is frame
            return Where.IDLE if idle else Where.ELSEWHERE
        if code.co_filename in _CORE:
            return Where.CORE
        at = at.f_back
    return Where.ELSEWHERE


class Interrupter:
    """
    Delivers interrupts. Holds at most one, for the active request, until it has been delivered.

    SIGINT is a doorbell (`doorbell=True`: it says "read your stdin", a line names the target) or an
    untargeted interrupt itself. `intake` reads and sorts what lies on stdin.
    """

    def __init__(self, targets: Targets, intake: Callable[[], None], *, doorbell: bool) -> None:
        self._targets = targets
        self._intake = intake
        self._doorbell = doorbell
        self._handler = self.on_signal
        self._main = _get_ident()
        self._rung = False
        self._cancelled_at: float | None = None
        self._earlier: set[int] | None = None
        self.maybe_blocked = True
        """Also set now and then by the watch: C code blocks signals without telling us."""
        signal.pthread_sigmask = self._change_mask
        self.wanted: str | None = None
        self.cancelled: str | None = None
        self.task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def install(self) -> None:
        """(Re)install the handler: a cell may have changed it, or blocked the signal."""
        if _signal.getsignal(_SIGINT) is not self._handler:
            _signal.signal(_SIGINT, self._handler)
        if self.maybe_blocked:
            self.maybe_blocked = False
            if _SIGINT in _mask(_SIG_BLOCK, ()):
                _mask(_SIG_UNBLOCK, (_SIGINT,))

    def _change_mask(self, how: Any, mask: Any) -> Any:
        """`signal.pthread_sigmask` of the cells: the next request looks what has become of us."""
        self.maybe_blocked = True
        return _pthread_sigmask(how, mask)

    def begin(self, id_: str) -> bool:
        """Open a request. True when an interrupt was parked for it."""
        if self.maybe_blocked or _signal.getsignal(_SIGINT) is not self._handler:
            self.install()
        self.wanted = self.cancelled = self._cancelled_at = self._earlier = None
        return self._targets.begin(id_)

    def end(self) -> bool:
        """
        Close the active request: from here on nothing can hit it.

        True when it was hit and that could not be delivered while the runtime was at work.
        """
        active = self._targets.active
        self._targets.end()
        late = self.wanted is not None and self.wanted == active
        self.wanted = None
        return late

    def aim(self, id_: str | None) -> bool:
        """Take one interrupt. True when the active request must be hit: call `ring`."""
        if self._targets.aim(id_) is not Verdict.NOW:
            return False
        self.wanted = self._targets.active
        return True

    def ring(self) -> None:
        """Have the main thread look, whatever it does. From any thread."""
        self._rung = True
        signal.pthread_kill(self._main, signal.SIGINT)

    def checkpoint(self, frame: FrameType | None) -> None:
        """Deliver to the cell that called an uninterruptible part, on the way out of it."""
        if _get_ident() == self._main and locate(frame) is Where.CELL:
            self.deliver(frame)

    def on_signal(self, _number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        own, self._rung = self._rung, False
        self._intake()
        if not own and not self._doorbell:
            self.aim(None)
        self.deliver(frame)

    def deliver(self, frame: FrameType | None) -> None:
        """
        Deliver what is wanted, if the interrupted stack allows it now.

        Raises:
            KeyboardInterrupt: the stack is the active request's own.
        """
        active = self._targets.active
        if self.wanted is None or self.wanted != active:
            self.wanted = None
            return
        where = locate(frame)
        if where is Where.CELL:
            self.wanted = None
            self._signal_children()
            raise KeyboardInterrupt
        if self.task is None or self.task.done() or self.loop is None:
            return  # the runtime is at work for this request; it looks before it says `done`
        if self._cancelled_at is None:
            self._cancelled_at = _clock.monotonic()
            self.cancelled = active
            self._signal_children()
            self.task.cancel()
            self.loop.call_soon_threadsafe(self._loop_turned)
        elif _clock.monotonic() - self._cancelled_at > STARVED_S and where is Where.ELSEWHERE:
            raise KeyboardInterrupt

    def _loop_turned(self) -> None:
        self.wanted = self._cancelled_at = None

    def before_spawn(self) -> None:
        """Note which children are older than the first one of this request."""
        if self._earlier is None:
            self._earlier = set(_linux.children(os.getpid()))

    def _signal_children(self) -> None:
        """Send SIGINT to what this request has started in our own group, and to nothing older."""
        if self._earlier is None:
            return
        todo = [pid for pid in _linux.children(os.getpid()) if pid not in self._earlier]
        group = os.getpgrp()
        while todo:
            pid = todo.pop()
            todo += _linux.children(pid)
            try:
                if os.getpgid(pid) == group:
                    os.kill(pid, signal.SIGINT)
            except OSError:
                continue
