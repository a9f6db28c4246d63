"""Moments and times, as they are given on the command line and shown."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["clock", "since", "span"]


def since(given: str | None) -> datetime | None:
    """The moment that `2d`, `12h`, `30m` or a date such as `2025-01-31` means."""
    if given is None:
        return None
    try:
        return datetime.fromisoformat(given.strip()).astimezone()
    except (ValueError, OverflowError):
        return _ago(given)


def _ago(given: str) -> datetime:
    from clew.cli._durations import duration
    from clew.errors import InvalidInput

    try:
        return datetime.now(UTC) - duration(given, "--since")
    except OverflowError:
        raise InvalidInput(f"--since {given} is longer ago than there are dates.") from None


def clock(moment: datetime, now: datetime | None = None) -> str:
    """On this machine's clock; with the day, unless that is today."""
    local = moment.astimezone()
    same_day = local.date() == (now or datetime.now(UTC)).astimezone().date()
    return f"{local:%H:%M:%S}" if same_day else f"{local:%Y-%m-%d %H:%M:%S}"


def span(seconds: float) -> str:
    """How long that took: `30ms`, `1.5s`, `12s`, `4m 10s`, `2h 5m`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"
