"""Numbers and tables for people: plain text, or Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bench.results import Limit, Result

__all__ = ["markdown", "micros", "plain", "rate", "size"]

_TITLES = ("measurement", "ours", "floor or peer", "ratio (quartiles)", "limit", "met")


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.2f} GB"


def rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s"


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"


def _cells(result: Result) -> tuple[str, ...]:
    ratio = result.ratio
    spread = f" ({_number(ratio.low)}-{_number(ratio.high)})" if ratio.repeats > 1 else ""
    met = {None: "", True: "yes", False: "no"}[result.met]
    return result.measurement, result.ours, result.other, _number(ratio.median) + spread, _limit(result.limit), met


def _limit(limit: Limit | None) -> str:
    if limit is None:
        return ""
    return (
        f"{limit.sign} {limit.value:.1f}" if round(limit.value, 1) == limit.value else f"{limit.sign} {limit.value:g}"
    )


def plain(results: Sequence[Result]) -> str:
    rows = [_TITLES, *map(_cells, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(" | ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def markdown(results: Sequence[Result]) -> str:
    rows = [_TITLES, ("---", "--:", "--:", "--:", "--:", "---"), *map(_cells, results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
