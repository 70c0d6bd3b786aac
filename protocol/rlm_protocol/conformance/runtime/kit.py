"""The runtime under test as checks see it."""

from collections.abc import Callable

from ..kit import Kit
from ..promise import Broken, NotSupported
from .driver import Cell, Runtime


class RuntimeKit(Kit[Runtime]):
    """A runtime serves once it has said `ready`."""

    def _start(self) -> Runtime:
        return Runtime(self.command, self.violations, timeout_s=self.timeout_s)

    def _greet(self, peer: Runtime) -> None:
        peer.wait(lambda: bool(peer.events), "`ready`")
        if peer.ready is None:
            raise Broken(f"the first event is `{peer.events[0]['event']}`, not `ready`")
        self.announced = peer.ready["protocol"]

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
