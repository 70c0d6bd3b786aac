"""Which sessions a client hears, and up to which record of each it has been told. Pure."""

from typing import Any

import msgspec

from rlm_protocol.base import Cursor
from rlm_protocol.methods import EVENTS
from rlm_protocol.session import SessionResult, SessionResumeResult

from .connection import Payload
from .events import HostNotification


class _Place(msgspec.Struct, rename="camel"):
    session_id: str | None = None
    gen: int = 0
    seq: int = 0
    reason: Any = None


class Attachments:
    """Kept over all connections of one client; fed in the order in which the host spoke."""

    def __init__(self) -> None:
        self.cursors: dict[str, Cursor] = {}
        self.sessions: set[str] = set()

    def answered(self, method: str, params: Payload, result: msgspec.Raw) -> None:
        """A request was carried out: some of them attach the client, or detach it."""
        match method:
            case "session/create" | "session/fork":
                made = msgspec.json.decode(result, type=SessionResult).session
                self._attached(made.id, Cursor(gen=made.gen, seq=made.seq))
            case "session/resume":
                resumed = msgspec.json.decode(result, type=SessionResumeResult)
                cursor = resumed.cursor
                if resumed.replay == "complete":  # what was missed comes behind the answer
                    cursor = msgspec.convert(msgspec.to_builtins(params)["cursor"], Cursor)
                self._attached(resumed.session.id, cursor)
            case "session/detach":
                self.sessions.discard(msgspec.to_builtins(params)["sessionId"])

    def told(self, event: HostNotification) -> None:
        """A notification brings the client up to its record; a delta brings it no further."""
        row = EVENTS.get(event.method)
        if row is not None and row.droppable:
            return
        place = msgspec.json.decode(event.raw, type=_Place)
        if place.session_id is None:
            return
        self._attached(place.session_id, Cursor(gen=place.gen, seq=place.seq))
        if event.method == "session/closed" and place.reason not in ("shutdown", "slow"):
            self.sessions.discard(place.session_id)

    def _attached(self, session_id: str, cursor: Cursor) -> None:
        self.sessions.add(session_id)
        self.cursors[session_id] = cursor
