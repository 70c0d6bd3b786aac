"""
`rlm.harness`: notes, memories, skill descriptions and sub-agent specs that outlive the context.

Local entries belong to the session (`RLM_HARNESS_STATE_DIR` or `RLM_SESSION_DIR/harness`), global
ones to the user (`RLM_GLOBAL_HARNESS_STATE_DIR`). Every call reads the file again and writes under
its lock, so that the host's `/refine` and this kernel never overwrite each other
(seed: rlm-runtime, Continual Harness State).
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rlm_protocol import harness as file_format
from rlm_protocol.harness import KINDS, Entry, Scope, State

_LOCK_S = 10.0
_FIELDS = ("title", "content", "path", "reference", "arguments", "metadata", "source")


def entries(kind: str | None = None, scope: Scope | None = None) -> list[Entry]:
    """Give all entries, or those of one kind or scope; local ones first, then by kind and id."""
    if kind is not None:
        _check_kind(kind)
    found: list[Entry] = []
    for each in ("local", "global") if scope is None else (scope,):
        folder = _folder(each)
        if folder is None:
            continue
        state = _read(folder)
        for name in KINDS:
            if kind in (None, name):
                found += [row for _, row in sorted(state.entries.get(name, {}).items())]  # type: ignore[call-overload]
    return found


def get(entry_id: str) -> Entry:
    """Give one entry by id; `local:ID` and `global:ID` name the scope. Raises KeyError."""
    for scope, id_ in _places(entry_id):
        folder = _folder(scope)
        found = [] if folder is None else file_format.find(_read(folder), id_)
        if found:
            return found[0]
    raise KeyError(entry_id)


def create(
    kind: str,
    title: str,
    content: str,
    *,
    scope: Scope = "local",
    entry_id: str | None = None,
    **fields: Any,
) -> Entry:
    """
    Add an entry; its id comes from the title unless it is given.

    Raises:
        KeyError: there is such an entry: use `update`.
        ValueError, TypeError: unknown kind or field, or a skill without its reference.
        RuntimeError: there is no place for entries of this scope, or its lock is held.
    """
    _check_kind(kind)
    _check_fields(fields)
    if kind == "skill" and not {"import", "call"} <= set(fields.get("reference", {})):
        raise ValueError('a skill needs reference={"import": ..., "call": ...}')
    now = _now()
    row = {"id": entry_id or file_format.slug(title), "kind": kind, "title": title}
    row |= {"content": content, "scope": scope, "created_at": now, "updated_at": now, **fields}
    entry = msgspec.convert(row, Entry)

    def change(state: State) -> State:
        if file_format.find(state, entry.id, kind):
            raise KeyError(f"there is a {kind} named {entry.id!r}; use update()")
        return file_format.with_entry(state, entry)

    _change(scope, change)
    return entry


def update(entry_id: str, **fields: Any) -> Entry:
    """Change the given fields of an entry that exists. Raises KeyError, else as `create`."""
    _check_fields(fields)
    old = get(entry_id)
    changed: list[Entry] = []

    def change(state: State) -> State:
        found = file_format.find(state, old.id, old.kind)
        if not found:
            raise KeyError(entry_id)
        row = msgspec.to_builtins(found[0])
        row |= fields | {"updated_at": _now(), "version": found[0].version + 1}
        changed.append(msgspec.convert(row, Entry))
        return file_format.with_entry(state, changed[0])

    _change(old.scope, change)
    return changed[0]


def delete(entry_id: str) -> Entry:
    """Remove an entry and give what it was. Raises KeyError."""
    old = get(entry_id)
    _change(old.scope, lambda state: file_format.without_entry(state, old))
    return old


def refinements(scope: Scope = "local") -> list[dict[str, Any]]:
    """Give the recorded refinement events, oldest first."""
    folder = _folder(scope)
    return [] if folder is None else _read(folder).refinements


# --- the file -------------------------------------------------------------------------------------


def _folder(scope: str) -> Path | None:
    if scope == "global":
        folder = os.environ.get("RLM_GLOBAL_HARNESS_STATE_DIR")
        return Path(folder) if folder else None
    if scope != "local":
        raise ValueError(f"scope is 'local' or 'global', not {scope!r}")
    if folder := os.environ.get("RLM_HARNESS_STATE_DIR"):
        return Path(folder)
    session = os.environ.get("RLM_SESSION_DIR")
    return Path(session) / "harness" if session else None


def _places(entry_id: str) -> list[tuple[str, str]]:
    scope, colon, id_ = entry_id.partition(":")
    if colon and scope in ("local", "global"):
        return [(scope, id_)]
    return [("local", entry_id), ("global", entry_id)]


def _read(folder: Path) -> State:
    path = folder / file_format.FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return State()
    try:
        return file_format.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as why:
        raise RuntimeError(f"{path} is damaged and was left as it is: {why}") from None


def _change(scope: str, change: Callable[[State], State]) -> None:
    folder = _folder(scope)
    if folder is None:
        raise RuntimeError(f"this kernel has no place for {scope} harness entries")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        data = file_format.encode(change(_read(folder)))
        temporary = folder / f".{file_format.FILE_NAME}.{secrets.token_hex(8)}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            os.replace(temporary, folder / file_format.FILE_NAME)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder / file_format.LOCK_NAME, flags, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeError("the harness file is locked by another writer") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}, not {kind!r}")


def _check_fields(fields: dict[str, Any]) -> None:
    unknown = sorted(fields.keys() - set(_FIELDS))
    if unknown:
        raise TypeError(f"an entry has no field {', '.join(unknown)}")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
