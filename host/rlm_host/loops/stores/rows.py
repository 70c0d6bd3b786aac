"""What the stores with tables have in common: their lines, checksums, pages and refusals. Pure."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol.errors import ConfigInvalid, Conflict, LeaseHeld, LeaseLost, StoreCorrupt
from rlm_protocol.loop import Provenance, RunStatus
from rlm_protocol.loop_records import Claimed, Completed, Controlled, Event, Head, Submitted

from .base import Control, ControlAction, EventRow, Lease, Page, RunRow

TERMINAL = ", ".join(f"'{status}'" for status in sorted(records.TERMINAL))
"""The statuses that are final, as a list in SQL."""


def checksum(key: str, body: bytes) -> int:
    """Give what is stored beside a body, so that an altered one is found."""
    return zlib.crc32(body, zlib.crc32(key.encode()))


class StoredRun(msgspec.Struct, frozen=True):
    """A line of the table of runs."""

    id: int
    run_id: str
    tenant: str
    workspace: str
    parent: str | None
    status: RunStatus
    reason: str | None
    config: bytes
    config_sum: int
    head: bytes
    head_sum: int
    seq: int
    cancel: str | None
    pause: str | None
    token: int
    owner: str | None
    claims: int
    created_at_ms: int
    updated_at_ms: int

    def to_row(self) -> RunRow:
        """Give what the contract promises. Raises StoreCorrupt: config or head is damaged."""
        for name, body, expected in (
            ("config", self.config, self.config_sum),
            ("head", self.head, self.head_sum),
        ):
            if checksum(name, body) != expected:
                raise damaged(self.run_id, name, "its checksum is wrong")
        try:
            head = records.decode_head(self.head)
        except msgspec.DecodeError as why:
            raise damaged(self.run_id, "head", str(why)) from why
        return RunRow(
            run_id=self.run_id,
            tenant=self.tenant,
            workspace=self.workspace,
            parent=self.parent,
            status=self.status,
            reason=self.reason,
            config=self.config,
            head=head,
            seq=self.seq,
            token=self.token,
            owner=self.owner,
            claims=self.claims,
            control=self.control,
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
        )

    @property
    def control(self) -> Control:
        """What operators want of the run."""
        return Control(cancel=self.cancel, pause=self.pause)


# --- columns --------------------------------------------------------------------------------------


def head_columns(head: Head) -> dict[str, Any]:
    """Give what a run's line says of its head."""
    body = records.encode(head)
    return {"head": body, "head_sum": checksum("head", body)}


def _config_columns(body: bytes) -> dict[str, Any]:
    return {"config": body, "config_sum": checksum("config", body)}


def new_run(run_id: str, submitted: Submitted) -> dict[str, Any]:
    """Give the columns of a run of one event, but for its times."""
    return {
        "run_id": run_id,
        "tenant": submitted.config.tenant,
        "workspace": submitted.config.workspace,
        "parent": submitted.parent,
        "status": "running",
        **_config_columns(records.encode(submitted.config)),
        **head_columns(Head()),
        "seq": 1,
    }


def moved_run(row: RunRow, history: Sequence[EventRow]) -> dict[str, Any]:
    """Give the columns of a run of another store. It has no owner."""
    return {
        "run_id": row.run_id,
        "tenant": row.tenant,
        "workspace": row.workspace,
        "parent": row.parent,
        "status": row.status,
        "reason": row.reason,
        **_config_columns(row.config),
        **head_columns(row.head),
        "seq": len(history),
        "cancel": row.control.cancel,
        "pause": row.control.pause,
        "token": row.token,
        "created_at_ms": row.created_at_ms,
        "updated_at_ms": row.updated_at_ms,
    }


def event_columns(seq: int, key: str, token: int, at_ms: int, event: Event) -> tuple[Any, ...]:
    """Give the columns of an event, but for its run."""
    body = records.encode(event)
    return seq, key, token, at_ms, checksum(key, body), body


def event_row(
    run_id: str, seq: int, key: str, token: int, at_ms: int, body_sum: int, body: bytes
) -> EventRow:
    """Give a line of the table of events. Raises StoreCorrupt: it is damaged."""
    if checksum(key, body) != body_sum:
        raise damaged(run_id, f"event {seq} ({key})", "its checksum is wrong")
    try:
        event = records.decode_event(body)
    except msgspec.DecodeError as why:
        raise damaged(run_id, f"event {seq} ({key})", str(why)) from why
    return EventRow(seq=seq, key=key, token=token, at_ms=at_ms, event=event)


def damaged(run_id: str, what: str, why: str) -> StoreCorrupt:
    """Give the error for one damaged record."""
    return StoreCorrupt(
        f"The {what} of run {run_id} is damaged; other runs of the store are not touched.",
        run_id=run_id,
        record=what,
        detail=why,
    )


# --- what is already there ------------------------------------------------------------------------


def claim_events(owner: str, provenance: Provenance | None) -> list[Event]:
    """Give what a claim records."""
    return [] if provenance is None else [Claimed(worker=owner, provenance=provenance)]


