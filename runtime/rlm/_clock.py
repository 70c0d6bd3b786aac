"""
The clock of the runtime, which no cell can stop.

Tests that a cell runs replace `time.sleep` and `time.monotonic`, in the module and wherever a
module has them by name. Functions of our own that hold the real ones are passed over.
"""

import time
from collections.abc import Callable


def monotonic(*, _read: Callable[[], float] = time.monotonic) -> float:
    """Give seconds since some moment."""
    return _read()


def sleep(seconds: float, *, _sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait, without the GIL."""
    _sleep(seconds)
