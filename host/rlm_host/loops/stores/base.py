"""
The contract of a run store: leased, fenced, append-only event logs with a head row.

Rules that every store keeps, whatever its engine:

- an event, the head after it and the lease's extension are one transaction, conditional on the
  *token being equal*, never on a clock of the caller;
- the same key with the same body is already there, with another body it is a `Conflict`;
- what a call has returned is durable; a call that raised has changed nothing, unless it raised
  `StoreUnavailable`: then repeat it, for every call is idempotent;
- a terminal status is final; the first reason of a cancel is kept;
- bodies are checksummed, a store of a newer schema is refused by name.

`RunReader` is what every engine offers, `RunStore` adds the leases that a `LoopKernel` works
under; an engine with its own claims and leases offers only the former.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from rlm_protocol.loop import Provenance, RunStatus
from rlm_protocol.loop_records import Event, Head, Submitted

LEASE_MS = 30_000
"""How long a lease lasts without a renewal; a third of it passes between renewals."""
PAGE = 200
"""Events or runs of one page."""


def nothing() -> None:
    """Do nothing."""


ControlAction = Literal["cancel", "pause", "resume"]
HintsOf = Literal["requests", "all"]


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what a store returns. None of it is stored in this shape."""


class Control(_Row, frozen=True):
    """What operators want of a run: the reason of each request, or None."""

    cancel: str | None = None
    pause: str | None = None


class RunRow(_Row, frozen=True):
    """
    One run as it stands. `head` is the fold of its events.

    `config` is the stored form, for it may be one that this version cannot read. `claims` counts
    claims since the last append or clean release, the present one too. Times are wall clock.
    """

    run_id: str
    tenant: str
    workspace: str
    parent: str | None
    status: RunStatus
    reason: str | None
    config: bytes
    head: Head
    seq: int
    token: int
    owner: str | None
    claims: int
    control: Control
    created_at_ms: int
    updated_at_ms: int


class Lease(_Row, frozen=True):
    """The right to write to a run, until another claim: its token is larger than any before it."""

    run_id: str
    token: int
    ttl_ms: int
    row: RunRow


class EventRow(_Row, frozen=True):
    """One recorded event. `seq` counts from 1 without holes."""

    seq: int
    key: str
    token: int
    at_ms: int
    event: Event


class Appended(_Row, frozen=True):
    """`fresh` is False when every event was already there; `control` is as of this commit."""

    fresh: bool
    control: Control


class Page(_Row, frozen=True):
    """
    Runs, newest first. `cursor` gets the next page; None when this is the last.

    `damaged` names runs whose row cannot be read.
    """

    runs: tuple[RunRow, ...]
    damaged: tuple[str, ...]
    cursor: str | None


class Health(_Row, frozen=True):
    """`problems` is empty when the store is sound, as far as was looked."""

    engine: str
    location: str
    schema: int
    runs: int
    size_bytes: int
    problems: tuple[str, ...]


class RunReader(Protocol):
    """What can be asked of, and requested from, the runs of any engine."""

    def submit(self, run_id: str, submitted: Submitted) -> bool:
        """
        Create a run. Returns False when the same one was already there.

        Raises:
            Conflict: the id belongs to a run with another configuration or step.
        """

    def head(self, run_id: str) -> RunRow:
        """
        Give the run's row, without reading its events.

        Raises:
            RunNotFound: there is no such run.
            StoreCorrupt: the row is damaged.
        """

    def events(self, run_id: str, *, after: int = 0, limit: int = PAGE) -> tuple[EventRow, ...]:
        """
        Give at most `limit` events with a larger `seq` than `after`, in order.

        Raises:
            RunNotFound: there is no such run.
            StoreCorrupt: an event is damaged; the error names run and event.
        """

    def get(self, run_id: str, key: str) -> EventRow | None:
        """Give the event under this key, or None. Raises as `events` does."""

    def list(
        self,
        *,
        tenant: str | None = None,
        workspace: str | None = None,
        status: RunStatus | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> Page:
        """Give a page of runs, newest first, narrowed to what is given."""

    def request(self, run_id: str, action: ControlAction, reason: str) -> RunRow:
        """
        Ask for a cancel, a pause or a resume, and give the row after it.

        A living owner acts on it at its next boundary. With none it happens at once, except that a
        cancel leaves a generation whose apply may have begun to the next owner, who first ends it.
        On a terminal run nothing happens.
        """

    def fork(self, parent: str, generation: int, run_id: str, submitted: Submitted) -> bool:
        """
        Create a run that begins with the parent's generations 0 to `generation`.

        The parent is not changed, running or not. Returns and raises as `submit` does.

        Raises:
            ConfigInvalid: the parent has not completed that generation.
        """

    def health(self, *, deep: bool = False) -> Health:
        """Look at the store; `deep` reads all of it."""

    def hints(
        self, on_hint: Callable[[], None], of: HintsOf = "all"
    ) -> contextlib.AbstractContextManager[None]:
        """
        Call `on_hint`, from any thread, when a run may have changed, for the length of the block.

        Hints may be late, lost or wrong, and an engine may give none: whoever waits polls as well.
        """

    def close(self) -> None:
        """Give back what is open."""


class RunStore(RunReader, Protocol):
    """A store whose runs are claimed, leased and written by `LoopKernel`."""

    def claim(
        self,
        run_id: str,
        owner: str,
        *,
        ttl_ms: int = LEASE_MS,
        provenance: Provenance | None = None,
    ) -> Lease | None:
        """
        Take the run, or give None when it is terminal or paused.

        `owner` is for people: the same name does not make the same owner. With `provenance` the
        claim is an event of the run, in the claim's transaction.

        Raises:
            LeaseHeld: another worker holds a living lease; `data` names it.
        """

    def renew(self, lease: Lease) -> Control:
        """Extend the lease. Raises LeaseLost: it has another owner, or has ended."""

    def append(
        self,
        lease: Lease,
        events: Sequence[Event],
        head: Head,
        *,
        status: RunStatus = "running",
        reason: str | None = None,
    ) -> Appended:
        """
        Record events, the head after them and a status; extend the lease or, unless the run stays
        `running`, end it.

        Raises:
            LeaseLost: the token is not the run's; nothing was written.
            Conflict: another event has one of these keys; nothing was written.
        """

    def release(self, lease: Lease) -> None:
        """End the lease, if it still is this one's. The run stays as it is."""

    def adopt(self, row: RunRow, history: Sequence[EventRow]) -> bool:
        """
        Take over a run of another store with all its events as they are, and nobody as its owner.

        `history` is complete and `row.head` its fold. Returns False when it was already there.

        Raises:
            Conflict: the id belongs to a run with another history.
        """

    def prune(self, *, before_ms: int, limit: int = 100) -> int:
        """Delete at most `limit` terminal runs last changed before then; give how many."""

    def together(
        self, calls: Sequence[Callable[[], Any]], *, meanwhile: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        """
        Make calls to this store, durable at once where the engine can, and give their results.

        A call that raises does not touch the others; its exception is its result. `meanwhile` is
        called before the store waits for its disk or server, so that others work during that;
        again if the store begins again, and not at all if it cannot begin.
        """
