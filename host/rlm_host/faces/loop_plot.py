"""Rewards over generations as characters in a terminal. Pure: given numbers, gives lines."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..loops.head import LIVE_KEPT

POINTS = 1_024
"""Columns that a run is kept in, however long it is; from there on neighbours share one."""
UNICODE = ("•", "●", "┤", "│")
ASCII = (".", "*", "+", "|")
ACCEPT = "accept"


@dataclass(slots=True)
class _Column:
    """What is shown of some neighbouring generations: the highest reward, and the best so far."""

    reward: float | None = None
    best: float | None = None
    accepted: bool = False

    def join(self, other: "_Column") -> None:
        """Take in the column to the right."""
        if other.reward is not None and (self.reward is None or other.reward >= self.reward):
            self.reward = other.reward
        self.best = other.best
        self.accepted = self.accepted or other.accepted


class RewardPlot:
    """The rewards of a run as it goes on, in bounded memory."""

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        self._per_column = 1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, generation: dict[str, Any], best: float | str | None) -> None:
        """Take in one more generation and the best reward after it, both as on the wire."""
        column = _Column(finite(generation["reward"]), finite(best), generation["action"] == ACCEPT)
        if self._count % self._per_column:
            self._columns[-1].join(column)
        else:
            self._columns.append(column)
        self._count += 1
        if len(self._columns) == 2 * POINTS:
            self._columns = _halved(self._columns)
            self._per_column *= 2

    def lines(self, width: int, height: int, *, ascii_only: bool = False) -> list[str]:
        """
        Draw in so many characters; nothing where there is nothing to draw or no room.

        A dot is a measured reward, a full one an accepted candidate; the line is the best so far.
        """
        point, full, tick, edge = ASCII if ascii_only else UNICODE
        known = [v for c in self._columns for v in (c.reward, c.best) if v is not None]
        if not known or height < 2:
            return []
        low, high = min(known), max(known)
        labels = {height - 1: f"{low:.4g}"} if low < high else {}
        labels[0] = f"{high:.4g}"
        margin = max(map(len, labels.values()))
        columns = _fitted(self._columns, width - margin - 1)
        if not columns:
            return []

        def row_of(value: float) -> int:
            return 0 if high == low else round((high - value) / (high - low) * (height - 1))

        cells = [[" "] * len(columns) for _ in range(height)]
        for x, column in enumerate(columns):
            if column.best is not None:
                cells[row_of(column.best)][x] = "-" if ascii_only else "─"
            if column.reward is not None:
                cells[row_of(column.reward)][x] = full if column.accepted else point
        drawn = []
        for y, row in enumerate(cells):
            label = labels.get(y, "")
            drawn.append(f"{label:>{margin}}{tick if label else edge}{''.join(row).rstrip()}")
        return drawn


class LiveReward:
    """The live artifact's reward, followed over the generations of a run from its first."""

    def __init__(self) -> None:
        self._live = deque[float | None](maxlen=LIVE_KEPT)

    def after(self, generation: dict[str, Any]) -> float | None:
        """Give it as it is after one more generation."""
        if generation["action"] == ACCEPT:
            self._live.append(finite(generation["reward"]))
        elif generation["action"] == "rollback" and self._live:
            self._live.pop()
        return self._live[-1] if self._live else None


def finite(value: float | str | None) -> float | None:
    """Give a measured number, or None where there is none to draw."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def _fitted(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Give at most `width` columns: neighbours share one."""
    fitted = list(columns)
    while len(fitted) > width > 0:
        fitted = _halved(fitted)
    return fitted if width > 0 else []


def _halved(columns: Sequence[_Column]) -> list[_Column]:
    pairs = []
    for left in range(0, len(columns), 2):
        pair = _Column(columns[left].reward, columns[left].best, columns[left].accepted)
        for right in columns[left + 1 : left + 2]:
            pair.join(right)
        pairs.append(pair)
    return pairs
