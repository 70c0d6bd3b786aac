"""
Golden vectors: JSON lines that any language can run. Package data in `vectors/`.

Bytes are written as text, as `{"hex": "..."}`, or as a list of parts in which `["x", 1000]` stands
for a repeated text.
"""

from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    """Give the vectors of one file, in order."""
    lines = (FOLDER / f"{name}.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line.strip()]


def to_bytes(written: Any) -> bytes:
    """Give the bytes that a vector writes down."""
    if isinstance(written, str):
        return written.encode()
    if isinstance(written, dict):
        return bytes.fromhex(written["hex"])
    return b"".join(
        to_bytes(part) if isinstance(part, str | dict) else to_bytes(part[0]) * part[1]
        for part in written
    )


def fits(pattern: Any, value: Any) -> bool:
    """
    Tell whether a value has everything that a pattern asks for.

    An object may have more fields than its pattern. `{"any": [...]}` is one of several; `"$some"`
    is anything but null; `{"prefix": "..."}` is a text that begins so.
    """
    if pattern == "$some":
        return value is not None
    if isinstance(pattern, dict):
        if pattern.keys() == {"any"}:
            return any(fits(one, value) for one in pattern["any"])
        if pattern.keys() == {"prefix"}:
            return isinstance(value, str) and value.startswith(pattern["prefix"])
        return isinstance(value, dict) and all(
            key in value and fits(wanted, value[key]) for key, wanted in pattern.items()
        )
    if isinstance(pattern, list):
        return (
            isinstance(value, list)
            and len(value) == len(pattern)
            and all(map(fits, pattern, value))
        )
    return type(pattern) is type(value) and bool(pattern == value)
