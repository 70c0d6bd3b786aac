"""What the kit checks, and what it finds. Data only."""

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec

Verdict = Literal["passed", "failed", "notSupported"]
K = TypeVar("K")


class Broken(AssertionError):
    """The command broke the promise that is being checked; the text says what was seen."""


class Missing(Broken):
    """What had to come did not: nothing more can be asked of this process."""


class NotSupported(Exception):
    """The command (or the language file) does not claim what the promise is about."""


class Promise(msgspec.Struct, Generic[K], frozen=True, kw_only=True):
    """
    One sentence that an implementation can rely on, and the checks that hold it to it.

    Ids are `profile.name` and are never reused. A check takes the kit, and raises `Broken` or
    `NotSupported`. `since` is the first runtime protocol that knows what is checked: a runtime that
    announces an older one and fails is not blamed. A promise may have no check of its own when
    every exchange of the kit is held to it; see `violated`.
    """

    id: str
    text: str
    checks: tuple[Callable[[K], None], ...] = ()
    since: int = 1

    @property
    def profile(self) -> str:
        """The part of the protocol that the promise belongs to."""
        return self.id.partition(".")[0]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was found for one promise. `reasons` is empty when it was kept."""

    id: str
    profile: str
    text: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    took_ms: int = 0


class Violations:
    """What was seen in passing, promise by promise: each kind once, with a count."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, int]] = {}

    def add(self, promise: str, what: str) -> None:
        """Note that `promise` was broken; `what` is for people and says it once."""
        kinds = self._seen.setdefault(promise, {})
        kinds[what] = kinds.get(what, 0) + 1

    def __len__(self) -> int:
        return sum(sum(kinds.values()) for kinds in self._seen.values())

    def of(self, promise: str) -> tuple[str, ...]:
        """Give what was seen against one promise."""
        return tuple(
            what if count == 1 else f"{what} ({count} times)"
            for what, count in self._seen.get(promise, {}).items()
        )


def expect(condition: object, what: str, **seen: Any) -> None:
    """Raise `Broken` with `what` and the values seen unless the condition holds."""
    if not condition:
        raise Broken(what + "".join(f"; {key}: {short(value)}" for key, value in seen.items()))


def short(value: object, limit: int = 200) -> str:
    """Give the value as text of at most `limit` characters."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
