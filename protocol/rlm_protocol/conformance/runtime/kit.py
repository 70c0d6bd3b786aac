"""The runtime under test as checks see it: a shared process, fresh ones, cells, paths."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..language import Language
from ..promise import Broken, NotSupported, Violations
from .driver import Cell, Runtime

START_S = 30.0


class RuntimeKit:
    """
    Owns the shared process for the length of a `with` block.

    `directory` is a private one for paths that cells and snapshots use; the runtime must see the
    same file system. `timeout_s` bounds every single wait. `adopts` says that leftover processes
    become our children, so that they can be counted.
    """

    def __init__(
        self,
        command: Sequence[str],
        language: Language,
        directory: Path,
        *,
        timeout_s: float = 10.0,
        adopts: bool = False,
    ) -> None:
        self.command = list(command)
        self.language = language
        self.directory = directory
        self.timeout_s = timeout_s
        self.adopts = adopts
        self.violations = Violations()
        self.announced: int | None = None
        self._shared: Runtime | None = None
        self._dead: str | None = None
        self._paths = 0

    def __enter__(self) -> "RuntimeKit":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    # --- processes --------------------------------------------------------------------------------

    def shared(self) -> Runtime:
        """Give the process that checks share; its namespace holds what earlier ones left."""
        if self._shared is not None and self._shared.child.returncode is not None:
            self.discard()
        if self._shared is None:
            self._shared = self._start(None)
        return self._shared

    @contextlib.contextmanager
    def fresh(self, env: Mapping[str, str] | None = None) -> Iterator[Runtime]:
        """Own a process of its own for the length of a block."""
        runtime = self._start(env)
        with runtime.child:
            yield runtime

    def discard(self) -> None:
        """End the shared process, if there is one."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.child.end()

    def _start(self, env: Mapping[str, str] | None) -> Runtime:
        if self._dead is not None:
            raise Broken(self._dead)
        runtime = None
        try:
            runtime = Runtime(self.command, self.violations, timeout_s=self.timeout_s, env=env)
            start_s = max(self.timeout_s, START_S) if self.announced is None else self.timeout_s
            runtime.wait(lambda: bool(runtime.events), "`ready`", start_s)
            if runtime.ready is None:
                raise Broken(f"the first event is `{runtime.events[0]['event']}`, not `ready`")
        except BaseException as why:
            if runtime is not None:
                runtime.child.end()
            if isinstance(why, Broken) and self.announced is None:
                self._dead = str(why)  # it has never started: do not wait for it again
            raise
        self.announced = runtime.ready["protocol"]
        return runtime

    # --- cells and paths --------------------------------------------------------------------------

    def code(self, name: str, *, gate: Path | str = "", path: Path | str = "") -> str:
        """Give a cell of the language."""
        return self.language.code(name, gate=gate, path=path)

    def path(self, suffix: str = "") -> Path:
        """Give a path that nothing lies at."""
        self._paths += 1
        return self.directory / f"{self._paths}{suffix}"

    def needs(self, runtime: Runtime, feature: str) -> None:
        """Raise NotSupported unless `ready` announces a feature."""
        if feature not in runtime.features():
            raise NotSupported(f"`ready` does not announce the feature `{feature}`")


Check = Callable[[RuntimeKit], None]


def probe(kit: RuntimeKit, runtime: Runtime, what: str = "the next cell") -> None:
    """Hold the runtime to serving on: a simple cell gives its result."""
    cell = runtime.run(kit.code("value"))
    if cell.result != kit.language.field("value", "result"):
        raise Broken(f"{what} gives {cell.result!r} instead of its result")


def ended_by_interrupt(kit: RuntimeKit, runtime: Runtime, cell: Cell, snippet: str) -> None:
    """Hold a cell to ending as an interrupted one: its error, then `done` with status error."""
    done = runtime.done(cell.id)
    wanted = kit.language.field(snippet, "ename")
    if cell.ename != wanted or done["status"] != "error":
        raise Broken(f"it ended with {cell.ename} and status {done['status']}, not {wanted}")
