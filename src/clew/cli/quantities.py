"""Lengths of time as people write them: `30d`, `12h`, `90m`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from clew.errors import InvalidInput

if TYPE_CHECKING:
    pass

__all__ = ["duration", "since"]


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def duration(text: str, option: str) -> timedelta:
    """How long that is. `InvalidInput` names the option and shows how it is written."""

    found = _DURATION.fullmatch(text.strip().lower())
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else _none(text, option)
    except OverflowError:
        raise InvalidInput(f"{option} {text} is longer than there is time.") from None


def _none(text: str, option: str) -> timedelta:

    if text.strip() == "0":
        return timedelta(0)
    raise InvalidInput(f"{option} {text!r} is no length of time. Write 45s, 90m, 12h, 30d or 2w.")


def since(given: str | None) -> datetime | None:
    """The moment that `2d`, `12h`, `30m` or a date such as `2025-01-31` means."""
    if given is None:
        return None
    try:
        return datetime.fromisoformat(given.strip()).astimezone()
    except (ValueError, OverflowError):
        return _ago(given)


def _ago(given: str) -> datetime:

    try:
        return datetime.now(UTC) - duration(given, "--since")
    except OverflowError:
        raise InvalidInput(f"--since {given} is longer ago than there are dates.") from None
