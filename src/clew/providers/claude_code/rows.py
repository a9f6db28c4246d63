"""Reads and repairs session files of Claude Code. Such a file has rows: one JSON object a line, appended as things
happen. A torn row is a last line that is cut off because the program was killed while writing it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

__all__ = [
    "SYNTHETIC",
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

SYNTHETIC = "<synthetic>"
"""The model name in responses that Claude Code made up itself instead of asking a model, for example to show an error.
"""


_SAID = ("user", "assistant")
_BLOCK = 64 * 1024


class Rows(NamedTuple):
    """The rows of a session file, which are its lines that hold a JSON object, and the numbers of its damaged lines."""

    rows: list[Row]
    damaged: list[int]
    """The line numbers, from 1, of complete lines that are not a JSON object. A last line that is cut off is not
    listed."""


def decode(line: bytes) -> Any:
    """Decode a line of JSON. Raises `ValueError` if it is not valid.

    Where Claude Code shortens a text it may leave half of a character (half a UTF-16 surrogate pair). Such a half is
    replaced by a question mark, because it cannot be encoded as UTF-8.
    """
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
    """Read all rows of a session file, one JSON object a line. A line that is not a JSON object is skipped and its
    number noted: a program that is killed while writing leaves half a line, to which the next row is then appended."""
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
    """Return whether a row (one line of a session file) holds a message, from the user or the model, of the main
    conversation and not of a sub-agent."""
    return row.get("type") in _SAID and isinstance(row.get("uuid"), str) and row.get("isSidechain") is not True


def has_conversation(path: Path) -> bool:
    """Return whether a session file holds at least one message. Claude Code leaves a file without any if it is killed
    right after its start, and can then neither resume that session nor start a new one under the same id."""
    with path.open("rb") as file:
        return any(is_said(row) for row in map(_row, file) if row is not None)


def name_in(path: Path) -> str:
    """Return the session id in the last row (line) of a session file that holds a message; empty if there is none. The
    file's name may say another id. Claude Code goes by the id in the rows: if it resumed this file, it would append to
    the session of that id."""
    for line in reversed(path.read_bytes().split(b"\n")):
        row = _row(line)
        if row is not None and is_said(row):
            return row["sessionId"] if isinstance(row.get("sessionId"), str) else ""
    return ""


def renamed(data: bytes, old: str, new: str) -> bytes:
    """Return `data`, the content of a session file, with the session id `old` replaced by `new` in the field
    `sessionId` of its rows (lines of JSON). What was said in the conversation stays as it is, even if it quotes such a
    field."""
    named = rb'("sessionId"\s*:\s*")' + re.escape(old.encode()) + rb'"'
    return re.sub(named, rb"\g<1>" + new.encode() + b'"', data)


def _last_line(path: Path) -> tuple[int, bytes]:
    """Return the last line of a file if it has no newline: the offset in bytes at which it begins, and its bytes. If
    the file ends in a newline, return the file's size and no bytes."""
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
    """Return the size of a session file in bytes, without a last row that is cut off because the program was killed
    while writing."""
    start, line = _last_line(path)
    return start if _row(line) is None else start + len(line)


def end_line(path: Path) -> None:
    """Append a newline to a session file if it does not end in one. Then a last line that is cut off stays apart from
    the next one, and Claude Code skips it. Nothing is removed, because another process may be writing that very
    line."""
    _, line = _last_line(path)
    if line:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b"\n")
        finally:
            os.close(file)


def cut_end(path: Path) -> None:
    """Remove the last line of a session file if it is cut off because the program was killed while writing. A complete
    last line that only lacks its newline gets one. Use it only on Clew's own copy of a session file."""
    start, line = _last_line(path)
    if line and _row(line) is None:
        os.truncate(path, start)
    else:
        end_line(path)


def rows_in(data: bytes) -> Iterator[Row]:
    """Yield the rows (JSON objects, one a line) in `data`, which is a part of a session file. Lines that are cut off at
    the beginning or end of the part are skipped."""
    for line in data.split(b"\n"):
        row = _row(line) if line else None
        if row is not None:
            yield row
