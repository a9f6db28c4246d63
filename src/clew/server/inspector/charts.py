"""Bars, as plain SVG: no script, no style of their own but classes."""

from __future__ import annotations

from collections.abc import Sequence

from clew.server.inspector.html import Html, el

__all__ = ["bars"]

_WIDTH, _HEIGHT, _FOOT = 600, 140, 18
_MARGIN = 60
"""Half the width that the words for a value may need."""


def bars(title: str, values: Sequence[tuple[str, float, str]]) -> Html:
    """A bar for each of these: a name, a value, and the words for it. The largest is written out above its bar, the names at
    both ends below, and every bar says its own to who points at it."""
    most = max((value for _, value, _ in values), default=0) or 1
    step = _WIDTH / max(1, len(values))
    made = []
    for place, (name, value, words) in enumerate(values):
        height = 0 if not value else max(2.0, value / most * (_HEIGHT - _FOOT - 16))
        made.append(
            el(
                "rect",
                x=f"{place * step + step * 0.15:.1f}",
                y=f"{_HEIGHT - _FOOT - height:.1f}",
                width=f"{step * 0.7:.1f}",
                height=f"{height:.1f}",
                rx="2",
            )
        )
        made[-1] = el("g", el("title", f"{name}: {words}"), _column(place * step, step), made[-1])
    base = _HEIGHT - _FOOT
    return el(
        "svg",
        el("title", title),
        el("line", x1="0", x2=str(_WIDTH), y1=str(base), y2=str(base), class_="axis"),
        made,
        _peak([value for _, value, _ in values], [words for _, _, words in values], step),
        el("text", values[0][0] if values else "", x="0", y=str(_HEIGHT - 3)),
        el("text", values[-1][0] if values else "", x=str(_WIDTH), y=str(_HEIGHT - 3), text_anchor="end"),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        class_="bars",
        role="img",
        aria_label=title,
        data_test="chart",
    )


def _peak(values: Sequence[float], words: Sequence[str], step: float) -> Html | None:
    """The words for the largest, over it as far as they do not run out of the picture."""
    if not any(values):
        return None
    place = max(range(len(values)), key=values.__getitem__)
    middle = (place + 0.5) * step
    anchor, x = (
        ("start", 0.0)
        if middle < _MARGIN
        else ("end", float(_WIDTH))
        if middle > _WIDTH - _MARGIN
        else ("middle", middle)
    )
    return el("text", words[place], x=f"{x:.1f}", y="10", text_anchor=anchor, class_="peak")


def _column(x: float, width: float) -> Html:
    """The whole height of a bar's place, so that a low bar can be pointed at too."""
    return el("rect", x=f"{x:.1f}", y="0", width=f"{width:.1f}", height=str(_HEIGHT - _FOOT), class_="column")
