"""Runs a command that a person may stop: Ctrl-C, SIGTERM and SIGHUP end it in order, and soon."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SAME_S = 0.5
"""Signals within this time are one: `uv run` makes two of a person's Ctrl-C."""


class Stopped(Exception):
    """A signal ended the command, and everything it owned has ended too."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def run(main: Coroutine[Any, Any, T]) -> T:
    """
    Run `main` on an event loop of its own and give what it returns.

    The first signal cancels it once, so that its blocks can end what they own. One that comes later
    than SAME_S after it ends this process at once; a host that it started sees its client go.

    Raises:
        Stopped: a signal ended it.
    """
    return asyncio.run(_stoppable(main))


async def _stoppable(main: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)
    received: list[tuple[float, int]] = []

    def on_signal(number: int) -> None:
        now_s = loop.time()
        if received and now_s - received[0][0] > SAME_S:
            os._exit(128 + number)
        if not received:
            received.append((now_s, number))
            task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await asyncio.wait({task})
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    if received and (task.cancelled() or task.exception() is not None):
        raise Stopped(received[0][1])
    return task.result()


def say_stopped(
    command: str, stopped: Stopped, kept: str = "What was acknowledged is kept."
) -> int:
    """Tell a person in one line; give the exit code."""
    sys.stderr.write(f"\n{command}: stopped by {stopped}. {kept}\n")
    return stopped.exit_code
