"""Bases and shared scalars of everything that is said to clients. Wire names are camelCase."""

from typing import Annotated

import msgspec

from .limits import ID_PATTERN


class Params(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base of request payloads: an unknown option is an error, never ignored."""


class Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of answers: clients ignore fields that they do not know."""


class Notification(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of notification payloads that belong to no session."""


class SessionNotification(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    Base of every notification about a session.

    `seq` is the journal's sequence number that this notification brings the client up to; a delta
    carries the seq of its `item/started`. `gen` changes when records are rewritten.
    """

    session_id: str
    seq: int
    gen: int


class Cursor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A place in a session's journal: everything up to and including `seq` has been seen."""

    gen: int
    seq: int


Id = Annotated[str, msgspec.Meta(pattern=ID_PATTERN, description="Opaque id.")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Millis = Annotated[int, msgspec.Meta(ge=0, description="Milliseconds.")]
AtMs = Annotated[int, msgspec.Meta(ge=0, description="Wall clock, milliseconds since the epoch.")]
Count = Annotated[int, msgspec.Meta(ge=0)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=1000)]
IdempotencyKey = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=128,
        description="A repeat with the same key returns the recorded result.",
    ),
]


class Empty(Result, frozen=True):
    """The answer of a request that has nothing to say."""


class NoParams(Params, frozen=True):
    """A request without parameters."""


class ErrorInfo(Result, frozen=True):
    """An error inside an item or a terminal notification; `kind` is a row of the error table."""

    kind: str
    message: str
    code: int
    retryable: bool = False
