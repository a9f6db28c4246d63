"""Values in words, for everything that people read."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ago"]


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago that was, in one word: `12s`, `5m`, `3h`, `2d`."""
    seconds = max(0, int(((now or datetime.now(UTC)) - moment).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
