"""What a runtime and a host under test have in common: a process that one waits for."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from .child import Child
from .promise import Broken, Missing, Violations, expect, short


class Peer:
    """
    One process of the command, for the length of a `with` block of its `child`.

    A subclass takes its bytes in `_received` and holds what they say to the promises that every
    message must keep; what breaks them goes to `violations`. `timeout_s` bounds every single wait.
    """

    def __init__(
        self,
        command: Sequence[str],
        violations: Violations,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.violations = violations
        self.child = Child(command, self._received, env=env, grace_s=min(3.0, timeout_s))

    def wait(self, until: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Wait for a condition on what has been said. Raises Missing when it does not come true."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if not self.child.pump(until, timeout_s):
            self._missing(what, timeout_s)

    def taken(self) -> None:
        """Wait until everything that was sent has been read."""
        self.wait(lambda: self.child.unread_bytes == 0, "reader of what was sent")

    def gone(self, timeout_s: float, *codes: int) -> int:
        """Wait for the process to end, with one of these codes when any is given."""
        code = self.child.wait(timeout_s)
        if code is None:
            raise Broken(f"the process still runs after {timeout_s:g} s")
        expect(not codes or code in codes, f"the exit code is not {codes}", code=code)
        return code

    def _missing(self, what: str, timeout_s: float) -> NoReturn:
        tail = self.child.stderr_tail().strip().splitlines()[-1:]
        said = f"; its last words: {short(tail[0])}" if tail else ""
        if self.child.ended:
            raise Missing(f"no {what}: the process ended with {self.child.wait(1.0)}{said}")
        raise Missing(f"no {what} within {timeout_s:g} s{said}")

    def _received(self, data: bytes) -> None:
        raise NotImplementedError