def submitted_in(first: EventRow | None) -> Submitted:
    """Give what a run began with."""
    assert first is not None, "a run begins with its submission"
    assert isinstance(first.event, Submitted)
    return first.event


def check_same_run(run_id: str, there: Submitted, submitted: Submitted) -> None:
    """
    Refuse to submit a run again that is another. Raises Conflict.

    From where it was submitted makes it no other; nor, to somebody who asks for no fork, that it
    is one.
    """
    there, submitted = (msgspec.structs.replace(s, provenance=None) for s in (there, submitted))
    if submitted.parent is None:
        there = msgspec.structs.replace(
            there, parent=None, forked_at=None, seed_root=submitted.seed_root
        )
    if there != submitted:
        raise Conflict(
            f"Run {run_id} exists with another configuration, step or origin.", run_id=run_id
        )


def check_same_history(run_id: str, there: Sequence[EventRow], history: Sequence[EventRow]) -> None:
    """Refuse to take over a run under the id of another. Raises Conflict."""
    if tuple(there) != tuple(history):
        raise Conflict(f"Run {run_id} exists with another history.", run_id=run_id)


def not_recorded(
    run_id: str, token: int, events: Sequence[Event], body_of: Callable[[str], bytes | None]
) -> list[Event]:
    """
    Give the events that are not there yet. `body_of` gives what is stored under a key.

    Raises:
        Conflict: another event is there under one of their keys.
    """
    absent = []
    for event in events:
        key = records.key_of(event, token)
        body = body_of(key)
        if body is None:
            absent.append(event)
        elif body != records.encode(event):
            raise Conflict(f"Run {run_id} has another event {key}.", run_id=run_id, key=key)
    return absent


# --- requests of operators ------------------------------------------------------------------------


class Change(NamedTuple):
    """What a request does: the columns that it writes and, if it ends or moves the run, how."""

    columns: dict[str, str | None]
    settles: RunStatus | None = None
    events: tuple[Event, ...] = ()
    """To record, with a token of their own, when it settles."""

    @property
    def reason(self) -> str | None:
        """What the run's line says of the status it settles in."""
        event = self.events[0]
        assert isinstance(event, Controlled)
        return None if self.settles == "running" else event.reason


def change_of(
    run: StoredRun, action: ControlAction, reason: str, *, owned: bool, half_done: bool
) -> Change:
    """
    Give what a request does to a run that is not over.

    It is noted for a living owner and done at once without one; but a generation whose apply may
    have begun (`half_done`) is left to the next owner.
    """
    asked = Controlled(action=action, reason=reason)
    match action:
        case "cancel":
            first = reason if run.cancel is None else run.cancel
            if owned or half_done:
                return Change({"cancel": first})
            asked = Controlled(action=action, reason=first)
            last = Completed(status="cancelled", reason=first)
            return Change({"cancel": first}, "cancelled", (asked, last))
        case "pause" if run.status == "running" and run.pause is None:
            return Change({"pause": reason}, *(() if owned else ("paused", (asked,))))
        case "resume" if run.status == "paused":
            return Change({"pause": None}, "running", (asked,))
        case "resume":
            return Change({"pause": None})
    return Change({})


# --- refusals -------------------------------------------------------------------------------------


def lost(lease: Lease) -> LeaseLost:
    """Give the refusal of a write under a lease that has ended."""
    return LeaseLost(run_id=lease.run_id, token=lease.token)


def held(run_id: str, owner: str | None) -> LeaseHeld:
    """Give the refusal of a claim."""
    return LeaseHeld(
        f"Worker {owner} holds run {run_id}; it is free when that worker ends.",
        run_id=run_id,
        owner=owner,
    )


def not_completed(parent: str, generation: int, next_one: int) -> ConfigInvalid:
    """Give the refusal of a fork."""
    return ConfigInvalid(
        f"Run {parent} has not completed generation {generation}, only those before {next_one}.",
        field="generation",
        allowed=f"a completed one, before {next_one}",
        got=repr(generation),
    )


# --- pages ----------------------------------------------------------------------------------------


def narrowed(
    mark: str,
    *,
    tenant: str | None,
    workspace: str | None,
    status: RunStatus | None,
    cursor: str | None,
) -> dict[str, str | int]:
    """Give the conditions of a listing with their values; `mark` stands for a value in SQL."""
    given = {"tenant": tenant, "workspace": workspace, "status": status}
    before = int(cursor) if cursor is not None and cursor.isdecimal() else 2**63 - 1
    where: dict[str, str | int] = {f"id < {mark}": before}
    return where | {f"{name} = {mark}": v for name, v in given.items() if v is not None}


def page_of(found: Sequence[StoredRun], limit: int) -> Page:
    """Give a page of at most `limit` runs, of which one more than that may have been found."""
    runs, unreadable = [], []
    for run in found[:limit]:
        try:
            runs.append(run.to_row())
        except StoreCorrupt:
            unreadable.append(run.run_id)
    return Page(
        runs=tuple(runs),
        damaged=tuple(unreadable),
        cursor=str(found[limit - 1].id) if len(found) > limit else None,
    )
