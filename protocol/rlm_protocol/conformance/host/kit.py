"""The host under test as checks see it: a shared connection, fresh ones, a home of its own."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..language import Language
from ..promise import Broken, NotSupported, Violations
from .driver import Host

START_S = 60.0
ENDS_S = 5.0
"""A host must be gone within a second; a loaded machine may need this long."""


class HostKit:
    """
    Owns the shared connection for the length of a `with` block.

    Every process gets the same `RLM_HOME`, an empty folder in `directory`, so that a run touches
    nothing of the user's. `timeout_s` bounds every single wait. `adopts` says that leftover
    processes become our children, so that they can be counted.
    """

    announced: int | None = None
    """Hosts negotiate; no promise depends on an older number."""

    def __init__(
        self,
        command: Sequence[str],
        language: Language,
        directory: Path,
        *,
        timeout_s: float = 20.0,
        adopts: bool = False,
    ) -> None:
        self.command = list(command)
        self.language = language
        self.home, self.workspace = directory / "home", directory / "workspace"
        self.timeout_s = timeout_s
        self.adopts = adopts
        self.violations = Violations()
        self._shared: Host | None = None
        self._started = False
        self._dead: str | None = None
        self._paths = 0

    def __enter__(self) -> "HostKit":
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.workspace.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def shared(self) -> Host:
        """Give the initialized connection that checks share."""
        if self._shared is not None and self._shared.child.returncode is not None:
            self.discard()
        if self._shared is None:
            self._shared = self._start()
            self._shake_hands(self._shared)
        return self._shared

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Host]:
        """Own a process that has heard nothing yet, for the length of a block."""
        host = self._start()
        with host.child:
            yield host

    @contextlib.contextmanager
    def initialized(self) -> Iterator[Host]:
        """Own an initialized process for the length of a block."""
        with self.fresh() as host:
            self._shake_hands(host)
            yield host

    def discard(self) -> None:
        """End the shared connection, if there is one."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.child.end()

    def path(self, suffix: str = "") -> Path:
        """Give a path that nothing lies at."""
        self._paths += 1
        return self.workspace / f"{self._paths}{suffix}"

    def needs(self, host: Host, *methods: str) -> None:
        """Raise NotSupported unless `initialize` announces these methods."""
        missing = [method for method in methods if method not in host.offered]
        if missing:
            raise NotSupported(f"`initialize` does not announce {', '.join(missing)}")

    def _start(self) -> Host:
        if self._dead is not None:
            raise Broken(self._dead)
        return Host(
            self.command,
            self.violations,
            timeout_s=self.timeout_s,
            env={"RLM_HOME": str(self.home)},
        )

    def _shake_hands(self, host: Host) -> None:
        usual_s, host.timeout_s = host.timeout_s, host.timeout_s
        if not self._started:
            host.timeout_s = max(START_S, usual_s)  # the first start of a command may be slow
        try:
            host.initialize()
        except Broken as why:
            if not self._started:
                self._dead = f"it cannot be initialized: {why}"  # do not wait for it again
            host.child.end()
            raise
        self._started = True
        host.timeout_s = usual_s


Check = Callable[[HostKit], None]
