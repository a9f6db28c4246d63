"""What a vendor said beside a block. It is kept under the name of its dialect and given back to that dialect alone.

A payload's block is the vendor's own word: fields that Clew does not know are not checked, only carried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from clew.messages.dialects._values import plain
from clew.messages.dialects.loss import At, Notes

Extra = dict[str, Any] | None


def own(extra: Extra, dialect: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """The fields of this dialect that may be put beside those that the translator writes itself."""
    fields = extra.get(dialect) if extra else None
    if not isinstance(fields, dict):
        return {}
    return beside(fields, taken)


def beside(part: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """The fields of a vendor's object that canonical blocks have no word for. Null says nothing and is left out."""
    fields = {key: plain(value) for key, value in part.items() if isinstance(key, str) and key not in taken}
    return {key: value for key, value in fields.items() if value is not None}


def extra_of(dialect: str, fields: dict[str, Any]) -> Extra:
    return {dialect: fields} if fields else None


def check(extra: Extra, dialect: str, kept: dict[str, Any], at: At, notes: Notes) -> None:
    """Note it if a block's extra is not just what comes back when `kept` was said."""
    if extra and extra != extra_of(dialect, kept):
        notes.add(at, "what a vendor said beside the block", f"{dialect} has no place for it there")
