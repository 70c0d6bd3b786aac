"""What the stores with tables have in common: a run's line, checksums, pages and refusals."""

import zlib
from collections.abc import Sequence

import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol.errors import ConfigInvalid, Conflict, LeaseHeld, StoreCorrupt
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import Event, Submitted

from .base import Control, EventRow, Page, RunRow


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


def check_same_run(run_id: str, body: bytes, submitted: Submitted) -> None:
    """Refuse to submit a run again that is another. Raises Conflict."""
    if body != records.encode(submitted):
        raise Conflict(
            f"Run {run_id} exists with another configuration, step or origin.", run_id=run_id
        )


def check_same_history(run_id: str, there: Sequence[EventRow], history: Sequence[EventRow]) -> None:
    """Refuse to take over a run under the id of another. Raises Conflict."""
    if tuple(there) != tuple(history):
        raise Conflict(f"Run {run_id} exists with another history.", run_id=run_id)


def check_same_event(run_id: str, key: str, body: bytes, event: Event) -> None:
    """Refuse to record an event again that is another. Raises Conflict."""
    if body != records.encode(event):
        raise Conflict(f"Run {run_id} has another event {key}.", run_id=run_id, key=key)


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
        f"Run {parent} has not completed generation {generation}.",
        field="generation",
        allowed=f"a completed one, before {next_one}",
        got=repr(generation),
    )


def before(cursor: str | None) -> int:
    """Give the line before which a page begins."""
    return int(cursor) if cursor is not None and cursor.isdecimal() else 2**63 - 1


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
