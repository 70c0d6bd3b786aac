"""
A session's state: the fold of its journal. Pure; of bounded size, whatever the journal's length.

`SessionState.apply` is total: records may be missing (damage) or unknown (a newer host), so an
input that fits nothing changes nothing. What needs the whole journal (items, the model's context)
is read from it, not kept here.
"""

from typing import Any, Literal

import msgspec

from rlm_protocol import records as r
from rlm_protocol.base import ErrorInfo
from rlm_protocol.child import ChildUsageAttributed
from rlm_protocol.errors import HostLost
from rlm_protocol.item import ReplCell, ToolCall
from rlm_protocol.session import Session, SessionOptions, SessionStatus, Thinking
from rlm_protocol.usage import Usage

REQUESTS_REMEMBERED = 1000
"""Idempotency keys of a session whose results are kept."""
INPUTS_REMEMBERED = 1000
"""Ids of inputs that were taken up or withdrawn: the same one delivered again is none."""
PERSONAL = ("client", "queue")
"""Origins of what a person said."""

HOST_ENDED = "The host ended meanwhile."
USER_CELLS = 20
USER_CODE_CHARS = 2000
"""Of a person's cells since the model was last asked, this much is remembered."""


class OpenTurn(msgspec.Struct, kw_only=True):
    """The turn that runs. `intent` is the attempt whose outcome is missing, 0 for none."""

    turn_id: str
    origin: r.Origin
    started_at_ms: int
    attempts: int = 0
    intent: int = 0
    output_schema: dict[str, Any] | None = None
    usage: Usage = Usage()


class OpenCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was handed to the kernel and whose item is not complete."""

    started_at_ms: int
    started: r.CellStarted


class OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A client was asked to run a tool, and the call's item is not complete."""

    started_at_ms: int
    started: r.ToolCallStarted


class KnownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an idempotency key: without `done`, received and no more."""

    method: str
    request: str
    done: bool = False
    result: Any = None
    error: dict[str, Any] | None = None


class UserCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that a person ran, for the model to be told of. `code` is cut."""

    code: str
    status: str


