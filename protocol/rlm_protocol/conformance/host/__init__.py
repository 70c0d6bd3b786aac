"""The promises of a host, `rlm-host` or any other JSON-RPC server on stdio."""

from ..promise import Promise
from . import asking, life, repl, session, wire
from .kit import HostKit

PROMISES: tuple[Promise[HostKit], ...] = (
    *wire.PROMISES,
    *life.PROMISES,
    *session.PROMISES,
    *repl.PROMISES,
    *asking.PROMISES,
)
"""Every promise of a host, in the order in which they are checked."""
