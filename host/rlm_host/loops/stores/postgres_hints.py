"""
Hints that runs have changed, by NOTIFY, so that whoever waits need not wait for its next look.

A hint is no part of the change: NOTIFY in a transaction makes all such commits queue up for one
lock. It follows the commit, several changes share one, and one that is lost is made up for by
polling.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg

from .base import HintsOf
from .postgres_pool import Db

EVERY_S = 0.1
"""Between two hints of one store that its runs go on."""
RETRY_S = 0.5
REQUESTS, PROGRESS = "rlm_loop_requests", "rlm_loop_progress"


class Hinter:
    """Gives hints on behalf of one store."""

    def __init__(self) -> None:
        self._last_s = -EVERY_S

    def progressed(self, db: Db) -> None:
        """Hint, on a connection that has just committed, that a run goes on: not too often."""
        now_s = time.monotonic()
        if now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            _notify(db, PROGRESS)

    def asked(self, db: Db) -> None:
        """Hint that an operator wants something of a run."""
        _notify(db, REQUESTS)


def _notify(db: Db, channel: str) -> None:
    # What it would hint at is durable: a connection that breaks now is no failure of the change.
    with contextlib.suppress(psycopg.Error):
        db.execute(f"NOTIFY {channel}")


@contextlib.contextmanager
def listening(url: str, on_hint: Callable[[], None], of: HintsOf) -> Iterator[None]:
    """Call `on_hint` for hints of other processes and our own, from a thread, during the block."""
    channels = (REQUESTS,) if of == "requests" else (REQUESTS, PROGRESS)
    wake, woken = socket.socketpair()
    ended = threading.Event()

    def listen() -> None:
        while not ended.is_set():
            with contextlib.suppress(psycopg.Error):
                _listen(url, channels, on_hint, woken, ended)
            ended.wait(RETRY_S)

    thread = threading.Thread(target=listen, name="loop-hints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        wake.close()
        thread.join()
        woken.close()


def _listen(
    url: str,
    channels: tuple[str, ...],
    on_hint: Callable[[], None],
    woken: socket.socket,
    ended: threading.Event,
) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for channel in channels:
            db.execute(f"LISTEN {channel}")
        while not ended.is_set():
            on_hint()  # at first, for whatever has happened before we listened
            select.select([db.fileno(), woken.fileno()], [], [])
            for _ in db.notifies(timeout=0):
                continue  # any number of them is one hint
