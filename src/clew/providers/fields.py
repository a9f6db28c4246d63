"""Helpers that read values from the JSON that outside programs write. An unexpected value never raises an error,
because programs change what they write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

__all__ = ["format_time", "from_milliseconds", "from_seconds", "parse_time", "text", "values"]


def values(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object, otherwise an empty dict."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """Return the value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""


def parse_time(value: Any) -> datetime | None:
    """Parse a text in ISO format to a time; None for anything else. A time without a zone is taken as UTC."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time.replace(tzinfo=time.tzinfo or UTC) if time else None


def format_time(time: datetime) -> str:
    """Format a time as JavaScript does: in UTC, with milliseconds and a Z at the end."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def from_milliseconds(value: Any) -> datetime | None:
    """Convert a number of milliseconds since 1970 to a time in UTC; None for anything else."""
    if not isinstance(value, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(value / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def from_seconds(value: Any) -> datetime | None:
    """Convert a number of seconds since 1970 to a time in UTC; None for anything else."""
    return from_milliseconds(value * 1000) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
