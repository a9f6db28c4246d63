"""Makes the error messages of vendors safe to show, by removing keys and quotations from the conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from clew.messages import Block, File, Image, Json, Opaque, Text, Thinking, ToolCall, ToolResult
from clew.models.base import ModelRequest

__all__ = ["shown"]


_LENGTH = 240
_ECHO = 12
"""If at least this many letters and digits in a row occur both in an error message and in the conversation, they count
as a quotation, which is removed from the message."""
_GAP = "…"
_KEYS = re.compile(
    r"\b(?:sk|pk|rk|ak|gsk|xai|key|token)[-_][\w*.-]{4,}"  # the usual forms of keys
    r"|\bAIza[\w-]{20,}"
    r"|\bbearer\s+\S+"
    r"|\bST\$\S+"  # the tokens of sessions and principals of OCI
    r"|[\w-]*\*{3,}[\w-]*"  # a key whose middle is hidden by asterisks
    r"|(?<=provided: )\S+",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"""(['"`])(.+?)\1""", re.DOTALL)
_OTHER = re.compile(r"[\W_]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|.)", re.DOTALL)


def shown(message: str, request: ModelRequest, secrets: Iterable[str] = ()) -> str:
    """Return a vendor's error message made safe to show: shortened, without keys, and without quotations from the
    request. `secrets` are keys to remove; everything else that looks like a key is removed too."""
    text = " ".join(_ESCAPE.sub(_unescaped, message[: 2 * _LENGTH]).split())
    for secret in secrets:
        if secret:
            text = text.replace(secret, _GAP)
    text = _KEYS.sub(_GAP, text)
    text = _without_echo(text, "\n".join(_letters(part) for part in _texts_of(request)))
    return text if len(text) <= _LENGTH else text[: _LENGTH - 1].rstrip() + _GAP


def _unescaped(escape: re.Match[str]) -> str:
    """Return the character that an escape sequence such as `\\u0041` in an error message stands for; a space for one
    without a hexadecimal code, such as `\\n`. Vendors often escape what they quote from the conversation. A quotation
    has to be decoded so that it can be found and removed."""
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else " "


def _without_echo(text: str, said: str) -> str:
    places = [(place, letter) for place, char in enumerate(text) for letter in char.lower() if letter.isalnum()]
    row = "".join(letter for _, letter in places)
    hidden: set[int] = set()
    for start in range(len(row) - _ECHO + 1):
        if row[start : start + _ECHO] in said:
            hidden.update(range(places[start][0], places[start + _ECHO - 1][0] + 1))
    for quoted in _QUOTED.finditer(text):
        inside = _letters(quoted[2])
        if len(inside) > 2 and inside in said:
            hidden.update(range(*quoted.span(2)))
    parts: list[str] = []
    for place, char in enumerate(text):
        if place not in hidden:
            parts.append(char)
        elif place - 1 not in hidden:
            parts.append(_GAP)
    return "".join(parts)


def _letters(text: str) -> str:
    """Return only the letters and digits of a text, in lower case. An error message and the request are compared in
    this form, because a vendor may quote the request with other escapes or line breaks."""
    return _OTHER.sub("", text.lower())


def _texts_of(request: ModelRequest) -> Iterator[str]:
    yield request.system
    for message in request.messages:
        for block in message.content:
            yield from _texts_in(block)


def _texts_in(block: Block) -> Iterator[str]:
    if isinstance(block, (Text, Thinking)):
        yield block.text
    elif isinstance(block, ToolCall):
        yield from _leaves(block.arguments)
    elif isinstance(block, ToolResult):
        for inner in block.content:
            yield from _texts_in(inner)
    elif isinstance(block, (Json, Opaque)):
        yield from _leaves(block.value)
    elif isinstance(block, (Image, File)):
        yield block.url or ""
        yield block.name if isinstance(block, File) else ""


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, (bool, bytes)):
        yield str(value)
