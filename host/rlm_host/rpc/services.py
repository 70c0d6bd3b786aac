"""The host's services as handlers see them: built by app.py, never by a handler."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..config_file import ConfigFile
from .attachment import Attachments
from .detaching import is_working
from .feeds import Feeds
from .loop_clients import LoopClients

if TYPE_CHECKING:
    from ..children.service import ChildrenService
    from ..loops.service import LoopService
    from ..models.registry import Models
    from ..sessions.session import SessionActor
    from ..sessions.store import SessionStore


class Agents(Protocol):
    """Models and sessions: loaded by their first use, for a host's start must not wait for them."""

    @property
    def models(self) -> "Models":
        """Raises ConfigInvalid when a provider's table is wrong."""

    @property
    def sessions(self) -> "SessionStore":
        """Raises ConfigInvalid when a provider's table is wrong."""

    @property
    def children(self) -> "ChildrenService":
        """Raises ConfigInvalid when a provider's table is wrong."""

    @property
    def open_sessions(self) -> "tuple[SessionActor, ...]":
        """Give the sessions that are loaded; asking loads nothing."""


class Loops(Protocol):
    """Durable loops: loaded by their first use."""

    @property
    def running(self) -> int:
        """How many runs this host is working on; asking loads nothing."""

    async def get(self) -> "LoopService":
        """Give what moves them."""


@dataclass(kw_only=True, slots=True)
class Services:
    """One host. Clocks give milliseconds: `now_ms` since the epoch, `uptime_ms` since the start."""

    home: Path
    config_file: ConfigFile
    now_ms: Callable[[], int]
    uptime_ms: Callable[[], int]
    stop: Callable[[str], None]
    """End the whole host; the argument says why."""
    agents: Agents
    loops: Loops
    loop_clients: LoopClients
    attachments: Attachments = field(default_factory=Attachments)
    feeds: Feeds = field(default_factory=Feeds)

    @property
    def models(self) -> "Models":
        """All models of the host."""
        return self.agents.models

    @property
    def sessions(self) -> "SessionStore":
        """All sessions of the host."""
        return self.agents.sessions

    @property
    def children(self) -> "ChildrenService":
        """All children of these sessions."""
        return self.agents.children

    @property
    def busy(self) -> bool:
        """Whether somebody is attached, or a turn, a cell or a run is going on."""
        return (
            len(self.attachments) > 0
            or self.loops.running > 0
            or any(is_working(actor) for actor in self.agents.open_sessions)
        )
