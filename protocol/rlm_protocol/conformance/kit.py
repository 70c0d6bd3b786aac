"""The command under test as checks see it: a shared process, fresh ones, paths."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, Self, TypeVar

from .language import Language
from .peer import Peer
from .promise import Broken, Missing, NotSupported, Violations, expect

P = TypeVar("P", bound=Peer)
PATIENCE = 3
"""After so many answers that did not come, the rest of one promise is not tried."""


class Dead(Broken):
    """The command has never started; it is not waited for again."""


class Kit(abc.ABC, Generic[P]):
    """
    Owns the shared process for the length of a `with` block.

    `directory` is a private one; the command must see the same file system. `timeout_s` bounds
    every single wait. `adopts` says that leftover processes become our children, so that they can
    be counted.
    """

    announced: int | None = None
    """Protocol number that the command announced, where that matters for what it must know."""

    def __init__(
        self,
        command: Sequence[str],
        language: Language,
        directory: Path,
        *,
        timeout_s: float,
        adopts: bool = False,
    ) -> None:
        self.command = list(command)
        self.language = language
        self.directory = directory
        self.timeout_s = timeout_s
        self.adopts = adopts
        self.violations = Violations()
        self._shared: P | None = None
        self._worked = False
        self._dead: str | None = None
        self._paths = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @abc.abstractmethod
    def _start(self) -> P:
        """Start a process that has heard nothing yet."""

    @abc.abstractmethod
    def _greet(self, peer: P) -> None:
        """Bring a process to where it serves. Raises Broken when it does not come there."""

    def shared(self) -> P:
        """Give the process that checks share; what earlier ones left in it stays."""
        if self._shared is not None and self._shared.child.returncode is not None:
            self.discard()
        if self._shared is None:
            self._refuse_dead()
            self._shared = self._start()
            try:
                self._serve(self._shared)
            except BaseException:
                self.discard()
                raise
        return self._shared

    @contextlib.contextmanager
    def bare(self) -> Iterator[P]:
        """Own a process that has heard nothing yet, for the length of a block."""
        self._refuse_dead()
        peer = self._start()
        with peer.child:
            yield peer

    @contextlib.contextmanager
    def fresh(self) -> Iterator[P]:
        """Own a process that serves, for the length of a block."""
        with self.bare() as peer:
            self._serve(peer)
            yield peer

    def discard(self) -> None:
        """End the shared process, if there is one."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.child.end()

    def _refuse_dead(self) -> None:
        if self._dead is not None:
            raise Dead(self._dead)

    def _serve(self, peer: P) -> None:
        """Greet a process; a command that never came so far is not waited for again."""
        try:
            self._greet(peer)
        except Broken as why:
            if not self._worked:
                self._dead = f"it does not start: {why}"
            raise
        self._worked = True

    def each(self, cases: Iterable[tuple[str, Callable[[], None]]]) -> None:
        """Run named cases; raise one Broken for all that fail, NotSupported when none could run."""
        reasons, excuses, kept, missing = [], [], 0, 0
        for name, case in cases:
            if missing == PATIENCE:
                reasons.append("the rest was not tried")
                break
            try:
                case()
            except NotSupported as why:
                excuses.append(f"{name}: {why}")
            except Dead:
                raise
            except Broken as why:
                reasons.append(f"{name}: {why}")
                if isinstance(why, Missing):
                    missing += 1
                    self.discard()
            else:
                kept += 1
        expect(not reasons, "; ".join(reasons))
        if excuses and not kept:
            raise NotSupported("; ".join(excuses))

    def code(self, name: str, *, gate: Path | str = "", path: Path | str = "") -> str:
        """Give a cell of the language."""
        return self.language.code(name, gate=gate, path=path)

    def path(self, suffix: str = "") -> Path:
        """Give a path that nothing lies at."""
        self._paths += 1
        return self.directory / f"{self._paths}{suffix}"
