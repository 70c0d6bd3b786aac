"""
Values against schemas of others, without the host waiting for them.

Most schemas are checked in a thread. A pattern holds Python's lock for as long as it matches, which
may be years, and `uniqueItems` compares all with all: schemas with these are checked in a process
that has five seconds.
"""

import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from ..processes.command import run_command
from ..processes.spawn import Processes
from .json_schema import Mismatch, is_slow, mismatch

TIME_MS = 5_000


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    schema: dict[str, Any] | bool
    value: Any


class Checker:
    """Checks values. `processes` owns the processes of slow schemas."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def mismatch(self, schema: dict[str, Any] | bool, value: Any) -> Mismatch | None:
        """Hold a JSON value to a schema; one that cannot be checked in five seconds misfits."""
        if not is_slow(schema):
            return await anyio.to_thread.run_sync(mismatch, schema, value)
        question = msgspec.json.encode(_Question(schema=schema, value=value))
        try:
            done = await run_command(
                self._processes,
                [sys.executable, "-P", "-m", __name__],
                env={},
                cwd=Path("/"),
                input=question,
                timeout_ms=TIME_MS,
            )
        except TimeoutError:
            return Mismatch(
                reason=f"it could not be checked in {TIME_MS // 1000} s: the schema's patterns or "
                "uniqueItems take too long for it"
            )
        if done.exit_code != 0:
            return Mismatch(reason=f"it could not be checked: {done.stderr_tail[-500:]}")
        return msgspec.json.decode(done.stdout, type=Mismatch | None)


def main() -> None:
    """Answer one question on stdin; the body of the process."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    sys.stdout.buffer.write(msgspec.json.encode(mismatch(asked.schema, asked.value)))


if __name__ == "__main__":
    main()
