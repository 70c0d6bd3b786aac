"""The actor of one session: everything that changes it goes through here, its journal first."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from rlm_protocol import records as r
from rlm_protocol.base import Cursor
from rlm_protocol.item import Item
from rlm_protocol.repl import ReplExecuteResult
from rlm_protocol.session import Budget, Session, SessionOptions, SessionResumeResult, Thinking
from rlm_protocol.turn import QueuedInput

from .ports import Fold, Kernel
from .state import SessionState

Listener = Callable[[str, msgspec.Struct], None]
"""`(method, payload)`, called in the loop, in order; must not block and must not raise."""


class SessionActor:
    """
    One loaded session. Made by `SessionStore` alone; everything is called in the event loop.

    Every public coroutine may raise SessionClosed, StoreFull and StoreUnavailable; then nothing
    of what was asked has happened.
    """

    id: str
    state: SessionState
    """The fold of what is durable. Read it, never change it."""
    folds: dict[str, Fold]
    """Folds of other owners, by the name they have in `SessionPorts.folds`."""
    kernel: Kernel
    artifacts_path: Path
    """The session's own folder: RLM_SESSION_DIR of its kernel."""

    def view(self) -> Session:
        """What a client sees of the session now."""
        raise NotImplementedError

    async def append(self, *given: r.Record) -> r.Entry:
        """Make records durable, in one write; give the last one's entry. Published in order."""
        raise NotImplementedError

    async def start_turn(
        self,
        text: str,
        *,
        client_message_id: str | None = None,
        output_schema: dict[str, Any] | None = None,
        budget: Budget | None = None,
        origin: r.Origin = "client",
    ) -> str:
        """Make an input durable and run a turn for it; give the turn's id. Raises TurnBusy."""
        raise NotImplementedError

    async def steer(self, expected_turn_id: str, text: str) -> None:
        """Add to the running turn. Raises TurnNotActive, TurnMismatch."""
        raise NotImplementedError

    async def queue(self, text: str) -> str:
        """Queue a follow-up, started at once when idle; give its id."""
        raise NotImplementedError

    def queued(self) -> tuple[QueuedInput, ...]:
        """Give the follow-ups that wait, oldest first."""
        raise NotImplementedError

    async def deliver(
        self,
        item: Item,
        *,
        shown: str,
        origin: r.Origin = "message",
        mode: Literal["steer", "follow_up"] = "steer",
    ) -> Literal["delivered", "queued"]:
        """
        Say something to the session: a new turn when it is idle, else steering or a follow-up.

        `item.id` identifies it: a second delivery of the same id, also after a restart, changes
        nothing. `delivered` when a turn starts with it, `queued` when it waits for the running one.
        """
        raise NotImplementedError

    async def withdraw(self, item_id: str) -> bool:
        """Take back an input that waits. False: it was taken up already, or never queued."""
        raise NotImplementedError

    async def interrupt(self, turn_id: str | None = None, *, subtree: bool = False) -> str | None:
        """End the running turn; `turn/completed` follows in at most 1 s. Raises TurnMismatch."""
        raise NotImplementedError

    async def wait_idle(self) -> None:
        """Return when no turn runs and nothing waits."""
        raise NotImplementedError

    async def execute_cell(
        self,
        code: str,
        *,
        author: Literal["client", "child", "host"] = "client",
        silent: bool = False,
    ) -> ReplExecuteResult:
        """Run a cell in the session's kernel, behind those that wait. Raises Kernel* errors."""
        raise NotImplementedError

    async def rename(self, name: str) -> None:
        """Give the session another name."""
        raise NotImplementedError

    async def configure(self, options: SessionOptions) -> None:
        """Change the fields of the options that are given."""
        raise NotImplementedError

    async def set_model(self, model: str, thinking: Thinking | None) -> None:
        """Use another model from the next request on. Raises ModelUnavailable, AuthRequired, …"""
        raise NotImplementedError

    async def once(
        self,
        key: str | None,
        method: str,
        params: msgspec.Struct,
        run: Callable[[], Awaitable[Any]],
    ) -> Any:
        """
        Run a mutating request once per idempotency key; a repeat gets the recorded result.

        Raises:
            Uncertain: the key was received before a crash and has no result.
            Conflict: the key came before with another method or other parameters.
        """
        raise NotImplementedError

    async def attach(self, listener: Listener, cursor: Cursor | None = None) -> SessionResumeResult:
        """
        Send everything from now on to `listener`, after what `cursor` has missed.

        Replayed records and open items reach the listener right after this returned.
        """
        raise NotImplementedError

    def detach(self, listener: Listener) -> None:
        """Send nothing more to `listener`."""
        raise NotImplementedError

    def emit(self, method: str, payload: msgspec.Struct) -> None:
        """Send a notification that is no record (deltas, status) to all listeners, in order."""
        raise NotImplementedError

    async def close(self, *, reason: str = "shutdown") -> None:
        """End the turn, the kernel and the journal. Closing twice is fine."""
        raise NotImplementedError
