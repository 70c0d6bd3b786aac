"""The promises of a runtime, `python -P -m rlm.repl` or any other."""

from ..promise import Promise
from . import bridge, cells, interrupt, life, lines, output, snapshot
from .kit import RuntimeKit

PROMISES: tuple[Promise[RuntimeKit], ...] = (
    *lines.PROMISES,
    *cells.PROMISES,
    *output.PROMISES,
    *life.PROMISES,
    *interrupt.PROMISES,
    *bridge.PROMISES,
    *snapshot.PROMISES,
)
"""Every promise of a runtime, in the order in which they are checked."""
