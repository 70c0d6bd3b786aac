"""
What others plug into a session: kernels and models below it, children and continuity above it.

`app.py` fills a `SessionPorts` once, before the store opens its first session. Hooks are awaited in
the order in which they were added; one that raises an RlmError refuses, any other error is our bug
and ends that session's turn only.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlm_protocol import bridge
from rlm_protocol import records as r
from rlm_protocol.errors import InvalidParams, MethodNotFound
from rlm_protocol.repl import SnapshotInfo
from rlm_protocol.usage import Usage

from ..kernels.cell import (
    CellOutcome,
    Completion,
    HostRequests,
    Inspection,
    KernelStatus,
    Names,
    OnEvent,
    OnSaved,
    OutputEvent,
    Revival,
    SnapshotReport,
)
from ..kernels.recipe import Recipe
from ..models.catalog import ModelInfo
from ..models.provider import Provider, Request

if TYPE_CHECKING:
    from .session import SessionActor

# --- below ----------------------------------------------------------------------------------------


class Kernel(Protocol):
    """A session's kernel, as `kernels.SessionKernel` offers it; its docstrings hold."""

    @property
    def status(self) -> KernelStatus: ...

    @property
    def pid(self) -> int | None: ...

    async def execute(
        self, code: str, *, cell_id: str, on_event: OnEvent, silent: bool = False
    ) -> CellOutcome: ...

    def interrupt(self, cell_id: str | None = None) -> bool: ...

    async def names(self, *, detail: bool = False) -> Names: ...

    async def complete(self, code: str, cursor: int) -> Completion: ...

    async def inspect(self, code: str, cursor: int) -> Inspection: ...

    def rebind(self) -> None: ...

    async def snapshot(self, *, prune_oversized: bool = False) -> SnapshotReport: ...

    async def save_unsaved(self) -> None: ...

    async def unload(self) -> bool: ...

    async def snapshots(self) -> tuple[SnapshotInfo, ...]: ...

    async def restore(self, snapshot_id: str | None = None) -> Revival: ...

    async def restart(self, *, restore: bool) -> Revival | None: ...

    async def stop(self) -> None: ...

    def kill(self) -> None: ...

    async def aclose(self, *, snapshot: bool = True) -> None: ...


class KernelFactory(Protocol):
    """Makes the kernel object of a session. No process starts before its first cell."""

    def __call__(
        self,
        *,
        recipe: Recipe,
        cwd: Path,
        session_dir: Path,
        depth: int,
        max_depth: int,
        host_requests: HostRequests,
        on_background: Callable[[OutputEvent], None],
        on_status: Callable[[KernelStatus], None],
        on_saved: OnSaved,
        persistent: bool,
        bootstrap: Callable[[], str],
    ) -> Kernel: ...


class Models(Protocol):
    """Which models there are, and who answers for them: `models.registry.Models`."""

    def resolve(self, selector: str) -> ModelInfo:
        """Give the model. Raises ModelUnavailable, AuthRequired; none is ever substituted."""

    def default(self, chosen: str | None = None) -> ModelInfo:
        """Give the model of a root session that may name one. Raises like `resolve`."""

    def provider_for(self, selector: str) -> tuple[ModelInfo, Provider]:
        """Give the model and what answers for it. Raises like `resolve`."""

    async def warm_up(self, provider: str) -> None:
        """Load what the provider's first request would have to wait for."""


# --- above ----------------------------------------------------------------------------------------

HostRequest = Callable[["SessionActor", Any, str | None], Awaitable[bridge.Reply]]
"""`(session, payload, cell_id)` → reply, for one type of `bridge.BRIDGE`. Raises RlmError."""

BeforeRequest = Callable[["SessionActor", Request, int], Awaitable[None]]
"""
`(session, request, attempt)`, after the intent's decision and before it is durable: reserve here.

Raises RlmError (BudgetExhausted) to refuse: nothing is sent and the turn fails with that error.
"""

AfterRequest = Callable[["SessionActor", int, Usage | None], Awaitable[None]]
"""`(session, attempt, usage)`, for every request that was let through; None: nothing was used."""

AfterTurn = Callable[["SessionActor", r.TurnCompleted], Awaitable[None]]
"""Called after the terminal record is durable and before the next input is taken up."""

OnIdle = Callable[["SessionActor"], Awaitable[None]]
"""Called when no turn runs and nothing waits; may start a turn or deliver an input."""

IsQuiet = Callable[["SessionActor"], bool]
"""Whether nothing of the hook's kind (children, background commands) is unsettled."""

OnStop = Callable[["SessionActor"], Awaitable[None]]
"""Stop everything below the session (`turn/interrupt {subtree}`)."""

HeldSince = Callable[["SessionActor"], int]
"""When a person stopped a tree that the session is in and that no person has gone on with; or 0."""

OnClose = Callable[["SessionActor"], Awaitable[None]]
"""Called when a session begins to close: end what belongs to it (seed: parent teardown)."""

OnLoad = Callable[["SessionActor"], Awaitable[None]]
"""Called when a session was loaded: what a crash left open is closed, no turn has started yet."""

MayOpen = Callable[[r.ParentLink, str], Awaitable[None]]
"""`(link, session_id)`, before a child is loaded. Raises SessionNotFound when it is deleted."""

Project = Callable[["SessionActor", r.Entry], tuple[str, msgspec.Struct] | None]
"""Give the notification that a record of another owner means to clients, or None."""


class Fold(Protocol):
    """
    State that is another owner's fold of the session's journal, for example its children.

    It is checkpointed with the session's own. `apply` is total and pure.
    """

    def apply(self, entry: r.Entry) -> None:
        """Take in the next record."""

    def dump(self) -> Any:
        """Give the state as JSON builtins, of bounded size."""

    def load(self, state: Any) -> None:
        """Take a dumped state; raises ValueError when it is none, and the journal is folded."""


class SessionPorts:
    """Owns the hooks. `folds` maps a name to the factory of a session's fold of that name."""

    def __init__(self) -> None:
        self.host_requests: dict[str, HostRequest] = {}
        self.before_request: list[BeforeRequest] = []
        self.after_request: list[AfterRequest] = []
        self.after_turn: list[AfterTurn] = []
        self.on_idle: list[OnIdle] = []
        self.is_quiet: list[IsQuiet] = []
        self.on_stop: list[OnStop] = []
        self.held_since: list[HeldSince] = []
        self.on_close: list[OnClose] = []
        self.on_load: list[OnLoad] = []
        self.may_open: list[MayOpen] = []
        self.project: dict[type, Project] = {}
        self.folds: dict[str, Callable[[], Fold]] = {}

    async def answer(
        self, session: "SessionActor", kind: str, payload: dict[str, Any], cell_id: str | None
    ) -> bridge.Reply:
        """
        Answer a host request of a cell.

        Raises:
            MethodNotFound: nobody offers this type.
            InvalidParams: the payload does not fit it.
        """
        row, handler = bridge.BRIDGE.get(kind), self.host_requests.get(kind)
        if row is None or handler is None:
            raise MethodNotFound(f"This host does not offer {kind[:64]!r}.", type=kind[:64])
        try:
            decoded = msgspec.convert(payload, row.payload)
        except msgspec.ValidationError as why:
            raise InvalidParams(f"{kind}: {why}", type=kind) from None
        return await handler(session, decoded, cell_id)
