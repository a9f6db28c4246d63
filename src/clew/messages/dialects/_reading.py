"""Reading a payload that anyone may have written: what is amiss is InvalidInput, with its place and key."""

from __future__ import annotations

from typing import Any, TypeVar

from clew.errors import InvalidInput

_T = TypeVar("_T")
_KINDS = {str: "a text", dict: "an object", list: "a list", bool: "true or false"}


def need(part: dict[str, Any], key: str, kind: type[_T], where: str) -> _T:
    """A key that must be there. The error never shows the value: it may be a prompt."""
    value = part.get(key)
    if value is None:
        raise InvalidInput(f"{where}: the key {key!r} is missing")
    return expect(value, kind, f"{where}: the value of {key!r}")


def may(part: dict[str, Any], key: str, kind: type[_T], default: _T, where: str) -> _T:
    """A key that may be absent or null."""
    value = part.get(key)
    return default if value is None else expect(value, kind, f"{where}: the value of {key!r}")


def expect(value: Any, kind: type[_T], what: str) -> _T:
    if not isinstance(value, kind):
        raise InvalidInput(f"{what} is not {_KINDS[kind]}")
    return value


def parts_of(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Content as vendors write it: one text, or a list of objects that each name their type."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(expect(content, list, f"{where}: the value of 'content'")):
        spot = f"{where}, part {number}"
        need(expect(part, dict, spot), "type", str, spot)
        parts.append(part)
    return parts


def exactly(part: dict[str, Any], *keys: str) -> bool:
    """Whether an object has these keys and no other; null counts as absent."""
    return {key for key, value in part.items() if value is not None} == set(keys)
