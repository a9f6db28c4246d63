"""What a measurement comes to: ratios with their spread, and the limits they have to keep."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["Limit", "Result", "Spread", "at_least", "at_most", "below", "paired", "spread"]


class Spread(msgspec.Struct, frozen=True):
    """A median and its quartiles over the repeats of a measurement."""

    median: float
    low: float
    high: float
    repeats: int
    worst: float = 0.0
    """The largest."""


class Limit(msgspec.Struct, frozen=True):
    """What a ratio may be at most, must be at least, or must be below in every repeat."""

    sign: str
    value: float

    def met_by(self, ratio: Spread) -> bool:
        if self.sign == "all <":
            return ratio.worst < self.value
        return ratio.median <= self.value if self.sign == "<=" else ratio.median >= self.value


class Result(msgspec.Struct, frozen=True):
    """One line of the table: ours over the other."""

    measurement: str
    ours: str
    other: str
    ratio: Spread
    limit: Limit | None = None

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.limit.met_by(self.ratio)


def at_most(value: float) -> Limit:
    return Limit("<=", value)


def at_least(value: float) -> Limit:
    return Limit(">=", value)


def below(value: float) -> Limit:
    """Every single repeat is below this."""
    return Limit("all <", value)


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1, values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values), max(values))


def paired(ours: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Spread:
    """Spread over the repeats; of each repeat, the median of the ratios of what was measured side by side."""
    return spread(
        [
            statistics.median(mine / theirs for mine, theirs in zip(our, other, strict=True))
            for our, other in zip(ours, others, strict=True)
        ]
    )
