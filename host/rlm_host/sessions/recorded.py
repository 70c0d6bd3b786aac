"""
What every loaded session keeps: its journal, the folds of it, who listens, and its tasks.

The base of `SessionActor`. Here is the one place where a durable record becomes state and news.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlm_protocol import records as r
from rlm_protocol.base import Cursor
from rlm_protocol.errors import RlmError, SessionClosed
from rlm_protocol.item import ItemCompleted
from rlm_protocol.session import Session, SessionResumeResult, SessionStatusChanged
from rlm_protocol.usage import Usage, UsageUpdated

from ..clock import Clock
from ..kernels.skills import Skills
from ..paths import Directory
from .files import Files
from .journal import Journal, store_error
from .notifications import Notification, notification_of
from .ports import KernelFactory, Models, SessionPorts
from .recovery import MARK_EVERY, Mark, Recovered, checkpoint_name, encode_checkpoint, read
from .replay import missed_by
from .scan import Found
from .subscriptions import Listener, Subscriptions
from .transcript import Transcript
from .turn import error_item

if TYPE_CHECKING:
    from .session import SessionActor

log = logging.getLogger(__name__)

CHECKPOINT_EVERY = 1000
CHECKPOINT_IDLE = 100
"""Records after which a checkpoint is written; when idle, fewer are enough."""
USAGE_EVERY_S = 0.25

T = TypeVar("T")


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions of a store share. `random` gives numbers in [0, 1)."""

    home: Path
    clock: Clock
    executor: Executor
    files: Files
    skills: Skills
    kernels: KernelFactory
    models: Models
    ports: SessionPorts
    new_id: Callable[[str], str]
    random: Callable[[], float]
    loaded: "Mapping[str, SessionActor]"
    """The sessions that are open in this process, by id."""


