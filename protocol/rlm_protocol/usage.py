"""Tokens and money. Cost is an integer of nano-USD; the unknown is counted, never taken as 0."""

import msgspec

from .base import Count, Id, Params, Result, SessionNotification


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    A sum over provider responses.

    `unknown_cost` counts responses whose price is not known, `unmeasured` those whose provider
    reported no usage at all: with either above zero, `cost_nano_usd` is a lower bound.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_nano_usd: int = 0
    responses: int = 0
    unknown_cost: int = 0
    unmeasured: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            **{name: getattr(self, name) - getattr(other, name) for name in self.__struct_fields__}
        )


class Budget(Params, frozen=True):
    """Limits of one scope; a missing field is no limit."""

    usd: float | None = None
    tokens: Count | None = None
    spawns: Count | None = None
    seconds: float | None = None


class UsageReadParams(Params, frozen=True):
    """Read what a session and its descendants have used."""

    session_id: Id


class UsageReadResult(Result, frozen=True):
    """`own` without, `subtree` with all descendants; `budget` is what `subtree` is held to."""

    own: Usage
    subtree: Usage
    budget: Budget | None = None


class UsageUpdated(SessionNotification, frozen=True):
    """At most every 250 ms while anything of the session's tree runs. See `UsageReadResult`."""

    own: Usage
    subtree: Usage
    budget: Budget | None = None
