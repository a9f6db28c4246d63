"""The rows of a session's file: JSON, one a line, added at the end as things happen."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

__all__ = [
    "Row",
    "Rows",
    "cut_end",
    "decode",
    "end_line",
    "has_conversation",
    "is_said",
    "name_in",
    "read_rows",
    "renamed",
    "rows_in",
    "whole_size",
]

Row = dict[str, Any]

_SAID = ("user", "assistant")
_BLOCK = 64 * 1024


class Rows(NamedTuple):
    rows: list[Row]
    damaged: list[int]
    """The numbers of lines that are no row, from 1 on; a torn last one is not among them."""


def decode(line: bytes) -> Any:
    """The JSON value of a line; `ValueError` if it is none. Half of a surrogate pair, which JavaScript writes where it cuts
    a text in the middle of one, becomes a question mark: no store could keep it."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _encodable(json.loads(line.decode("utf-8", "replace")))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(inner) for inner in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inner) for key, inner in value.items()}
    return value


def read_rows(path: Path) -> Rows:
    """All rows of a file. What is no row is passed over: a program that died while it wrote leaves half a line, to which
    the next one adds."""
    rows: list[Row] = []
    damaged: list[int] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = _row(line)
            if row is not None:
                rows.append(row)
            elif line.strip() and line.endswith(b"\n"):
                damaged.append(number)
    return Rows(rows, damaged)


def _row(line: bytes) -> Row | None:
    try:
        value = decode(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_said(row: Row) -> bool:
    """Whether a row is a message of the conversation itself, and not of a sub-agent's."""
    return row.get("type") in _SAID and isinstance(row.get("uuid"), str) and row.get("isSidechain") is not True


def has_conversation(path: Path) -> bool:
    """Whether there is anything that the program could go on with. If it died at once, there is a file without any: it
    takes that neither for a session nor for a name that is free."""
    with path.open("rb") as file:
        return any(is_said(row) for row in map(_row, file) if row is not None)


def name_in(path: Path) -> str:
    """The session that the rows say they are of; empty if they do not. The program goes by the last message, whatever the
    file is called: it would write on where a session of that name is."""
    for line in reversed(path.read_bytes().split(b"\n")):
        row = _row(line)
        if row is not None and is_said(row):
            return row["sessionId"] if isinstance(row.get("sessionId"), str) else ""
    return ""


def renamed(data: bytes, old: str, new: str) -> bytes:
    """The same rows as those of another session. Texts of the conversation have their quotes escaped, and so keep what they
    say."""
    named = rb'("sessionId"\s*:\s*")' + re.escape(old.encode()) + rb'"'
    return re.sub(named, rb"\g<1>" + new.encode() + b'"', data)


def _last_line(path: Path) -> tuple[int, bytes]:
    """Where the line begins that has no end, and the line; the size and nothing if the last one has."""
    with path.open("rb") as file:
        end = at = file.seek(0, os.SEEK_END)
        tail = b""
        while at and b"\n" not in tail:
            at = max(0, at - _BLOCK)
            file.seek(at)
            tail = file.read(end - at)
    line = tail[tail.rfind(b"\n") + 1 :]
    return end - len(line), line


def whole_size(path: Path) -> int:
    """How much of a file there is without a torn end."""
    start, line = _last_line(path)
    return start if _row(line) is None else start + len(line)


def end_line(path: Path) -> None:
    """Give a last line that was not written to its end one, so that what is torn stays a line of its own, which the program
    passes over. Nothing is ever cut off: another process may be writing that very row, and then this comes behind it."""
    _, line = _last_line(path)
    if line:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b"\n")
        finally:
            os.close(file)


def cut_end(path: Path) -> None:
    """Of a copy that is nobody else's, cut off a torn last line. One that is whole, and lacks its end alone, gets it."""
    start, line = _last_line(path)
    if line and _row(line) is None:
        os.truncate(path, start)
    else:
        end_line(path)


def rows_in(data: bytes) -> Iterator[Row]:
    """The rows in a part of a file; what is cut off at its ends is no row."""
    for line in data.split(b"\n"):
        row = _row(line) if line else None
        if row is not None:
            yield row
