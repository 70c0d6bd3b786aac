"""The decision log, and the audit of decisions that were taken under other rules."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from rlm_protocol import loop_records as records
from rlm_protocol.errors import Conflict
from rlm_protocol.loop_records import Decision, GenerationDone, Head

from ..sqlite_file import Layout, open_file, store_errors
from .controller import decide
from .head import fold
from .inputs import LoopObservation
from .report import LoopGeneration, read_events
from .stores.base import RunReader

_LAYOUT = Layout(
    what="decision log",
    application_id=0x726C6D64,
    version=1,
    ddl="""
CREATE TABLE decisions(
  id INTEGER PRIMARY KEY, record_id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  subject TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE INDEX decisions_subject ON decisions(subject, number);
""",
)


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    One row of the log: `id` is `{run_id}:generation:{n}` where `kind` is `loop`.

    `position` grows in the order of writing: a page begins after one.
    """

    position: int
    id: str
    kind: str
    run_id: str
    generation: int
    decision: dict[str, Any]


class DecisionLog:
    """
    An audit trail of decisions beside the run stores, in a SQLite file of its own.

    It repeats what the store holds, so it is written without a sync of its own: rows that a power
    loss has taken are written again when their run goes on. A row is written once; the same again
    is a no-op (seed: loop kernel, Audit).

    Raises:
        StoreCorrupt, SchemaTooNew, StoreUnavailable, StoreBusy, StoreFull: see `open_file`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self._db: apsw.Connection | None = None
        self._using = threading.Lock()
        with self._using:
            self._opened()

    def close(self) -> None:
        """Close the file; the next call opens it anew."""
        with self._using:
            if self._db is not None:
                self._db.close()
                self._db = None

    def record(self, run_id: str, event: GenerationDone) -> bool:
        """
        Log one generation of a loop; give False when it was logged before.

        Raises:
            Conflict: another decision was logged for this generation.
        """
        record_id = f"{run_id}:generation:{event.generation}"
        body = msgspec.json.encode(
            LoopGeneration.from_event(event).to_dict(), order="deterministic"
        )
        with self._using, store_errors(self.path):
            db = self._opened()
            db.execute(
                "INSERT INTO decisions(record_id, kind, subject, number, body)"
                " VALUES(?, 'loop', ?, ?, ?) ON CONFLICT DO NOTHING",
                (record_id, run_id, event.generation, body),
            )
            if db.changes():
                return True
            there = db.execute("SELECT body FROM decisions WHERE record_id=?", (record_id,)).get
        if there != body:
            raise Conflict("Another decision was logged under this id.", id=record_id)
        return False

    def next_generation(self, run_id: str) -> int:
        """Give the first generation of a run that is not logged."""
        with self._using, store_errors(self.path):
            last = self._opened().execute(
                "SELECT max(number) FROM decisions WHERE subject=?", (run_id,)
            )
            newest = last.get
        return 0 if newest is None else int(newest) + 1

    def rows(self, run_id: str | None = None, *, after: int = 0, limit: int = 200) -> list[LogRow]:
        """Give a page of rows in the order of their writing, of one run or of all."""
        condition, values = ("", ()) if run_id is None else ("subject=? AND ", (run_id,))
        with self._using, store_errors(self.path):
            lines = self._opened().execute(
                "SELECT id, record_id, kind, subject, number, body FROM decisions WHERE "
                f"{condition}id>? ORDER BY id LIMIT ?",
                (*values, after, limit),
            )
            return [_log_row(*line) for line in lines]

    def _opened(self) -> apsw.Connection:
        if self._db is None:
            self._db = open_file(self.path, _LAYOUT, sync="NORMAL")
        return self._db


def _log_row(
    position: int, record_id: str, kind: str, run_id: str, generation: int, body: bytes
) -> LogRow:
    return LogRow(
        position=position,
        id=record_id,
        kind=kind,
        run_id=run_id,
        generation=generation,
        decision=msgspec.json.decode(body),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """A generation that this version of the rules would have decided otherwise."""

    generation: int
    recorded: Decision
    now: Decision


def audit(store: RunReader, run_id: str) -> Iterator[Difference]:
    """
    Decide a run's recorded generations again and give those that come out otherwise.

    Reads only: no gate is called, for verdicts are recorded, and history stays as it is.
    """
    row = store.head(run_id)
    config = records.decode_config(row.config)
    head = Head()
    for recorded in read_events(store, run_id, until=row.seq):
        event = recorded.event
        if isinstance(event, GenerationDone):
            seen = LoopObservation.from_record(event.observation)
            now = decide(config, head, seen, event.verdicts, charged=event.decision.cost)
            if now != event.decision:
                yield Difference(event.generation, event.decision, now)
        head = fold(head, event)