class SessionState(msgspec.Struct, kw_only=True):
    """
    The fold. Mutable, and changed by `apply` alone.

    `own` is this session's usage, `attributed` that of all descendants, folded in by records.
    """

    header: r.SessionOpened | None = None
    gen: int = 1
    seq: int = 0
    name: str = ""
    model: str = ""
    thinking: Thinking | None = None
    options: SessionOptions = SessionOptions()
    env_names: tuple[str, ...] = ()
    prompt: str = ""
    created_at_ms: int = 0
    updated_at_ms: int = 0
    archived: bool = False
    deleted: bool = False
    turn: OpenTurn | None = None
    turns: int = 0
    last_turn_id: str | None = None
    last_status: Literal["completed", "interrupted", "failed"] | None = None
    cells: int = 0
    open_cells: dict[str, OpenCell] = {}
    open_calls: dict[str, OpenCall] = {}
    open_approvals: dict[str, None] = {}
    pending: dict[str, r.InputQueued] = {}
    settled: dict[str, None] = {}
    held: bool = False
    """What waits starts no turn by itself (see `InputsHeld`)."""
    held_at_ms: int = 0
    person_at_ms: int = 0
    """When inputs were held, and when a person started a turn, for the last time."""
    user_cells: list[UserCell] = []
    """Cells of people since the model was last asked, the last of them."""
    requests: dict[str, KnownRequest] = {}
    own: Usage = Usage()
    attributed: Usage = Usage()
    kernel: int = 0
    snapshot: r.SnapshotTaken | None = None
    snapshot_seq: int = 0
    damage: list[r.DamageFound] = []

    @property
    def opened(self) -> r.SessionOpened:
        """The header. A state without one is never handed out by the store."""
        assert self.header is not None
        return self.header

    @property
    def id(self) -> str:
        """The session's id."""
        return self.opened.session_id

    @property
    def subtree(self) -> Usage:
        """Usage of this session and all its descendants."""
        return self.own + self.attributed

    def apply(self, entry: r.Entry) -> None:
        """Take in the next record. Records before the header change nothing."""
        self.seq, self.gen = entry.seq, entry.gen
        if isinstance(entry.record, r.SessionOpened):
            self._open(entry.record, entry.at_ms)
        elif self.header is not None:
            self.updated_at_ms = entry.at_ms
            self._change(entry.record, entry.at_ms)

    def _open(self, record: r.SessionOpened, at_ms: int) -> None:
        self.header = record
        self.name, self.model, self.thinking = record.name, record.model, record.thinking
        self.options, self.env_names = record.options, record.env_names
        self.prompt = record.prompt
        self.created_at_ms = self.updated_at_ms = at_ms

    def _change(self, record: r.Record | r.UnknownRecord, at_ms: int) -> None:
        match record:
            case r.SessionRenamed(name=name):
                self.name = name
            case r.SessionConfigured():
                self.options, self.env_names = record.options, record.env_names
                self.prompt = self.prompt if record.prompt is None else record.prompt
            case r.ModelChanged():
                self.model, self.thinking = record.model, record.thinking
            case r.SessionArchived(archived=archived):
                self.archived = archived
            case r.SessionDeleted():
                self.deleted = True
            case r.DamageFound():
                self.damage.append(record)
            case r.InputQueued():
                if record.item.id not in self.settled:
                    self.pending[record.item.id] = record
            case r.InputWithdrawn(item_id=item_id):
                self._settle(item_id)
            case r.InputsHeld():
                self.held, self.held_at_ms = True, at_ms
            case r.RequestReceived():
                self._remember(
                    record.key, KnownRequest(method=record.method, request=record.request)
                )
            case r.RequestRecorded():
                self._record_request(record)
            case r.KernelStarted(incarnation=incarnation):
                self.kernel = incarnation
            case r.SnapshotTaken():
                self.snapshot, self.snapshot_seq = record, self.seq
            case r.UsageRecorded(usage=usage):
                self.own += usage
            case ChildUsageAttributed(child_usage=usage):
                self.attributed += usage
            case r.ToolCallStarted(item_id=item_id):
                self.open_calls[item_id] = OpenCall(started_at_ms=at_ms, started=record)
            case r.ApprovalAsked(approval_id=approval_id):
                self.open_approvals[approval_id] = None
            case r.ApprovalSettled(approval_id=approval_id):
                self.open_approvals.pop(approval_id, None)
            case _:
                self._advance_turn(record, at_ms)

    def _advance_turn(self, record: r.Record | r.UnknownRecord, at_ms: int) -> None:
        match record:
            case r.TurnAccepted():
                self.turn = OpenTurn(
                    turn_id=record.turn_id,
                    origin=record.origin,
                    started_at_ms=at_ms,
                    output_schema=record.output_schema,
                )
                self.turns += 1
                if record.origin in PERSONAL:
                    self.held, self.person_at_ms = False, at_ms
            case r.ProviderIntent(turn_id=turn_id, attempt=attempt):
                if (turn := self._running(turn_id)) is not None:
                    turn.attempts = turn.intent = attempt
                self.user_cells.clear()
            case r.ProviderOutcome(turn_id=turn_id) | r.ProviderFailed(turn_id=turn_id):
                self.own += record.usage
                if (turn := self._running(turn_id)) is not None:
                    turn.intent = 0
                    turn.usage += record.usage
            case r.CellStarted(item_id=item_id):
                self.cells += 1
                self.open_cells[item_id] = OpenCell(started_at_ms=at_ms, started=record)
            case r.ItemCompleted(item=item):
                self.open_cells.pop(item.id, None)
                self.open_calls.pop(item.id, None)
                if isinstance(item, ReplCell) and item.author == "client":
                    cell = UserCell(code=item.code[:USER_CODE_CHARS], status=item.status)
                    self.user_cells = [*self.user_cells, cell][-USER_CELLS:]
                if item.id in self.pending:
                    self._settle(item.id)
            case r.TurnCompleted(turn_id=turn_id):
                if self._running(turn_id) is not None:
                    self.turn = None
                self.last_turn_id, self.last_status = turn_id, record.status

    def _running(self, turn_id: str) -> OpenTurn | None:
        return self.turn if self.turn is not None and self.turn.turn_id == turn_id else None

    def _settle(self, item_id: str) -> None:
        self.pending.pop(item_id, None)
        self.settled[item_id] = None
        _forget_oldest(self.settled, INPUTS_REMEMBERED)

    def _remember(self, key: str, request: KnownRequest) -> None:
        self.requests.pop(key, None)
        self.requests[key] = request
        _forget_oldest(self.requests, REQUESTS_REMEMBERED)

    def _record_request(self, record: r.RequestRecorded) -> None:
        known = self.requests.pop(record.key, KnownRequest(method="", request=""))
        if record.done:
            ended = msgspec.structs.replace(
                known, done=True, result=record.result, error=record.error
            )
            self._remember(record.key, ended)

    def status(self) -> SessionStatus:
        """What the session is doing; of a child that rests, how its last task ended."""
        if self.deleted:
            return "deleted"
        if self.turn is not None:
            return "running"
        if self.opened.parent is None or self.last_status is None:
            return "idle" if self.opened.parent is None else "queued"
        ended: dict[str, SessionStatus] = {"completed": "completed", "failed": "error"}
        return ended.get(self.last_status, "cancelled")

    def view(self, *, journal_path: str | None, artifacts_path: str) -> Session:
        """What a client sees of the session."""
        opened, parent = self.opened, self.opened.parent
        return Session(
            id=opened.session_id,
            name=self.name,
            cwd=opened.cwd,
            model=self.model,
            thinking=self.thinking,
            status=self.status(),
            depth=parent.depth if parent else 0,
            max_depth=opened.max_depth,
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
            turns=self.turns,
            journal_path=journal_path,
            artifacts_path=artifacts_path,
            gen=self.gen,
            seq=self.seq,
            parent_id=parent.session_id if parent else None,
            root_id=parent.root_id if parent else opened.session_id,
            ephemeral=opened.ephemeral,
            archived=self.archived,
            usage=self.own,
            active_turn_id=self.turn.turn_id if self.turn else None,
        )


