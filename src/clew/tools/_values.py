"""JSON-like values: what a log keeps and gives back as it was."""

from __future__ import annotations

import json
from typing import Any

from clew.errors import InvalidInput

__all__ = ["json_like", "shown"]

_LEAST, _MOST = -(2**63), 2**64
_DEEPEST = 100


def json_like(value: Any, what: str) -> Any:
    """A copy of the value as a log gives it back: tuples are lists. `InvalidInput`, with the place, if it is none.

    A copy, so that a step's value is the same in the run that made it and in the run that replays it.
    """
    return _copy(value, what, 0)


def _copy(value: Any, place: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is str:
        if value.isascii() or _is_text(value):
            return value
        raise InvalidInput(f"{place} is a text with half a surrogate pair, which cannot be stored.")
    if kind is int:
        if _LEAST <= value < _MOST:
            return value
        raise InvalidInput(f"{place} is an integer of more than 64 bits. Keep it as text.")
    if depth > _DEEPEST:
        raise InvalidInput(f"{place} is nested more than {_DEEPEST} levels deep, or holds itself.")
    if kind is list or kind is tuple:
        return [_copy(inner, f"{place}[{index}]", depth + 1) for index, inner in enumerate(value)]
    if kind is dict:
        for key in value:
            if type(key) is not str or not _is_text(key):
                raise InvalidInput(f"{place} has the key {key!r}, and only texts can be keys.")
        return {key: _copy(inner, f"{place}[{key!r}]", depth + 1) for key, inner in value.items()}
    raise InvalidInput(
        f"{place} is of the type {kind.__qualname__}, which is not JSON-like. Use None, bool, int, float, str, list and "
        "dict; msgspec.to_builtins or model_dump turn an object into these."
    )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any, longest: int = 120) -> str:
    """A value as a model would write it, cut to a length that fits into a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"
