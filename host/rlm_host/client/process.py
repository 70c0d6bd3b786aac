"""A host process that a client has started, and its end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlm_protocol.errors import HostLost
from rlm_protocol.limits import STDERR_TAIL_BYTES

from ..rpc.endpoint import Endpoint

EXIT_S, TERMINATE_S = 2.0, 2.0
"""How long a host may take for `exit`, and then for SIGTERM, before it is killed."""


class HostProcess:
    """Owns a host process that a client started, until `aclose`."""

    def __init__(self, process: asyncio.subprocess.Process, stderr_fd: int) -> None:
        self.pid = process.pid
        self._process = process
        self._stderr_fd: int | None = stderr_fd
        self._tail = bytearray()
        os.set_blocking(stderr_fd, False)
        asyncio.get_running_loop().add_reader(stderr_fd, self._read_stderr)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: Path | str | None,
    ) -> tuple["HostProcess", Endpoint]:
        """Start it, in a session of its own. Raises OSError; nothing is left behind then."""
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = pipes
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=dict(os.environ if env is None else env),
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            for fd in (to_stdin, from_stdout, from_stderr):
                os.close(fd)
            raise
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        return cls(process, from_stderr), Endpoint(from_stdout, to_stdin)

    @property
    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr."""
        self._read_stderr()
        return self._tail.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        """Its exit code, -n after signal n, None while it lives."""
        return self._process.returncode

    async def ended_early(self) -> HostLost:
        """Give the error of a host that went before it served, with what it said of it."""
        waiting = asyncio.ensure_future(self._process.wait())
        ended = await _ends(waiting, EXIT_S)
        waiting.cancel()
        code = f"with code {self.exit_code}" if ended else "its connection"
        said = self.stderr_tail.strip()
        told = f" It said: {said}" if said else ""
        return HostLost(
            f"The host ended {code} before it served.{told}",
            exit_code=self.exit_code,
            stderr_tail=said,
        )

    def signal(self, number: int) -> None:
        """Send it a signal; one that is gone is left alone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait for its end; give the exit code."""
        return await self._process.wait()

    async def aclose(self) -> None:
        """Wait for its end; after EXIT_S ask by SIGTERM, after TERMINATE_S kill its group."""
        waiting = asyncio.ensure_future(self._process.wait())
        try:
            if not await _ends(waiting, EXIT_S):
                self.signal(signal.SIGTERM)
                if not await _ends(waiting, TERMINATE_S):
                    self._kill()
                    await waiting
        except BaseException:
            self._kill()
            raise
        finally:
            waiting.cancel()
            self._close_stderr()

    def _kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read_stderr(self) -> None:
        while self._stderr_fd is not None:
            try:
                data = os.read(self._stderr_fd, STDERR_TAIL_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close_stderr()
                return
            self._tail += data
            del self._tail[:-STDERR_TAIL_BYTES]

    def _close_stderr(self) -> None:
        if self._stderr_fd is not None:
            asyncio.get_running_loop().remove_reader(self._stderr_fd)
            os.close(self._stderr_fd)
            self._stderr_fd = None


async def _ends(waiting: "asyncio.Future[int]", within_s: float) -> bool:
    done, _ = await asyncio.wait({waiting}, timeout=within_s)
    return bool(done)
