"""Pages of sessions and items: their cursors, and the reading of one page."""

from pathlib import Path

from rlm_protocol import records as r
from rlm_protocol.errors import InvalidParams
from rlm_protocol.item import Item
from rlm_protocol.session import SessionItemsParams, SessionItemsResult

from .. import paths
from ..paths import Directory
from .recovery import read


def items_page(
    folder: Path, params: SessionItemsParams, place: tuple[int, int], upto: int
) -> SessionItemsResult:
    """Read a page of completed items from `place` (offset, seq before it) on. Blocks."""
    items: list[Item] = []
    with Directory.open(folder) as directory:
        name, (offset, after_seq) = f"{params.session_id}.jsonl", place
        for found in read(directory, name, offset=offset, after_seq=after_seq):
            record = found.entry.record
            if found.entry.seq > upto:
                break
            if not isinstance(record, r.ItemCompleted):
                continue
            if params.turn_id is not None and record.item.turn_id != params.turn_id:
                continue
            if len(items) == params.limit:
                cursor = f"{found.offset}.{found.entry.seq - 1}"
                return SessionItemsResult(items=tuple(items), next_cursor=cursor)
            items.append(record.item)
    return SessionItemsResult(items=tuple(items))


def page_cursor(cursor: str | None) -> tuple[int, str] | None:
    """Read a cursor of session/list: creation time and id of the last one seen."""
    if cursor is None:
        return None
    at_ms, dot, session_id = cursor.partition(".")
    if not (at_ms.isdecimal() and len(at_ms) < 18 and dot and paths.is_id(session_id)):
        raise InvalidParams("This is no cursor of session/list.", path="$.cursor")
    return int(at_ms), session_id


def items_cursor(cursor: str | None) -> tuple[int, int]:
    """Read a cursor of session/items: an offset, and the number of the record before it."""
    if cursor is None:
        return 0, 0
    offset, dot, seq = cursor.partition(".")
    if not (offset.isdecimal() and dot and seq.isdecimal() and len(cursor) < 40):
        raise InvalidParams("This is no cursor of session/items.", path="$.cursor")
    return int(offset), int(seq)