def closing_records(state: SessionState, *, now_ms: int) -> list[r.Record]:
    """
    Give the records that close what a crash left open, in order; none when nothing is open.

    An intent without outcome is closed as interrupted and never sent again, a cell without an end
    is closed and never run again (seed: rlm-runtime, Failure Modes, last row); nor is a client
    asked again.
    """
    closing: list[r.Record] = [
        r.ApprovalSettled(approval_id=approval_id, decision="cancelled", reason=HOST_ENDED)
        for approval_id in state.open_approvals
    ]
    closing += (_closed_call(one, now_ms) for one in state.open_calls.values())
    turn = state.turn
    phase: r.Phase = "accepted"
    if turn is not None and turn.intent:
        phase = "request"
        closing.append(
            r.ProviderFailed(
                turn_id=turn.turn_id,
                attempt=turn.intent,
                kind="interrupted",
                message="The host ended before the answer was complete.",
                usage=Usage(responses=1, unmeasured=1),
            )
        )
    for item_id, cell in state.open_cells.items():
        started = cell.started
        if turn is not None and started.turn_id == turn.turn_id:
            phase = "cell"
        closing.append(
            r.ItemCompleted(
                item=ReplCell(
                    id=item_id,
                    turn_id=started.turn_id,
                    status="interrupted",
                    code=started.code,
                    author=started.author,
                    kernel=state.kernel,
                    started_at_ms=cell.started_at_ms,
                    completed_at_ms=now_ms,
                ),
                call_id=started.call_id,
                shown="The host ended while this cell ran; its effects are uncertain."
                if started.call_id
                else None,
            )
        )
    if turn is not None:
        closing.append(
            r.TurnCompleted(
                turn_id=turn.turn_id,
                status="interrupted",
                usage=turn.usage,
                phase=phase,
                error=ErrorInfo(
                    kind=HostLost.kind,
                    code=HostLost.code,
                    message="The host ended during this turn. What was recorded is kept, nothing "
                    "was repeated; start a new turn to go on.",
                    retryable=True,
                ),
            )
        )
    return closing


def _closed_call(call: OpenCall, now_ms: int) -> r.ItemCompleted:
    started = call.started
    error = ErrorInfo(
        kind=HostLost.kind,
        code=HostLost.code,
        message=f"{HOST_ENDED} Whether the tool did anything is not known.",
    )
    item = ToolCall(
        id=started.item_id,
        turn_id=started.turn_id,
        status="interrupted",
        name=started.name,
        arguments=started.arguments,
        error=error,
        cell_id=started.cell_id,
        truncated=started.artifact is not None,
        artifact=started.artifact,
        started_at_ms=call.started_at_ms,
        completed_at_ms=now_ms,
    )
    return r.ItemCompleted(item=item)


def _forget_oldest(known: dict[str, Any], limit: int) -> None:
    while len(known) > limit:
        del known[next(iter(known))]
