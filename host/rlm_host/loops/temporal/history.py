"""A run's events and row as its Temporal history tells them. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol import loop_temporal as wire
from rlm_protocol.loop import RunStatus
from rlm_protocol.loop_records import Completed, Controlled, Event

from ..head import fold
from ..stores.base import Control, EventRow, RunRow


class Entry(NamedTuple):
    """One event of a Temporal history that matters: `name` is of a signal or an activity."""

    kind: str
    """`signal` or `activity`."""
    name: str
    given: Any
    at_ms: int


@dataclass(slots=True)
class Execution:
    """One execution of a run's workflow: what it began with, and what it has done since."""

    begin: wire.Begin
    started_at_ms: int
    previous: str | None
    """Id of the execution that it continues."""
    closed: RunStatus | None
    """How Temporal itself ended it, without the run's own word."""
    entries: list[Entry] = field(default_factory=list)

    def events(self) -> Iterator[EventRow]:
        """Give the run's events that this execution has recorded, in order."""
        seq, intents = self.begin.seq, set[str]()
        for entry in self.entries:
            for event, token in _events(entry):
                key = records.key_of(event, token)
                if key.startswith("intent:"):
                    if key in intents:
                        continue  # carried out again after a failure
                    intents.add(key)
                seq += 1
                yield EventRow(seq=seq, key=key, token=token, at_ms=entry.at_ms, event=event)

    def row(self) -> RunRow:
        """Give the run as it stands after this execution."""
        begin = self.begin
        head, status, reason = begin.head, begin.status, None
        seq, token, at_ms = begin.seq, begin.token, self.started_at_ms
        for row in self.events():
            head = fold(head, row.event)
            status, reason = _status_after(status, reason, row.event)
            seq, token, at_ms = row.seq, max(token, row.token), row.at_ms
        if self.closed is not None and status not in records.TERMINAL:
            status, reason = self.closed, "ended in Temporal"
        control = self._control()
        return RunRow(
            run_id=begin.run_id,
            tenant=begin.submitted.config.tenant,
            workspace=begin.submitted.config.workspace,
            parent=begin.submitted.parent,
            status=status,
            reason=reason,
            config=records.encode(begin.submitted.config),
            head=head,
            seq=seq,
            token=token,
            owner=None,
            claims=0,
            control=control if status == "running" else Control(cancel=control.cancel),
            created_at_ms=begin.created_at_ms or self.started_at_ms,
            updated_at_ms=at_ms,
        )

    def _control(self) -> Control:
        cancel, pause = self.begin.cancel, self.begin.pause
        for kind, name, given, _ in self.entries:
            if kind != "signal":
                continue
            if name == "cancel":
                cancel = cancel or given
            else:
                pause = None if name == "resume" else pause or given
        return Control(cancel=cancel, pause=pause)


def _events(entry: Entry) -> Iterable[tuple[Event, int]]:
    if entry.kind != "activity":
        return
    if entry.name == wire.RECORD:
        told = msgspec.convert(entry.given, wire.Recorded)
        yield from ((event, told.token) for event in told.events)
    elif entry.name in (wire.APPLY, wire.ROLLBACK):
        asked = msgspec.convert(entry.given, wire.Told)
        if asked.intent is not None:
            yield asked.intent, asked.token


def _status_after(
    status: RunStatus, reason: str | None, event: Event
) -> tuple[RunStatus, str | None]:
    match event:
        case Completed():
            return event.status, event.reason
        case Controlled(action="pause"):
            return "paused", event.reason
        case Controlled(action="resume"):
            return "running", None
    return status, reason
