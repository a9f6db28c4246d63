"""Numbers, times and values in the form in which people read them on the pages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

__all__ = [
    "STATUS_WORDS",
    "ago",
    "clock",
    "compact",
    "cost",
    "count",
    "duration",
    "one_line",
    "plural",
    "pretty",
    "size",
    "tokens",
]

_LONGEST_VALUE = 20_000

STATUS_WORDS = {
    "running": "Running",
    "waiting": "Waiting",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "done": "Done",
}


def count(number: int) -> str:
    """Write a number with separators: `1,234`."""
    return f"{number:,}"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def tokens(number: int) -> str:
    """Write a number of tokens in short: `950`, `12.3k`, `1.20M`."""
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.2f}M"


def cost(dollars: float | None) -> str:
    if dollars is None:
        return "unknown"
    if dollars == 0:
        return "$0"
    return f"${dollars:,.4f}" if dollars < 0.01 else f"${dollars:,.2f}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def size(bytes_: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if bytes_ >= factor:
            return f"{bytes_ / factor:.1f} {unit}"
    return f"{bytes_} B"


def ago(when: datetime, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    if seconds < 10:
        return "just now"
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= factor:
            return f"{int(seconds // factor)} {unit} ago"
    return f"{int(seconds)} s ago"


class Clock(NamedTuple):
    """A time as the `<time>` element needs it."""

    shown: str
    """What the page says until its script replaces it with the time in the reader's own zone."""
    full: str
    stamp: str


def clock(when: datetime, relative: bool = False) -> Clock:
    """Return the forms of a time that a page needs. `relative` shows it as `5 min ago`, which the script keeps true."""
    utc = when.astimezone(UTC)
    full = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    shown = ago(when) if relative else f"{utc:%H:%M:%S}" if utc.date() == datetime.now(UTC).date() else full[:16]
    return Clock(shown, full, utc.isoformat(timespec="milliseconds"))


def one_line(text: str, longest: int = 120) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def compact(value: Any, longest: int = 120) -> str:
    """Write any value that a log can hold as JSON on one line, cut after `longest` characters."""
    return one_line(json.dumps(_plain(value), ensure_ascii=False, default=repr), longest)


def pretty(value: Any) -> str:
    """Write any value that a log can hold as indented JSON. A very long value is cut, with a note that says so."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, default=repr)
    if len(text) > _LONGEST_VALUE:
        return (
            f"{text[:_LONGEST_VALUE]}\n… {len(text) - _LONGEST_VALUE:,} more characters; export the thread to see all"
        )
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        kind = value.__struct_config__.tag
        fields = {name: _plain(item) for name, item in msgspec.structs.asdict(value).items() if item is not None}
        return fields if kind is None else {"kind": kind, **fields}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return f"{value[:_LONGEST_VALUE]}… ({len(value):,} characters)"
    return value
