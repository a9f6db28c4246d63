"""Lengths of time as people write them: `30d`, `12h`, `90m`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.agent import Budget

__all__ = ["clock", "duration", "read_budget", "since", "span"]


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def duration(text: str, option: str) -> timedelta:
    """How long that is. `InvalidInput` names the option and shows how it is written."""
    from clew.errors import InvalidInput

    found = _DURATION.fullmatch(text.strip().lower())
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else _none(text, option)
    except OverflowError:
        raise InvalidInput(f"{option} {text} is longer than there is time.") from None


def _none(text: str, option: str) -> timedelta:
    from clew.errors import InvalidInput

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


_BUDGET = re.compile(r"\$?(\d+(?:\.\d+)?)\s*(usd|[km]?tokens?|s|sec|min|h)?", re.IGNORECASE)
_TOKENS = {"tokens": 1, "ktokens": 1_000, "mtokens": 1_000_000}
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


def read_budget(given: Sequence[str]) -> Budget:
    """All of them as one; `none`, alone, is no limit. `InvalidInput` for what is no budget, or said twice."""
    from clew.advice import NO_BUDGET
    from clew.agent import Budget
    from clew.errors import InvalidInput

    if [text.strip().lower() for text in given] == [NO_BUDGET]:
        return Budget()
    found: dict[str, Any] = {}
    for text in given:
        kind, amount = _read(text)
        if kind in found:
            raise InvalidInput(f"--budget says twice how many {kind} may be spent. Give one of them.")
        found[kind] = amount
    return Budget(**found)


def _read(text: str) -> tuple[str, float | int]:
    from clew.errors import InvalidInput

    text = text.strip()
    written = _BUDGET.fullmatch(text)
    unit = "" if written is None else (written[2] or "").lower()
    is_dollars = text.startswith("$")
    if written is None or is_dollars == bool(unit):
        raise InvalidInput(
            f"--budget {text!r} is not a budget. Write 2usd, 100ktokens or 10min; none, alone, for no limit."
        )
    amount = float(written[1])
    if not amount > 0:
        raise InvalidInput(f"--budget {text} allows nothing. Give more than 0; none, alone, for no limit.")
    if unit in _SECONDS:
        return "seconds", amount * _SECONDS[unit]
    if unit.endswith(("token", "tokens")):
        return "tokens", round(amount * _TOKENS[unit.removesuffix("s") + "s"])
    return "usd", amount
