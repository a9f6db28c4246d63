"""Lengths of time, moments, tags and limits as people write them on a command line: `30d`, `12h`, `90m`, `2025-01-31`,
`customer=acme`, `agent:clerk=2`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from clew.errors import InvalidInput

__all__ = ["duration", "limits", "since", "tags"]


_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(min|[smhdw])")


def duration(text: str, option: str) -> timedelta:
    """Parse a length of time such as `45s`, `90m`, `12h`, `30d` or `2w`. Raises `InvalidInput`, which names `option`,
    for anything else."""
    found = _DURATION.fullmatch(text.strip().lower())
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else _zero(text, option)
    except OverflowError:
        raise InvalidInput(f"{option} {text} is too long. Give a shorter time.") from None


def _zero(text: str, option: str) -> timedelta:
    if text.strip() == "0":
        return timedelta(0)
    raise InvalidInput(f"{option} {text!r} is not a length of time. Write 45s, 90m, 12h, 30d or 2w.")


def since(given: str | None) -> datetime | None:
    """Parse a value of --since: a date such as `2025-01-31`, or a length of time such as `2d`, which is counted back
    from now. Returns None if the option was not given. Raises `InvalidInput` for anything else."""
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
        raise InvalidInput(f"--since {given} is before the year 1. Give a shorter time.") from None


def tags(given: Sequence[str], option: str) -> dict[str, str]:
    """Parse the values of an option that takes tags, each written `name=value`. Raises `InvalidInput`, which names
    `option`, for anything else."""
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise InvalidInput(f"{option} {one!r} is not a tag. Write {option} name=value.")
        found[name] = value
    return found


def limits(given: Sequence[str]) -> dict[str, int]:
    """Parse the values of --limit, each written `WHAT=N`. What can be limited, the worker checks."""
    found = {}
    for one in given:
        name, equals, most = one.rpartition("=")
        if not equals or not name or not (most.isascii() and most.isdigit() and len(most) < 10):
            raise InvalidInput(
                f"--limit {one!r} is not a limit. Write agent:NAME=N, tag:NAME=N, tag:NAME=VALUE=N or tenant=N."
            )
        found[name] = int(most)
    return found
