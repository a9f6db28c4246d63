"""Redaction: what must never be on record is taken out before anything is recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.log import Logged, UnknownEntry

__all__ = ["REDACTED", "Redact", "redactor"]

REDACTED = "[redacted]"

Redact = Callable[[str], str] | Iterable[str | re.Pattern[str]]
"""A function from text to text, or patterns whose matches are replaced by `[redacted]`."""

_KEPT = {"status", "scope", "owner", "token"}  # words of Clew's own, not of the work


def redactor(redact: Redact | None) -> Callable[[Sequence[Logged]], Sequence[Logged]] | None:
    """What turns entries into what may be recorded of them. Every text in them is looked at: words, arguments, results,
    state, titles; keys of dictionaries too. Bytes of images and files are left alone."""
    if redact is None:
        return None
    change = redact if callable(redact) else _replacing(redact)
    return lambda entries: [_redacted(entry, change) for entry in entries]


def _replacing(patterns: Iterable[str | re.Pattern[str]]) -> Callable[[str], str]:
    if isinstance(patterns, str):
        raise InvalidInput("redact takes a function or a list of patterns; for one pattern write redact=[pattern]")
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        raise InvalidInput(f"a pattern to redact is no regular expression: {error}") from error

    def change(text: str) -> str:
        for pattern in compiled:
            text = pattern.sub(REDACTED, text)
        return text

    return change


def _redacted(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, UnknownEntry):
        raise InvalidInput(
            "an entry of a kind that this version does not know cannot be redacted, so it is not recorded"
        )
    if isinstance(value, msgspec.Struct):
        changed = {}
        for field in value.__struct_fields__:
            old = getattr(value, field)
            new = old if field in _KEPT else _redacted(old, change)
            if new is not old:
                changed[field] = new
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, dict):
        return {_redacted(key, change): _redacted(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item, change) for item in value]
    if isinstance(value, tuple):
        return tuple(_redacted(item, change) for item in value)
    return value
