"""What callers hand to a loop, checked: its configuration, observations and verdicts. Pure."""

import math
import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.loop_records import (
    LoopConfig,
    ObservationRecord,
    VerdictKind,
    to_float,
    to_number,
)

SEVERITY: dict[VerdictKind, int] = {
    "allow": 0,
    "defer": 1,
    "error": 1,
    "rollback": 2,
    "deny": 3,
    "stop": 4,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a gate says: `allow`, `defer`, `deny`, `rollback` or `stop`; `note` is kept as evidence.

    `error` is what the kernel records for a gate that raises or returns anything else; it counts
    like `defer`, so a failing gate never lets a candidate through.
    """

    kind: VerdictKind
    note: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in SEVERITY:
            raise ValueError(f"{self.kind!r} is no verdict; one of {', '.join(SEVERITY)} is")
        if self.note is not None and not isinstance(self.note, str):
            raise TypeError("a verdict's note is text or None")


class LoopObservation(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a step measured of one candidate (seed: loop kernel).

    Args:
        reward: higher is better. NaN is a failed measurement and is rejected, never a zero.
        cost: what the generation cost, in the unit of the budget; None is unknown, which a
            configuration with a `cost_budget` rejects.
        risk: None is unknown, which a configuration with a `risk_limit` rejects.
        artifact_id: what `apply` will make live.
        evidence: any JSON value; kept in the event.
        live_reward: the live artifact, measured again.
        elapsed_ms: how long the step took; None lets the kernel measure.

    Raises:
        TypeError: a number or the artifact id has another type. A bool is no number.
    """

    reward: float
    cost: float | None = None
    risk: float | None = None
    artifact_id: str | None = None
    evidence: Any = None
    live_reward: float | None = None
    elapsed_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("reward", "cost", "risk", "live_reward", "elapsed_ms"):
            value = getattr(self, name)
            if type(value) is not float and not (value is None and name != "reward"):
                msgspec.structs.force_setattr(self, name, _real(name, value))
        if self.artifact_id is not None and not isinstance(self.artifact_id, str):
            raise TypeError(f"artifact_id is text or None, not {type(self.artifact_id).__name__}")

    def to_record(self) -> ObservationRecord:
        """
        Give the form that is stored.

        Raises:
            TypeError: `evidence` is no JSON value.
        """
        evidence = self.evidence
        if evidence is not None:
            evidence = _json_value(msgspec.to_builtins(evidence, str_keys=True))
        return ObservationRecord(
            reward=to_number(self.reward),
            cost=_stored(self.cost),
            risk=_stored(self.risk),
            live_reward=_stored(self.live_reward),
            elapsed_ms=_stored(self.elapsed_ms),
            artifact_id=self.artifact_id,
            evidence=evidence,
        )

    @classmethod
    def from_record(cls, record: ObservationRecord) -> "LoopObservation":
        """Give the observation that was stored."""
        return cls(
            reward=to_float(record.reward),
            cost=_read(record.cost),
            risk=_read(record.risk),
            live_reward=_read(record.live_reward),
            elapsed_ms=_read(record.elapsed_ms),
            artifact_id=record.artifact_id,
            evidence=record.evidence,
        )


def _real(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    return float(value)


def _stored(value: float | None) -> Any:
    return value if value is None or math.isfinite(value) else to_number(value)


def _read(value: Any) -> float | None:
    return None if value is None else to_float(value)


def _json_value(value: Any) -> Any:
    """Spell out numbers that JSON does not have, wherever they are."""
    if isinstance(value, float):
        return to_number(value)
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return value


# --- configuration --------------------------------------------------------------------------------


class _Range(NamedTuple):
    kind: type
    low: float
    high: float = math.inf
    above: bool = False
    """The low end itself is out."""
    optional: bool = False

    def describe(self) -> str:
        what = "a whole number" if self.kind is int else "a finite number"
        low = "" if self.low == -math.inf else f" {'above' if self.above else 'from'} {self.low:g}"
        high = "" if self.high == math.inf else f" to {self.high:g}"
        return f"{what}{low}{high}{', or None' if self.optional else ''}"

    def holds(self, value: object) -> bool:
        if value is None:
            return self.optional
        if isinstance(value, bool) or not isinstance(
            value, int if self.kind is int else int | float
        ):
            return False
        if not math.isfinite(value) or value > self.high:
            return False
        return value > self.low if self.above else value >= self.low


_RANGES = {
    "max_generations": _Range(int, 1, 10_000_000),
    "target": _Range(float, -math.inf, optional=True),
    "cost_budget": _Range(float, 0, above=True, optional=True),
    "time_budget_s": _Range(float, 0, above=True, optional=True),
    "patience": _Range(int, 1, 10_000_000, optional=True),
    "risk_limit": _Range(float, -math.inf, optional=True),
    "min_gain": _Range(float, 0),
    "rollback_drop": _Range(float, 0, optional=True),
    "max_defers": _Range(int, 0, 1_000),
    "step_attempts": _Range(int, 1, 1_000),
    "seed": _Range(int, -(2**63), 2**63 - 1),
}
_CHOICES = {"on_risk": ("reject", "stop"), "record": ("intent", "single")}
_SCOPE_CHARS = 256


def check_config(config: object) -> LoopConfig:
    """
    Give the configuration with its numbers in their types, or refuse it.

    Raises:
        ConfigInvalid: a value is missing or out of range; `data` has its name and range.
    """
    if not isinstance(config, LoopConfig):
        _refuse("config", "a LoopConfig", config)
    for name in ("tenant", "workspace"):
        value = getattr(config, name)
        if not _is_text(value) or not value.strip() or len(value) > _SCOPE_CHARS:
            _refuse(name, f"text of 1 to {_SCOPE_CHARS} characters", value)
    for name, allowed in _RANGES.items():
        if not allowed.holds(getattr(config, name)):
            _refuse(name, allowed.describe(), getattr(config, name))
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            _refuse(name, f"one of {', '.join(choices)}", getattr(config, name))
    return msgspec.convert(msgspec.to_builtins(config), LoopConfig)


def _is_text(value: object) -> bool:
    """Tell whether it is a string that can be written down: without lone surrogates."""
    return isinstance(value, str) and value.encode("utf-8", "ignore").decode() == value


def _refuse(field: str, allowed: str, got: object) -> Any:
    raise ConfigInvalid(f"{field} must be {allowed}.", field=field, allowed=allowed, got=repr(got))
