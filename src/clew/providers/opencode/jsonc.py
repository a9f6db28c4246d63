"""JSON with comments and trailing commas, as opencode's settings are."""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["decode_jsonc"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)


def decode_jsonc(text: str) -> Any:
    """`msgspec.DecodeError` if it is none. What looks like a comment inside a string is a part of the string."""
    bare = _TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    try:
        return msgspec.json.decode(_COMMA.sub(lambda match: match[1] or "", bare))
    except (UnicodeError, RecursionError):
        raise msgspec.DecodeError("it is no text, or nested too deeply") from None
