"""Rows of opencode's database as lines of JSON, to the letter: JSON that a column holds as text is JSON there too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from clew.errors import Corrupt

__all__ = ["Row", "decode", "encode", "opened", "sealed"]

Row = dict[str, Any]
"""A row's values by their columns, as the database gives and takes them."""

_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]])


def opened(row: Row) -> dict[str, msgspec.Raw]:
    """A row as the fields of a JSON object."""
    return {column: msgspec.Raw(_encoder.encode(_embedded(value))) for column, value in row.items()}


def sealed(row: Mapping[str, msgspec.Raw]) -> Row:
    """The row that an object of `opened` was."""
    return {column: _plain(bytes(value)) for column, value in row.items()}


def encode(table: str, row: Row) -> bytes:
    """One line, with its end."""
    return _encoder.encode({table: {column: _embedded(value) for column, value in row.items()}}) + b"\n"


def decode(line: bytes, where: str) -> tuple[str, Row]:
    """The table and the row of a line. `Corrupt` names the place if it is none."""
    try:
        ((table, row),) = _lines.decode(line).items()
        return table, sealed(row)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{where} is damaged: {error}. Restore it from a copy.") from error


def _embedded(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "[") and value[-1:] in ("}", "]") and "\n" not in value:
        try:
            raw = msgspec.json.decode(value, type=msgspec.Raw)
        except msgspec.DecodeError:
            return value
        return raw
    return value


def _plain(value: bytes) -> Any:
    return value.decode() if value[:1] in (b"{", b"[") else msgspec.json.decode(value)
