"""Bar charts: the places and sizes of bars, which a template draws as plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Chart", "bar_chart"]

_WIDTH, _HEIGHT, _FOOT, _TOP = 600, 140, 18, 16
_MARGIN = 60
"""Half the width that the words for a value may need."""


class Bar(NamedTuple):
    """One bar. Lengths are texts, rounded as SVG needs them."""

    title: str
    column_x: str
    x: str
    y: str
    height: str


class Peak(NamedTuple):
    """The words for the largest value, and where they stand."""

    words: str
    x: str
    anchor: str


class Chart(NamedTuple):
    """A bar chart, ready to be drawn: the largest value is written above its bar, the first and the last name below."""

    title: str
    bars: list[Bar]
    column_width: str
    bar_width: str
    peak: Peak | None
    first: str
    last: str
    width: int = _WIDTH
    height: int = _HEIGHT
    base: int = _HEIGHT - _FOOT
    """The height at which the axis lies."""


def bar_chart(title: str, values: Sequence[tuple[str, float, str]]) -> Chart:
    """Lay out a bar for each (name, value, words for the value)."""
    step = _WIDTH / max(1, len(values))
    most = max((value for _, value, _ in values), default=0) or 1
    bars = []
    for place, (name, value, words) in enumerate(values):
        height = 0 if not value else max(2.0, value / most * (_HEIGHT - _FOOT - _TOP))
        x = place * step
        y = _HEIGHT - _FOOT - height
        bars.append(Bar(f"{name}: {words}", f"{x:.1f}", f"{x + step * 0.15:.1f}", f"{y:.1f}", f"{height:.1f}"))
    first, last = (values[0][0], values[-1][0]) if values else ("", "")
    return Chart(title, bars, f"{step:.1f}", f"{step * 0.7:.1f}", _peak(values, step), first, last)


def _peak(values: Sequence[tuple[str, float, str]], step: float) -> Peak | None:
    """Place the words for the largest value over its bar, but within the picture. None if all values are 0."""
    if not any(value for _, value, _ in values):
        return None
    place = max(range(len(values)), key=lambda place: values[place][1])
    words, middle = values[place][2], (place + 0.5) * step
    if middle < _MARGIN:
        return Peak(words, "0.0", "start")
    if middle > _WIDTH - _MARGIN:
        return Peak(words, f"{_WIDTH:.1f}", "end")
    return Peak(words, f"{middle:.1f}", "middle")
