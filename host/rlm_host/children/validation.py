"""
Values against contracts, without the host waiting for them: a schema comes from a cell.

Most schemas are checked in a thread. A pattern holds Python's lock for as long as it matches, which
may be years, and `uniqueItems` compares all with all: schemas with these are checked in a process
that has five seconds.
"""

import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from rlm_protocol.child import ResultContract
from rlm_protocol.errors import ResultInvalid

from ..processes.command import run_command
from ..processes.spawn import Processes
from .contract import check_value, is_slow

TIME_MS = 5_000


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    contract: ResultContract
    value: Any


class _Refusal(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    data: dict[str, Any]


class Validation:
    """Checks values. `processes` owns the processes of slow schemas."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def check(self, contract: ResultContract, value: Any) -> None:
        """
        Hold a JSON value to a contract's schema.

        Raises:
            ResultInvalid: it does not fit, or could not be checked in five seconds.
        """
        if not is_slow(contract.schema):
            await anyio.to_thread.run_sync(check_value, contract, value)
            return
        question = msgspec.json.encode(_Question(contract=contract, value=value))
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
            raise ResultInvalid(
                f"The value could not be checked in {TIME_MS // 1000} s: the contract's patterns "
                "or uniqueItems take too long for it. Nothing was stored."
            ) from None
        if done.exit_code != 0:
            raise ResultInvalid("The value could not be checked.", reason=done.stderr_tail[-500:])
        refusal = msgspec.json.decode(done.stdout, type=_Refusal | None)
        if refusal is not None:
            raise ResultInvalid(refusal.message, **refusal.data)


def main() -> None:
    """Answer one question on stdin; the body of the process."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    answer = None
    try:
        check_value(asked.contract, asked.value)
    except ResultInvalid as why:
        answer = _Refusal(message=why.message, data=why.data)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
