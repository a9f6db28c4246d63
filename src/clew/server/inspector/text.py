"""Numbers, times and values as people read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from clew.server.inspector.html import Html, el

__all__ = ["ago", "compact", "cost", "count", "duration", "moment", "one_line", "plural", "pretty", "size", "tokens"]

_LONGEST_VALUE = 20_000


def count(number: int) -> str:
    """`1,234`."""
    return f"{number:,}"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def tokens(number: int) -> str:
    """`950`, `12.3k`, `1.2M`."""
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


def moment(when: datetime | None, *, relative: bool = False) -> Html | None:
    """A time; the page's script shows it in the reader's own time zone, and keeps relative ones true."""
    if when is None:
        return None
    utc = when.astimezone(UTC)
    full = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    shown = ago(when) if relative else f"{utc:%H:%M:%S}" if utc.date() == datetime.now(UTC).date() else full[:16]
    stamp = utc.isoformat(timespec="milliseconds")
    return el("time", shown, datetime=stamp, title=full, data_relative=relative or None)


def one_line(text: str, longest: int = 120) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def compact(value: Any, longest: int = 120) -> str:
    """JSON of whatever a log can hold, on one line."""
    return one_line(json.dumps(_plain(value), ensure_ascii=False, default=repr), longest)


def pretty(value: Any) -> str:
    """JSON of whatever a log can hold, indented; very long values are cut, and say so."""
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
