"""
What one attachment has not sent yet: ordered, bounded, pure.

Rule 1: what may not be dropped leaves complete and in order.
Rule 2: above half of the soft limit deltas of one kind are merged as they come; above the soft
limit they are dropped, their bytes are counted, and a `session/resync` waits in their place.
Rule 3: a queue that holds more undroppable bytes than the hard limit takes no more and is `slow`:
its owner ends it. One message may be larger than the limit; what queues behind it may not.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from rlm_protocol.base import Cursor, SessionNotification
from rlm_protocol.item import ItemDelta
from rlm_protocol.limits import KIB
from rlm_protocol.repl import ReplOutput
from rlm_protocol.session import SessionResync
from rlm_protocol.usage import UsageUpdated

NOTHING = memoryview(b"")
Encode = Callable[[str, msgspec.Struct], bytes]
"""Method and payload in, framed bytes out."""
MERGED_CHARS = 64 * KIB
"""A merged delta grows to this and no further: joining stays cheap and frames stay small."""
WRITE_BYTES = 64 * KIB
"""Small messages leave together, up to about this much in one write: what a pipe holds on Linux."""


class _Entry(msgspec.Struct):
    """
    A message that waits and is more than its frame: a delta, or a resync.

    With a `payload` others may still be merged into it; without a `frame` it is to be rendered.
    """

    method: str
    frame: bytes | None
    size: int
    payload: SessionNotification | None = None
    resync_of: str | None = None


class Outbox:
    """The queue of one attachment. `head` and `advance` belong to whoever writes."""

    def __init__(self, encode: Encode, *, soft_bytes: int, hard_bytes: int) -> None:
        self._encode = encode
        self._soft = soft_bytes
        self._hard = hard_bytes
        self._queue: deque[bytes | _Entry] = deque()  # bytes: a frame that may not be dropped
        self._head: memoryview = NOTHING
        self._head_bytes = self._head_undroppable_bytes = 0
        self._undroppable_bytes = 0
        self._mergeable: dict[str, dict[str, _Entry]] = {}  # session id -> thing -> last delta
        self._cursors: dict[str, Cursor] = {}
        self._resyncs: set[str] = set()
        self.unsent_bytes = 0
        self.dropped_bytes = 0
        self.slow = False

    def __bool__(self) -> bool:
        return self.unsent_bytes > 0

    def put(self, frame: bytes, payload: object = None) -> None:
        """Queue what may not be dropped. `payload` tells which session it is about, if any."""
        if isinstance(payload, SessionNotification):
            self._cursors[payload.session_id] = Cursor(gen=payload.gen, seq=payload.seq)
            self._mergeable.pop(payload.session_id, None)
        elif self._mergeable:
            self._mergeable.clear()
        if self._undroppable_bytes > self._hard:
            self.slow = True
            return
        size = len(frame)
        self.unsent_bytes += size
        self._undroppable_bytes += size
        self._queue.append(frame)

    def put_droppable(self, method: str, payload: msgspec.Struct) -> None:
        """Queue, merge or drop."""
        crowded = self.unsent_bytes > self._soft // 2
        if crowded and self._merge(payload):
            return
        frame = self._encode(method, payload)
        if self.unsent_bytes and self.unsent_bytes + len(frame) > self._soft:
            self.dropped_bytes += len(frame)
            self._ask_for_resync(payload)
            return
        entry = _Entry(method, frame, len(frame))
        if not crowded:
            self._mergeable.clear()  # whatever is older: nothing overtakes this one
        elif isinstance(payload, SessionNotification):
            entry.payload = payload
            self._mergeable.setdefault(payload.session_id, {})[_thing(payload)] = entry
        self.unsent_bytes += entry.size
        self._queue.append(entry)

    def head(self) -> memoryview | None:
        """Give the bytes that are to be written next, None when there are none."""
        if not self._head and self._queue:
            self._head = self._next_head()
        return self._head or None

    def advance(self, sent_bytes: int) -> None:
        """Note that so much of the head is gone."""
        if sent_bytes < len(self._head):
            self._head = self._head[sent_bytes:]
            return
        self._head = NOTHING
        self.unsent_bytes -= self._head_bytes
        self._undroppable_bytes -= self._head_undroppable_bytes

    def _next_head(self) -> memoryview:
        """Join the next messages, at least one and no more than reach WRITE_BYTES."""
        queue = self._queue
        frames: list[bytes] = []
        size = undroppable = 0
        while queue and size < WRITE_BYTES:
            entry = queue.popleft()
            if isinstance(entry, bytes):
                frame = entry
                undroppable += len(frame)
            else:
                frame = self._rendered(entry)
                if entry.resync_of is not None:
                    undroppable += len(frame)
            frames.append(frame)
            size += len(frame)
        self._head_bytes, self._head_undroppable_bytes = size, undroppable
        return memoryview(b"".join(frames))

    def _rendered(self, entry: _Entry) -> bytes:
        """Give the frame of an entry that is being sent: nothing is merged into it any more."""
        if entry.resync_of is not None:
            self._resyncs.discard(entry.resync_of)
        if entry.payload is not None:
            self._forget(entry.payload)
            if entry.frame is None:
                entry.frame = self._encode(entry.method, entry.payload)
                self.unsent_bytes += len(entry.frame) - entry.size
        assert entry.frame is not None
        return entry.frame

    def clear(self) -> None:
        """Throw everything away: nobody will read it."""
        self._queue.clear()
        self._mergeable.clear()
        self.unsent_bytes = self._undroppable_bytes = 0
        self._head_bytes = self._head_undroppable_bytes = 0
        self._head = NOTHING

    def _merge(self, payload: msgspec.Struct) -> bool:
        if not isinstance(payload, SessionNotification):
            return False
        entry = self._mergeable.get(payload.session_id, {}).get(_thing(payload))
        merged = merge(entry.payload, payload) if entry is not None else None
        if entry is None or merged is None:
            return False
        grown = _text_bytes(payload) if not isinstance(payload, UsageUpdated) else 0
        if self.unsent_bytes + grown > self._soft:
            return False
        entry.payload, entry.frame = merged, None
        entry.size += grown
        self.unsent_bytes += grown
        return True

    def _forget(self, payload: SessionNotification) -> None:
        """Let nothing be merged into a delta that is being sent."""
        of_session = self._mergeable.get(payload.session_id, {})
        last = of_session.get(_thing(payload))
        if last is not None and last.payload is payload:
            del of_session[_thing(payload)]

    def _ask_for_resync(self, payload: msgspec.Struct) -> None:
        if not isinstance(payload, SessionNotification) or payload.session_id in self._resyncs:
            return
        session_id = payload.session_id
        self._resyncs.add(session_id)
        self._mergeable.pop(session_id, None)
        cursor = self._cursors.get(session_id, Cursor(gen=payload.gen, seq=payload.seq))
        notice = SessionResync(session_id=session_id, seq=cursor.seq, gen=cursor.gen, cursor=cursor)
        frame = self._encode("session/resync", notice)
        self.unsent_bytes += len(frame)
        self._undroppable_bytes += len(frame)
        self._queue.append(_Entry("session/resync", frame, len(frame), resync_of=session_id))


def merge(old: object, new: object) -> SessionNotification | None:
    """Give one notification that says what both say, or None when they cannot be joined."""
    if isinstance(old, ItemDelta) and isinstance(new, ItemDelta):
        fits = (old.item_id, old.channel, old.offset + len(old.text)) == (
            new.item_id,
            new.channel,
            new.offset,
        )
        if fits and len(old.text) + len(new.text) <= MERGED_CHARS:
            return msgspec.structs.replace(old, text=old.text + new.text)
    if isinstance(old, UsageUpdated) and isinstance(new, UsageUpdated):
        return new
    if isinstance(old, ReplOutput) and isinstance(new, ReplOutput):
        fits = old.channel == new.channel and old.data is None and new.data is None
        if fits and len(old.text) + len(new.text) <= MERGED_CHARS:
            return msgspec.structs.replace(old, text=old.text + new.text)
    return None


def _thing(payload: SessionNotification) -> str:
    """Name what two notifications must have in common to be joined; order within it is kept."""
    return payload.item_id if isinstance(payload, ItemDelta) else type(payload).__name__


def _text_bytes(payload: msgspec.Struct) -> int:
    text = payload.text if isinstance(payload, ItemDelta | ReplOutput) else ""
    return len(text.encode("utf-8", "replace"))
