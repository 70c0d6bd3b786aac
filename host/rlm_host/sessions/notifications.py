"""What a durable record means to clients: at most one notification each. Pure."""

from collections.abc import Callable
from typing import Any

import msgspec

from rlm_protocol import item as i
from rlm_protocol import records as r
from rlm_protocol.host import ApprovalResolved
from rlm_protocol.session import Session, SessionClosed, SessionCreated, SessionUpdated
from rlm_protocol.turn import TurnCompleted, TurnStarted

Notification = tuple[str, msgspec.Struct]
"""`(method, payload)`."""


def notification_of(
    entry: r.Entry, session_id: str, view: Callable[[], Session]
) -> Notification | None:
    """
    Give the notification of a record, or None when clients are not told of it.

    `view` gives the session as it is now: a replay tells the present name, not one that has passed.
    """
    where: dict[str, Any] = {"session_id": session_id, "seq": entry.seq, "gen": entry.gen}
    record = entry.record
    match record:
        case r.SessionOpened():
            return "session/created", SessionCreated(**where, session=view())
        case r.SessionRenamed() | r.SessionConfigured() | r.ModelChanged() | r.SessionArchived():
            return "session/updated", SessionUpdated(**where, session=view())
        case r.SessionDeleted():
            return "session/closed", SessionClosed(**where, reason="deleted")
        case r.TurnAccepted():
            return "turn/started", TurnStarted(**where, turn_id=record.turn_id)
        case r.TurnCompleted():
            completed = TurnCompleted(
                **where,
                turn_id=record.turn_id,
                status=record.status,
                usage=record.usage,
                error=record.error,
                output=record.output,
            )
            return "turn/completed", completed
        case r.CellStarted():
            return "item/started", i.ItemStarted(**where, item=started_cell(record, entry.at_ms))
        case r.ToolCallStarted():
            return "item/started", i.ItemStarted(**where, item=started_call(record, entry.at_ms))
        case r.ApprovalSettled():
            resolved = ApprovalResolved(
                **where, approval_id=record.approval_id, decision=record.decision
            )
            return "approval/resolved", resolved
        case r.ItemCompleted():
            return "item/completed", i.ItemCompleted(**where, item=record.item)
        case r.DamageFound():
            notice = i.Notice(
                id=f"damage-{entry.seq}",
                level="warning",
                text=_damage_text(record),
                started_at_ms=entry.at_ms,
                completed_at_ms=entry.at_ms,
            )
            return "item/completed", i.ItemCompleted(**where, item=notice)
    return None


def started_cell(record: r.CellStarted, at_ms: int) -> i.ReplCell:
    """Give the item of a cell that runs."""
    return i.ReplCell(
        id=record.item_id,
        turn_id=record.turn_id,
        status="inProgress",
        started_at_ms=at_ms,
        code=record.code,
        author=record.author,
    )


def started_call(record: r.ToolCallStarted, at_ms: int) -> i.ToolCall:
    """Give the item of a tool call that runs."""
    return i.ToolCall(
        id=record.item_id,
        turn_id=record.turn_id,
        status="inProgress",
        started_at_ms=at_ms,
        name=record.name,
        arguments=record.arguments,
        cell_id=record.cell_id,
        truncated=record.artifact is not None,
        artifact=record.artifact,
    )


def _damage_text(record: r.DamageFound) -> str:
    last = "the end" if record.before_seq is None else f"record {record.before_seq}"
    return (
        f"The journal was damaged between record {record.after_seq} and {last} "
        f"({record.size_bytes} bytes: {record.reason}). Everything else was kept, the damaged "
        f"bytes are in {record.file}; the session cannot be forked at a turn before that place."
    )
