"""
The harness state file: notes that outlive a session's context. Pure; kernel and host share it.

Both write it under the lock file beside it, after reading it again; an edit touches one entry only.
Whoever finds the file damaged sets it aside and says so; nothing is emptied silently.
"""

import re
import unicodedata
from typing import Any, Literal, get_args

import msgspec

FILE_NAME = "harness_state.json"
LOCK_NAME = "harness_state.lock"
"""Taken with `flock` for the length of one read-change-write."""
Kind = Literal["prompt", "memory", "skill", "subagent"]
KINDS: tuple[str, ...] = get_args(Kind)
SLUG_CHARS = 80
Scope = Literal["local", "global"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One note. `version` grows with each update; times are ISO 8601, UTC."""

    id: str
    kind: Kind
    title: str
    content: str
    path: str = "general"
    scope: Scope = "local"
    reference: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    source: str = ""
    created_at: str
    updated_at: str
    version: int = 1


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema: int = 1
    entries: dict[Kind, dict[str, Entry]] = {}
    refinements: list[dict[str, Any]] = []


decode = msgspec.json.Decoder(State).decode


def encode(state: State) -> bytes:
    """Give the file's bytes: indented, for people read it too."""
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"


def slug(title: str) -> str:
    """Give an id for a title: ASCII letters, digits and hyphens, at most 80."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:SLUG_CHARS].strip("-") or "note"


def with_entry(state: State, entry: Entry) -> State:
    """Give the state with this entry put in or replaced."""
    rows = {**state.entries.get(entry.kind, {}), entry.id: entry}
    return msgspec.structs.replace(state, entries={**state.entries, entry.kind: rows})


def without_entry(state: State, entry: Entry) -> State:
    """Give the state without this entry."""
    rows = {id_: row for id_, row in state.entries.get(entry.kind, {}).items() if id_ != entry.id}
    return msgspec.structs.replace(state, entries={**state.entries, entry.kind: rows})


def find(state: State, id_: str, kind: str | None = None) -> list[Entry]:
    """Give the entries with this id: one per kind at most."""
    return [
        rows[id_] for name, rows in state.entries.items() if id_ in rows and kind in (None, name)
    ]
