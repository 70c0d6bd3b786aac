"""The user's configuration file, as clients read and change it."""

from typing import Annotated, Any

import msgspec

from .base import IdempotencyKey, Params, Result, Text


class ConfigChange(Params, frozen=True):
    """Set the key at `path` (a table's name for each step but the last); null takes it out."""

    path: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=8)]
    value: Any = None


class ConfigWriteParams(Params, frozen=True):
    """
    Change the file; all changes or none. It counts for hosts that start afterwards.

    With `expected_digest` the file must still be the one that was read.
    """

    changes: Annotated[tuple[ConfigChange, ...], msgspec.Meta(min_length=1, max_length=256)]
    expected_digest: str | None = None
    idempotency_key: IdempotencyKey | None = None


class ConfigResult(Result, frozen=True):
    """
    What the file says (without defaults) and where it lies. Keys of providers are never in it.

    `digest` names the file's content. `restart_needed`: this host started with another one.
    """

    path: str
    exists: bool
    digest: str
    config: dict[str, Any]
    restart_needed: bool = False