class Recorded:
    """
    A journal with everything that follows from it.

    Attributes:
        state: the fold of what is durable. Read it, never change it.
        folds: folds of other owners, by the name they have in `SessionPorts.folds`.
        artifacts_path: the session's own folder, RLM_SESSION_DIR of its kernel.
        closing: set when the session takes nothing new.
        used_ms: when it was last asked for, or changed, on the monotonic clock.
    """

    def __init__(
        self,
        shared: Environment,
        recovered: Recovered,
        *,
        directory: Directory,
        journal_name: str,
        artifacts_path: Path,
    ) -> None:
        self.clock, self.models, self.ports = shared.clock, shared.models, shared.ports
        self.new_id, self.random = shared.new_id, shared.random
        self.state, self.folds = recovered.state, recovered.folds
        self.id = self.state.id
        self.artifacts_path = artifacts_path
        self.subscriptions = Subscriptions(self.id)
        self.subscriptions.durable(self.state.seq, None)
        self.closing = False
        self.used_ms = self.clock.monotonic_ms()
        self.transcript = Transcript()
        self._shared, self._directory, self._name = shared, directory, journal_name
        ephemeral = self.state.opened.ephemeral
        self._paths: dict[str, Any] = {
            "journal_path": None if ephemeral else str(directory.path / journal_name),
            "artifacts_path": str(artifacts_path),
        }
        self._marks, self._checkpointed = recovered.marks, recovered.from_seq
        self._checkpointing: asyncio.Future[None] | None = None
        self._arrived: list[r.Entry] | None = None  # entries while the transcript is being read
        self._transcript_read = False
        self._tasks: set[asyncio.Future[Any]] = set()
        self._usage_timer: asyncio.TimerHandle | None = None
        self._journal = Journal(
            directory,
            journal_name,
            place=recovered.place,
            files=shared.files,
            executor=shared.executor,
            now_ms=shared.clock.now_ms,
            on_durable=self._on_durable,
            on_failed=self.subscriptions.failed,
        )

    def view(self) -> Session:
        """What a client sees of the session now."""
        return msgspec.structs.replace(self.summary(), options=self.state.options)

    def summary(self) -> Session:
        """What a list shows of the session now."""
        return self.state.view(**self._paths)

    @property
    def home(self) -> Path:
        """RLM_HOME of the host."""
        return self._shared.home

    @property
    def skills(self) -> Skills:
        """Where the skills of this host come from."""
        return self._shared.skills

    @property
    def folder(self) -> Path:
        """The folder that holds the journal."""
        return self._directory.path

    @property
    def depth(self) -> int:
        """0 for a root session."""
        return self.state.opened.parent.depth if self.state.opened.parent else 0

    @property
    def ancestors(self) -> "tuple[SessionActor, ...]":
        """The sessions above this one, its parent first; they are open while it is."""
        link, found = self.state.opened.parent, []
        while link is not None and (above := self._shared.loaded.get(link.session_id)) is not None:
            found.append(above)
            link = above.state.opened.parent
        return tuple(found)

    @property
    def descendants(self) -> "tuple[SessionActor, ...]":
        """The open sessions below this one."""
        others = tuple(self._shared.loaded.values())
        return tuple(one for one in others if any(above is self for above in one.ancestors))

    # --- the journal ---

    @property
    def last_seq(self) -> int:
        """The number of the record that was written last, durable or not yet."""
        return self._journal.last_seq

    def write(self, record: r.Record, *, linger_ms: int = 0) -> "asyncio.Future[r.Entry]":
        """Add a record without waiting for it; see `Journal.append`."""
        return self._journal.append(record, linger_ms=linger_ms)

    async def append(self, *given: r.Record) -> r.Entry:
        """Make records durable, in one write; give the last one's entry. Published in order."""
        futures = [self._journal.append(record) for record in given]
        return await futures[-1]

    def touch(self) -> None:
        """Note that somebody uses the session."""
        self.used_ms = self.clock.monotonic_ms()

    def _on_durable(self, written: list[Found]) -> None:
        if not all(isinstance(found.entry.record, r.SnapshotTaken) for found in written):
            self.touch()  # a snapshot is taken of what nobody uses, too
        for found in written:
            entry = found.entry
            self.state.apply(entry)
            for fold in self.folds.values():
                fold.apply(entry)
            if self._arrived is not None:
                self._arrived.append(entry)
            elif self._transcript_read:
                self.transcript.apply(entry)
            if entry.seq % MARK_EVERY == 0:
                self._marks.append(Mark(entry.seq, found.offset))
            self.subscriptions.durable(entry.seq, self._notification(entry))
            if isinstance(entry.record, r.TurnAccepted | r.TurnCompleted):
                self._emit_status()
        if self._usage_timer is None:
            loop = asyncio.get_running_loop()
            self._usage_timer = loop.call_later(USAGE_EVERY_S, self._emit_usage, self.state.subtree)
        self._checkpoint(unless_fewer=CHECKPOINT_EVERY)

    def _notification(self, entry: r.Entry) -> Notification | None:
        return notification_of(entry, self.id, self.view)

    def _checkpoint(self, *, unless_fewer: int = 1) -> None:
        """Write the fold to disk beside the loop, when that many records came since the last."""
        if self.state.seq - self._checkpointed < unless_fewer:
            return
        if self._checkpointing is not None and not self._checkpointing.done():
            return  # a later one will hold what this one would have
        body = encode_checkpoint(self.state, self.folds, self._journal.place, self._marks)
        self._checkpointed = self.state.seq
        name = checkpoint_name(self._name)
        self._checkpointing = self.launch(self.in_thread(self._directory.write, name, body))

    async def _last_checkpoint(self) -> None:
        """Have the checkpoint hold everything."""
        for _ in range(2):
            if self._checkpointing is not None:
                await asyncio.wait([self._checkpointing])
            self._checkpoint()

    async def load_transcript(self) -> None:
        """Have `transcript` hold the whole context. Reads the journal once, in a thread."""
        if self._transcript_read:
            return
        upto, self._arrived = self.state.seq, []
        try:
            await self.in_thread(self._read_transcript, upto)
            for entry in self._arrived:
                self.transcript.apply(entry)
            self._transcript_read = True
        finally:
            self._arrived = None

    def _read_transcript(self, upto: int) -> None:
        for found in self._read():
            if found.entry.seq > upto:
                break
            self.transcript.apply(found.entry)

    # --- clients ---

    async def attach(self, listener: Listener, cursor: Cursor | None = None) -> SessionResumeResult:
        """
        Send everything from now on to `listener`, behind what `cursor` has missed.

        All of that has been handed over when this returns, but for what is still to come.
        """
        self._check_open()
        subscription = self.subscriptions.add(listener)
        view, at_seq = self.view(), self.state.seq
        unfinished = self.subscriptions.open_items(self.state.gen)
        try:
            replay, missed = await self.in_thread(
                missed_by, cursor, self.state.gen, at_seq, self.state.damage, self._read_after
            )
        except BaseException:
            self.subscriptions.remove(listener)
            raise
        told = [one for entry in missed if (one := self._notification(entry)) is not None]
        subscription.caught_up([*told, *unfinished])
        return SessionResumeResult(
            session=view, replay=replay, cursor=Cursor(gen=view.gen, seq=at_seq)
        )

    def detach(self, listener: Listener) -> None:
        """Send nothing more to `listener`."""
        self.subscriptions.remove(listener)

    def where(self, seq: int | None = None) -> dict[str, Any]:
        """Give the fields that every notification has; `seq` is by default the last record's."""
        return {
            "session_id": self.id,
            "seq": self.last_seq if seq is None else seq,
            "gen": self.state.gen,
        }

    def emit(self, method: str, payload: msgspec.Struct, *, after_seq: int | None = None) -> None:
        """Send a notification that is no record (deltas, status) to all listeners, in order."""
        self.subscriptions.emit(self.last_seq if after_seq is None else after_seq, method, payload)

    def tell_error(self, why: RlmError) -> None:
        """Tell clients of an error that cannot be recorded."""
        turn_id = self.state.turn.turn_id if self.state.turn else None
        item = error_item(self.new_id("error"), turn_id, why, self.clock.now_ms())
        payload = ItemCompleted(**self.where(self.state.seq), item=item)
        self.subscriptions.emit(self.state.seq, "item/completed", payload)

    def _emit_status(self) -> None:
        self.emit(
            "session/statusChanged",
            SessionStatusChanged(
                **self.where(self.state.seq),
                status=self.state.status(),
            ),
            after_seq=self.state.seq,
        )

    def _emit_usage(self, before: Usage) -> None:
        self._usage_timer = None
        state = self.state
        if state.subtree != before:
            payload = UsageUpdated(
                **self.where(state.seq),
                own=state.own,
                subtree=state.subtree,
                budget=state.options.budget,
            )
            self.emit("usage/updated", payload, after_seq=state.seq)

    # --- tasks ---

    def adopt(self, task: "asyncio.Future[T]") -> "asyncio.Future[T]":
        """Own a task that somebody awaits: it is ended when the session closes."""
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def beside(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """
        Own work that goes on when the caller who awaits it is cancelled, as `adopt` owns a task.

        It is `asyncio.shield` without its passes of the loop: the work itself wakes the caller.
        """
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def over(_: object) -> None:  # cancelled, maybe before it began
            work.close()
            told.cancel()

        self.adopt(asyncio.ensure_future(_tell(told, work))).add_done_callback(over)
        return told

    def launch(self, task: "asyncio.Future[T] | Coroutine[Any, Any, T]") -> "asyncio.Future[T]":
        """Own a task that nobody awaits: its error is logged."""
        owned = self.adopt(asyncio.ensure_future(task))
        owned.add_done_callback(self._look_at)
        return owned

    def _disown(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # one that was left behind is not reported a second time

    def _look_at(self, task: "asyncio.Future[Any]") -> None:
        why = None if task.cancelled() else task.exception()
        if isinstance(why, RlmError | OSError):
            log.warning("session %s: %s", self.id, why)
        elif why is not None:
            log.error("a task of session %s failed with a bug", self.id, exc_info=why)

    def in_thread(self, work: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Run blocking work beside the loop."""
        return asyncio.get_running_loop().run_in_executor(self._shared.executor, work, *args)

    def _check_open(self) -> None:
        if self.closing:
            raise SessionClosed(session_id=self.id)

    def _read(self, *, offset: int = 0, after_seq: int = 0) -> Iterator[Found]:
        """Read the journal. Raises StoreUnavailable."""
        try:
            yield from read(self._directory, self._name, offset=offset, after_seq=after_seq)
        except OSError as why:
            raise store_error(why, str(self._directory.path / self._name)) from why

    def _read_after(self, seq: int) -> Iterator[Found]:
        """Yield the records behind `seq`, from the nearest place that is known. Blocks."""
        near = [mark for mark in self._marks if mark.seq <= seq]
        offset, before = (near[-1].offset, near[-1].seq - 1) if near else (0, 0)
        for found in self._read(offset=offset, after_seq=before):
            if found.entry.seq > seq:
                yield found


async def _tell(told: "asyncio.Future[T]", work: Coroutine[Any, Any, T]) -> None:
    """Do the work, and hand its outcome to whoever still waits for it."""
    try:
        result = await work
    except Exception as why:
        if not told.done():
            told.set_exception(why)
    else:
        if not told.done():
            told.set_result(result)
