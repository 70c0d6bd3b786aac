"""All sessions of a home: create, find, list, fork, archive, delete; owner of every loaded one."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from rlm_protocol import records as r
from rlm_protocol.session import (
    SessionCreateParams,
    SessionForkParams,
    SessionItemsParams,
    SessionItemsResult,
    SessionListParams,
    SessionListResult,
)

from ..clock import Clock
from .ports import KernelFactory, Models, SessionPorts
from .session import SessionActor


class SessionStore:
    """
    Owns the sessions of `home`. An async context manager; leaving it closes every session.

    Args:
        home: RLM_HOME; created when the first session is.
        ephemeral_home: where non-persistent sessions lie.
        socket: this host's private socket, for `sessionLeased {owner}`.
        new_id: gives a fresh id for a prefix: `new_id("turn")`.
    """

    def __init__(
        self,
        *,
        home: Path,
        ephemeral_home: Path,
        clock: Clock,
        kernels: KernelFactory,
        models: Models,
        ports: SessionPorts,
        max_depth: int = 2,
        socket: str | None = None,
        new_id: Callable[[str], str] | None = None,
    ) -> None:
        raise NotImplementedError

    async def create(
        self, params: SessionCreateParams, *, parent: r.ParentLink | None = None
    ) -> SessionActor:
        """Create a session, durable on return. A child's `params` need no idempotency key."""
        raise NotImplementedError

    async def get(self, session_id: str) -> SessionActor:
        """Give the session, loaded when it is not. Raises SessionNotFound, SessionLeased, …"""
        raise NotImplementedError

    def loaded(self) -> tuple[SessionActor, ...]:
        """Give the sessions that are open in this process."""
        raise NotImplementedError

    async def list(self, params: SessionListParams) -> SessionListResult:
        """Give a page of root sessions, newest first."""
        raise NotImplementedError

    async def items(self, params: SessionItemsParams) -> SessionItemsResult:
        """Give a page of a session's items, in order."""
        raise NotImplementedError

    async def fork(self, params: SessionForkParams) -> SessionActor:
        """Copy a session's journal up to the end of a turn into a new session."""
        raise NotImplementedError

    async def delete(self, session_id: str) -> None:
        """Close the session and never open it again. Its files stay."""
        raise NotImplementedError

    async def run_all(self, what: Callable[[SessionActor], Awaitable[None]]) -> None:
        """Do something to every loaded session, one failing not hindering the others."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close every session."""
        raise NotImplementedError
