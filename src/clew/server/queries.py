"""The numbers after the question mark."""

from __future__ import annotations

from typing import Any

from litestar import Request

from clew.errors import InvalidInput

__all__ = ["numbers"]

_LONGEST = 40


def numbers(request: Request[Any, Any, Any], *names: str) -> dict[str, int]:
    """Those of these that are given. A misspelt one is refused: a read of everything would be the wrong answer to it."""
    found: dict[str, int] = {}
    for name, text in request.query_params.multi_items():
        if name not in names or name in found:
            raise InvalidInput(f"{name[:40]!r} is no parameter here, or is given twice; known are {', '.join(names)}")
        if not (text.isascii() and text.isdecimal()) or len(text) > _LONGEST:
            raise InvalidInput(f"{name} is a whole number from 0 on, not {text[:40]!r}")
        found[name] = int(text)
    return found
