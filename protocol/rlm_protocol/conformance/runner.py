"""Runs promises against one command, one after the other, in bounded time."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .kit import Kit
from .promise import Broken, NotSupported, Outcome, Promise, Verdict

K = TypeVar("K", bound=Kit[Any])


def select(
    promises: Sequence[Promise[K]], *, profiles: Sequence[str] = (), only: Sequence[str] = ()
) -> list[Promise[K]]:
    """
    Give the promises of these profiles and with these ids (a trailing `*` stands for any rest).

    Raises:
        ValueError: a profile or an id that no promise has.
    """
    chosen = []
    unknown = {*profiles, *only}
    for promise in promises:
        hits = {
            o for o in only if o == promise.id or (o[-1:] == "*" and promise.id.startswith(o[:-1]))
        }
        unknown -= hits | {promise.profile}
        if (not profiles or promise.profile in profiles) and (not only or hits):
            chosen.append(promise)
    if unknown:
        raise ValueError(f"no promise is called {', '.join(sorted(unknown))}")
    return chosen


def run(
    kit: K,
    promises: Sequence[Promise[K]],
    *,
    budget_s: float,
    tell: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """
    Check every promise; give one outcome each, in order. Never raises for what the command does.

    After `budget_s` seconds no further check is started: what is left counts as failed. `tell` is
    called with each outcome as it is found; one that was seen broken only later is in the list.
    """
    deadline = time.monotonic() + budget_s
    found = []
    for promise in promises:
        outcome = _check(kit, promise, deadline)
        found.append(outcome)
        tell(outcome)
    kit.discard()  # what it says last counts, too
    return [_with_violations(kit, outcome) for outcome in found]


def _check(kit: K, promise: Promise[K], deadline: float) -> Outcome:
    began = time.monotonic()
    reasons: list[str] = []
    excuses: list[str] = []
    for check in promise.checks:
        try:
            if time.monotonic() > deadline:
                raise Broken("not checked: the time for the whole run is over")
            check(kit)
        except NotSupported as why:
            excuses.append(str(why))
        except Broken as why:
            old = kit.announced is not None and kit.announced < promise.since
            (excuses if old else reasons).append(
                f"since protocol {promise.since}: {why}" if old else str(why)
            )
            kit.discard()
    supported = not promise.checks or len(excuses) < len(promise.checks)
    verdict: Verdict = "failed" if reasons else "passed" if supported else "notSupported"
    return _with_violations(
        kit,
        Outcome(
            id=promise.id,
            profile=promise.profile,
            text=promise.text,
            verdict=verdict,
            reasons=tuple(reasons or excuses),
            took_ms=round((time.monotonic() - began) * 1000),
        ),
    )


def _with_violations(kit: Kit[Any], outcome: Outcome) -> Outcome:
    seen = kit.violations.of(outcome.id)
    if not seen:
        return outcome
    reasons = tuple(r for r in outcome.reasons if outcome.verdict == "failed" and r not in seen)
    return Outcome(
        id=outcome.id,
        profile=outcome.profile,
        text=outcome.text,
        verdict="failed",
        reasons=reasons + seen,
        took_ms=outcome.took_ms,
    )
