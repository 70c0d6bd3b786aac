"""
The watch: a thread that sleeps while the runtime is idle and ticks while it is not.

It ships output that has waited 10 ms, reads stdin when the main thread has not done so for a tick
(a long synchronous cell, a blocked write), and rings again for an interrupt that was not delivered.
So the runtime is never deaf, and two full pipes cannot deadlock.
"""

import threading
from collections.abc import Callable

from rlm_protocol.limits import OUTPUT_INTERVAL_MS

from . import _clock

QUIET_TICKS = 20


class Watch:
    """Owns the thread. `wake` is cheap and may be called from anywhere, a signal handler too."""

    def __init__(self, tick: Callable[[], bool]) -> None:
        self._tick = tick  # returns whether there was anything to watch
        self._arm = threading.Lock()
        self._arm.acquire()
        self._thread: threading.Thread | None = None
        self.awake = False
        self._stopping = False

    def wake(self) -> None:
        """Tick from now on until there has been nothing to watch for a while."""
        if self.awake:
            return
        self.awake = True
        if self._thread is None:
            self._start()
        try:
            self._arm.release()
        except RuntimeError:
            return  # armed already, by another thread

    def _start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rlm-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; `wake` starts another. Afterwards the process may be forked."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        self.awake = True
        if self._arm.locked():
            self._arm.release()
        thread.join()
        self.awake = False

    def forget(self) -> None:
        """Note that this process is a fork and has no such thread."""
        self._thread = None

    def _run(self) -> None:
        while True:
            self._arm.acquire()
            quiet = 0
            while quiet < QUIET_TICKS and not self._stopping:
                _clock.sleep(OUTPUT_INTERVAL_MS / 1000)
                quiet = 0 if self._tick() else quiet + 1
            if self._stopping:
                return
            self.awake = False
            if self._tick():  # something came between the last tick and going to sleep
                self.wake()
