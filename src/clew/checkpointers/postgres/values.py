"""SQL statements with typed parameters, and values in PostgreSQL's binary format."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

__all__ = [
    "BYTES",
    "BYTES_LIST",
    "NUMBER",
    "NUMBER_LIST",
    "Statement",
    "bytes_list",
    "number",
    "number_list",
    "numbers_of",
]

BYTES, NUMBER, BYTES_LIST, NUMBER_LIST = 17, 20, 1001, 1016
"""PostgreSQL's numbers (OIDs) of the types bytea, bigint, bytea[] and bigint[]."""

_LENGTH = struct.Struct(">i")
_NUMBER = struct.Struct(">q")
_LIST = struct.Struct(">iiIii")
_EMPTY = struct.Struct(">iiI")


class Statement(msgspec.Struct, frozen=True):
    """SQL text, and the types of its parameters as PostgreSQL's type numbers. If `types` is None, the text takes no
    parameters and may hold several statements, which run in one transaction."""

    sql: bytes
    types: tuple[int, ...] | None = None


def number(value: int) -> bytes:
    return _NUMBER.pack(value)


def number_list(values: Sequence[int | None]) -> bytes:
    if not values:
        return _EMPTY.pack(0, 0, NUMBER)
    if None in values:
        parts = [_LENGTH.pack(-1) if value is None else _LENGTH.pack(8) + _NUMBER.pack(value) for value in values]
        return _LIST.pack(1, 1, NUMBER, len(values), 1) + b"".join(parts)
    flat = [part for value in values for part in (8, value)]
    return _LIST.pack(1, 0, NUMBER, len(values), 1) + struct.pack(">" + "iq" * len(values), *flat)


def bytes_list(values: Sequence[bytes | None]) -> bytes:
    if not values:
        return _EMPTY.pack(0, 0, BYTES)
    parts = [_LIST.pack(1, int(None in values), BYTES, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_LENGTH.pack(-1))
        else:
            parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def numbers_of(value: bytes) -> list[int]:
    """Decode a bigint[] in PostgreSQL's binary format into a list. The array must have at most one dimension and no
    NULLs."""
    if len(value) < _LIST.size:
        return []
    return [one for (_, one) in struct.iter_unpack(">iq", value[_LIST.size :])]
