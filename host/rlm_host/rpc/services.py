"""The host's services as handlers see them: built by app.py, never by a handler."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..loops.service import LoopService
from .attachment import Attachments
from .loop_clients import LoopClients


@dataclass(kw_only=True, slots=True)
class Services:
    """One host. Clocks give milliseconds: `now_ms` since the epoch, `uptime_ms` since the start."""

    home: Path
    now_ms: Callable[[], int]
    uptime_ms: Callable[[], int]
    stop: Callable[[str], None]
    """End the whole host; the argument says why."""
    loops: LoopService
    loop_clients: LoopClients
    attachments: Attachments = field(default_factory=Attachments)
