"""
A kernel whose host has no control socket in here: it stands behind `docker run -i`, or `ssh`.

The host writes interrupts as lines, as always. Who holds the GIL does not read them; the guard sees
that something stays unread and rings for it. The doorbell alone interrupts nothing, so ringing once
too often is harmless. How the kernel ended is the last event, since a launcher may not tell.
"""

import os
import select
import time
from collections.abc import Callable

FIRST_S, LONGEST_S = 0.02, 0.5
"""A kernel that can read has read by then; for one that cannot, ringing more often is no help."""


def ring_for_unread(requests: int, ring: Callable[[], None]) -> None:
    """Ring while something lies unread on `requests`, until its end. Runs in a thread."""
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    while True:
        poller.poll()
        pause = FIRST_S
        time.sleep(pause)
        while events := poller.poll(0):
            if not events[0][1] & select.POLLIN:
                return
            ring()
            pause = min(2 * pause, LONGEST_S)
            time.sleep(pause)


def say_exit(events: int, code: int, *, out_of_memory: bool) -> None:
    """Tell how the kernel ended, as far as the host still reads."""
    reason = b',"reason":"oom"' if out_of_memory else b""
    os.set_blocking(events, False)
    try:
        os.write(events, b'\n{"event":"exited","code":%d%b}\n' % (code, reason))
    except OSError:
        return  # nobody is there, or nobody reads
