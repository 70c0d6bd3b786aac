"""What commands share that are a client of a host of their own: start it, ask, say what failed."""

import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any

from rlm_protocol.errors import RlmError

from ..client import HostClient
from . import interruptible
from .launch import say_error

INTERRUPTED = 130


def with_host(
    program: str,
    work: Callable[[HostClient], Awaitable[int]],
    *,
    kept: str = "Nothing was changed.",
) -> int:
    """Start a host, let `work` ask it, end it; give the exit code, as `exit_code` says."""

    async def main() -> int:
        async with HostClient.spawn() as client:
            return await work(client)

    return exit_code(program, main(), kept=lambda: kept)


def exit_code(
    program: str, main: Coroutine[Any, Any, int], *, kept: Callable[[], str] = lambda: ""
) -> int:
    """
    Run a command to its exit code.

    An error is one line on stderr and code 1; a signal ends what the command owns and gives 128 and
    its number. `kept` says what is true of what was there before, when it did not succeed.
    """
    try:
        return interruptible.run(main)
    except interruptible.Stopped as stopped:
        return interruptible.say_stopped(program, stopped, kept())
    except BrokenPipeError:  # of our own output: __main__ knows what to do
        raise
    except (RlmError, OSError) as why:
        say_error(program, why, kept())
        return 1


def print_json(value: Any) -> None:
    """Print a value for programs, whatever stdout can encode."""
    ascii_only = sys.stdout.encoding.lower() not in ("utf-8", "utf8")
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=ascii_only) + "\n")


def when(at_ms: int) -> str:
    """Give a wall-clock moment in the reader's time."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
