"""Keeping leases alive while their runs are worked on, and telling the work when to end."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from rlm_protocol.errors import LeaseLost, RlmError

from .stores.base import Control, Lease, RunStore

WATCH_S = 1.0
"""A request of another process is seen after this time, at most."""


class Hold:
    """
    A lease as the work under it sees it.

    `lost` says that another worker has the run. A failed renewal is not a lost lease: only when the
    lease has run out without one is the work asked to end, and even then the token decides.
    """

    def __init__(
        self, store: RunStore, lease: Lease, is_cancelled: Callable[[], bool] | None = None
    ) -> None:
        self.lease = lease
        self.lost = False
        self.control = lease.row.control
        self._store = store
        self._is_cancelled = is_cancelled
        self._aborted = False
        self._confirmed_s = time.monotonic()

    @property
    def cancelled(self) -> bool:
        """Whether the work should end."""
        return self.lost or self._aborted or self.cancel_reason is not None or self.ran_out

    @property
    def cancel_reason(self) -> str | None:
        """Why the run is to be cancelled, or None."""
        if self.control.cancel is not None:
            return self.control.cancel
        wanted = self._is_cancelled is not None and self._is_cancelled()
        return "cancelled" if wanted else None

    @property
    def ran_out(self) -> bool:
        """Whether the lease's time has passed without a renewal."""
        return self.age_s > self.lease.ttl_ms / 1000

    @property
    def age_s(self) -> float:
        """Seconds since the lease was last known to be ours."""
        return time.monotonic() - self._confirmed_s

    @property
    def due(self) -> bool:
        """Whether it is time for a renewal."""
        return self.age_s >= _pause_s(self.lease)

    def abort(self) -> None:
        """Ask the work to end; the run stays as it is."""
        self._aborted = True

    def confirm(self, control: Control) -> None:
        """Take note of a write under the lease that has succeeded."""
        self._confirmed_s = time.monotonic()
        self.control = control

    def check(self) -> None:
        """Renew the lease if that is due. Raises LeaseLost."""
        if self.due and not self.lost:
            self.settle(self._try_renew())
        if self.lost:
            raise LeaseLost(run_id=self.lease.run_id, token=self.lease.token)

    def settle(self, outcome: Control | Exception) -> None:
        """Take note of how a renewal went."""
        if isinstance(outcome, Control):
            self.confirm(outcome)
        elif isinstance(outcome, LeaseLost):
            self.lost = True

    def _try_renew(self) -> Control | Exception:
        try:
            return self._store.renew(self.lease)
        except RlmError as why:
            return why


class LeaseKeeper:
    """
    Renews the leases of all runs that one kernel works on, from one thread.

    The thread lives while there is a lease to keep.
    """

    def __init__(self, store: RunStore, watch_s: float = WATCH_S) -> None:
        self._store = store
        self._watch_s = watch_s
        self._holds: set[Hold] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._poked = False

    @contextlib.contextmanager
    def keep(self, lease: Lease, is_cancelled: Callable[[], bool] | None = None) -> Iterator[Hold]:
        """Keep the lease for the length of the block. It is not released."""
        hold = Hold(self._store, lease, is_cancelled)
        with self._changed:
            self._holds.add(hold)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._keep_all, name="loop-leases", daemon=True
                )
                self._thread.start()
            elif _pause_s(lease) < self._watch_s:
                self._look_now()
        try:
            yield hold
        finally:
            with self._changed:
                self._holds.discard(hold)
                if not self._holds:
                    self._changed.notify()

    def poke(self) -> None:
        """Look at once what operators want."""
        with self._changed:
            self._look_now()

    def _look_now(self) -> None:
        self._poked = True
        self._changed.notify()

    def _keep_all(self) -> None:
        # A request of another process that its store hints at is seen sooner.
        with self._store.hints(self.poke, of="requests"):
            self._keep_while_held()

    def _keep_while_held(self) -> None:
        while True:
            with self._changed:
                pauses_s = [_pause_s(hold.lease) for hold in self._holds]
                self._changed.wait_for(
                    lambda: self._poked or not self._holds,
                    min((*pauses_s, self._watch_s)),
                )
                self._poked = False
                holds = [hold for hold in self._holds if not hold.lost]
                if not self._holds:
                    self._thread = None
                    return
            self._renew([hold for hold in holds if hold.due])
            self._watch(holds)

    def _renew(self, due: list[Hold]) -> None:
        if not due:
            return
        renewals = [lambda hold=hold: self._store.renew(hold.lease) for hold in due]
        for hold, outcome in zip(due, self._store.together(renewals), strict=True):
            hold.settle(outcome)

    def _watch(self, holds: list[Hold]) -> None:
        for hold in holds:
            # A store that cannot be read now will say so to the work itself, at its next write.
            with contextlib.suppress(RlmError):
                row = self._store.head(hold.lease.run_id)
                hold.control = row.control
                hold.lost = hold.lost or row.token != hold.lease.token


def _pause_s(lease: Lease) -> float:
    """Give the seconds between renewals of a lease."""
    return lease.ttl_ms / 3000
