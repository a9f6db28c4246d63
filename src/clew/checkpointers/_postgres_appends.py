"""Appends of different threads as the values of one statement, and what its answer says of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from clew.checkpointers._postgres_values import (
    BYTES,
    BYTES_LIST,
    NUMBER,
    NUMBER_LIST,
    Statement,
    bytes_list,
    number,
    number_list,
    numbers_of,
)
from clew.checkpointers._sql_heads import MOST
from clew.errors import ClewError, Conflict, MissingBlob

__all__ = ["Append", "AppendStatements", "outcomes"]

_TYPES_OF_ONE = (
    *(BYTES, BYTES, BYTES, NUMBER, BYTES, BYTES, BYTES, BYTES),
    *(NUMBER, NUMBER, BYTES, BYTES, BYTES, BYTES),
)
_TYPES = (
    *(BYTES_LIST, BYTES_LIST, BYTES_LIST, NUMBER_LIST, NUMBER_LIST),
    *(BYTES_LIST, BYTES_LIST, BYTES_LIST, BYTES_LIST, NUMBER_LIST, NUMBER_LIST, BYTES_LIST, BYTES_LIST, BYTES_LIST),
    *(BYTES_LIST, NUMBER_LIST, BYTES_LIST),
)


class Append(msgspec.Struct, frozen=True, gc=False):
    """One append as the waist defines it, ready for SQL."""

    thread_id: str
    place: tuple[bytes, bytes]
    """The namespace and the key of the thread."""
    log_id: bytes
    at: int
    frames: Sequence[bytes]
    refs: Sequence[bytes]
    row: tuple[Any, ...]
    """The head's columns from the thread id on, in the order of the function's parameters."""
    size: int
    """Bytes of the frames and the head."""


class AppendStatements:
    """How a store in this schema is asked to append."""

    def __init__(self, schema: str) -> None:
        self._one = _call(schema, "clew_append_one", _TYPES_OF_ONE)
        self._many = _call(schema, "clew_append", _TYPES)

    def make(self, appends: Sequence[Append]) -> tuple[Statement, Sequence[bytes | None]]:
        """The statement and its values. The appends are of different threads, in the order of their places."""
        append = appends[0]
        if len(appends) == 1 and len(append.frames) == 1 and not append.refs:
            row = append.row
            ids = (row[0], row[1], row[2], row[3], number(row[4]), number(row[5]), row[6], row[7], row[8])
            return self._one, (*append.place, append.log_id, number(min(append.at, MOST)), *ids, append.frames[0])
        return self._many, _values(appends)


def _call(schema: str, function: str, types: tuple[int, ...]) -> Statement:
    places = ", ".join(f"${place}" for place in range(1, len(types) + 1))
    return Statement(f'SELECT "{schema}".{function}({places})'.encode(), types)


def _values(appends: Sequence[Append]) -> list[bytes]:
    ids, statuses, agents, parents, created, updated, titles, tags, heads = zip(*[a.row for a in appends], strict=True)
    refs = _refs(appends)
    return [
        bytes_list([append.place[0] for append in appends]),
        bytes_list([append.place[1] for append in appends]),
        bytes_list([append.log_id for append in appends]),
        number_list([min(append.at, MOST) for append in appends]),
        number_list([len(append.frames) for append in appends]),
        bytes_list(ids),
        bytes_list(statuses),
        bytes_list(agents),
        bytes_list(parents),
        number_list(created),
        number_list(updated),
        bytes_list(titles),
        bytes_list(tags),
        bytes_list(heads),
        bytes_list([frame for append in appends for frame in append.frames]),
        number_list([owner for owner, _ in refs]),
        bytes_list([digest for _, digest in refs]),
    ]


def outcomes(appends: Sequence[Append], answer: bytes | None) -> list[ClewError | None]:
    """For each append, None or the reason why nothing of it was written."""
    if answer is None:
        return [None] * len(appends)
    numbers = numbers_of(answer)
    refs = _refs(appends)
    missing = [refs[place - 1] for place in numbers[len(appends) :]]
    return [
        _outcome(append, code, [digest for owner, digest in missing if owner == place])
        for place, (append, code) in enumerate(zip(appends, numbers, strict=False), start=1)
    ]


def _outcome(append: Append, code: int, missing: Sequence[bytes]) -> ClewError | None:
    match code:
        case -1:
            return None
        case -2:
            return Conflict(append.thread_id, f"there is no such log to go on from frame {append.at}")
        case -3:
            return Conflict(append.thread_id, "the thread was deleted and made again; this is another log")
        case -4:
            return MissingBlob({digest.hex() for digest in missing}, thread_id=append.thread_id)
        case ends:
            return Conflict(append.thread_id, f"its log ends at frame {ends}, not {append.at}")


def _refs(appends: Sequence[Append]) -> list[tuple[int, bytes]]:
    """Each ref with the number of its append, in the order in which blobs are locked."""
    refs = [(append.place[0], digest, owner) for owner, append in enumerate(appends, start=1) for digest in append.refs]
    return [(owner, digest) for _, digest, owner in sorted(refs)]
