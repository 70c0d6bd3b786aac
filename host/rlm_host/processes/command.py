"""One-shot commands: a loop's `command` step, git, uv. In, out, and nothing left running."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rlm_protocol.limits import MIB

from . import reaper
from .pipes import to_the_end
from .spawn import Processes

OUTPUT_BYTES = 16 * MIB


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended, with all it started. `exit_code` is negative for a signal."""

    exit_code: int
    stdout: bytes
    dropped_bytes: int
    """Bytes of stdout beyond the limit."""
    stderr_tail: str
    duration_ms: int


async def run_command(
    processes: Processes,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    input: bytes = b"",  # noqa: A002
    timeout_ms: int | None = None,
    grace_ms: int = 0,
    max_output_bytes: int = OUTPUT_BYTES,
) -> Finished:
    """
    Run a command to its end and give what it said.

    However this ends, the command's whole tree is gone, daemons that it started included; the host
    killed with SIGKILL included.

    Args:
        processes: owner of the process.
        argv: program (looked up in `env`'s PATH) and arguments.
        env: the whole environment.
        cwd: working directory.
        input: written to its stdin, then the end of stream.
        timeout_ms: milliseconds until the tree is killed; None for no limit.
        grace_ms: milliseconds between SIGTERM and the end of the tree, on timeout or cancellation.
        max_output_bytes: what is kept of stdout, from its beginning.

    Raises:
        FileNotFoundError: there is no such program or no such folder.
        TimeoutError: it took longer than `timeout_ms`.
    """
    program = _find(argv[0], env, cwd)
    started = time.monotonic_ns()
    kept, dropped = bytearray(), 0

    def on_stdout(data: bytes) -> None:
        nonlocal dropped
        room = max_output_bytes - len(kept)
        kept.extend(data[:room])
        dropped += max(0, len(data) - room)

    guard = [sys.executable, "-I", "-S", reaper.__file__, program, *argv[1:]]
    async with processes.spawn(
        guard, env=env, cwd=cwd, on_stdout=on_stdout, guarded=True, label=Path(program).name
    ) as child:
        child.stdin.write(input)
        child.stdin.close(flush=True)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                exit_ = await asyncio.shield(child.ended)
        except (TimeoutError, asyncio.CancelledError):
            if grace_ms:
                child.terminate()
                await to_the_end(asyncio.wait({child.ended}, timeout=grace_ms / 1000))
            raise
    return Finished(
        exit_code=exit_.code,
        stdout=bytes(kept),
        dropped_bytes=dropped,
        stderr_tail=exit_.stderr_tail,
        duration_ms=(time.monotonic_ns() - started) // 1_000_000,
    )


def _find(program: str, env: Mapping[str, str], cwd: Path) -> str:
    named = str(cwd / program) if os.sep in program else program
    found = shutil.which(named, path=env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(f"there is no program {program!r} on the PATH of this command")
    return found
