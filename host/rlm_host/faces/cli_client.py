"""What commands share that are a client of a host of their own: start it, ask, say what failed."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from rlm_protocol.errors import RlmError

from ..client import HostClient
from .launch import say_error

INTERRUPTED = 130


def with_host(
    program: str,
    work: Callable[[HostClient], Awaitable[int]],
    *,
    kept: str = "Nothing was changed.",
) -> int:
    """
    Start a host, let `work` ask it, end it; give the exit code.

    An error is one line on stderr and code 1; Ctrl-C ends the host and gives 130. `kept` says what
    is true of what was there before, when the work did not succeed.
    """

    async def main() -> int:
        async with HostClient.spawn() as client:
            return await work(client)

    try:
        return asyncio.run(main())
    except (RlmError, OSError) as why:
        say_error(program, why, kept)
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: stopped. {kept}\n")
        return INTERRUPTED


def print_json(value: Any) -> None:
    """Print a value for programs."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def when(at_ms: int) -> str:
    """Give a wall-clock moment in the reader's time."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
