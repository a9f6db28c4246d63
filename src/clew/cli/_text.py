"""Text of a conversation, made safe and short for a terminal: whoever wrote it may be a model, or a tool's output."""

from __future__ import annotations

import re

__all__ = ["clean", "cut", "one_line"]

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""What moves a cursor, sets a colour, a title or a clipboard."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Among them those that turn the direction of writing, and so can make a text look like another."""


def clean(text: str) -> str:
    """Without anything that a terminal would obey. Line breaks and tabs stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str, longest: int | None = None) -> str:
    """Clean, on one line, and no longer than this."""
    return cut(" ".join(clean(text).split()), longest)


def cut(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else text[: max(0, longest - 1)].rstrip() + "…"
