"""Lengths of time as people write them: `30d`, `12h`, `90m`."""

from __future__ import annotations

import re
from datetime import timedelta

__all__ = ["duration"]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def duration(text: str, option: str) -> timedelta:
    """How long that is. `InvalidInput` names the option and shows how it is written."""
    from clew.errors import InvalidInput

    found = _WRITTEN.fullmatch(text.strip().lower())
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else _none(text, option)
    except OverflowError:
        raise InvalidInput(f"{option} {text} is longer than there is time.") from None


def _none(text: str, option: str) -> timedelta:
    from clew.errors import InvalidInput

    if text.strip() == "0":
        return timedelta(0)
    raise InvalidInput(f"{option} {text!r} is no length of time. Write 45s, 90m, 12h, 30d or 2w.")
