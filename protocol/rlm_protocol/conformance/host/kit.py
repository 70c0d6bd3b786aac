"""The host under test as checks see it."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from ..kit import Kit
from ..promise import NotSupported
from .driver import Host

ENDS_S = 5.0
"""A host must be gone within a second; a loaded machine may need this long."""


class HostKit(Kit[Host]):
    """
    A host serves once it is initialized.

    Every process gets the same `RLM_HOME`, an empty folder in `directory`, so that a run touches
    nothing of the user's; sessions work in `workspace`.
    """

    @property
    def home(self) -> Path:
        """The `RLM_HOME` of the run."""
        return self.directory / "home"

    @property
    def workspace(self) -> Path:
        """The working directory of sessions."""
        return self.directory / "workspace"

    def __enter__(self) -> Self:
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.workspace.mkdir(exist_ok=True)
        return super().__enter__()

    def _start(self) -> Host:
        env = {"RLM_HOME": str(self.home)}
        return Host(self.command, self.violations, timeout_s=self.timeout_s, env=env)

    def _greet(self, peer: Host) -> None:
        peer.initialize()

    def needs(self, host: Host, *methods: str) -> None:
        """Raise NotSupported unless `initialize` announces these methods."""
        missing = [method for method in methods if method not in host.offered]
        if missing:
            raise NotSupported(f"`initialize` does not announce {', '.join(missing)}")


Check = Callable[[HostKit], None]
