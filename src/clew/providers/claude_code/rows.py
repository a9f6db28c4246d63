"""The rows of a session file: one JSON object a line, appended as things happen."""

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
"""The model name of responses that the program itself made up, for example to show an error."""


_SAID = ("user", "assistant")
_BLOCK = 64 * 1024


class Rows(NamedTuple):
    """The rows of a file, and the lines that could not be read."""

    rows: list[Row]
    damaged: list[int]
    """The numbers, from 1, of complete lines that hold no row. A torn last line is not listed."""


def decode(line: bytes) -> Any:
    """Decode a line of JSON. Raises `ValueError` if it is not valid.

    JavaScript leaves half a surrogate pair where it cuts a text in the middle of one. It becomes a question mark,
    because no store could hold it.
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
    """Read all rows of a file. A line that is not a row is skipped: a program that died while writing leaves half a
    line, and the next row is appended to it."""
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
    """Return whether a row is a message of the main conversation, not of a sub-agent."""
    return row.get("type") in _SAID and isinstance(row.get("uuid"), str) and row.get("isSidechain") is not True


def has_conversation(path: Path) -> bool:
    """Return whether the file holds at least one message. A program that died at once leaves a file without any; it
    neither resumes such a file nor accepts its name for a new session."""
    with path.open("rb") as file:
        return any(is_said(row) for row in map(_row, file) if row is not None)


def name_in(path: Path) -> str:
    """Return the session id in the last message row, or an empty string. The program goes by that id, not by the file
    name, and would append to the session it names."""
    for line in reversed(path.read_bytes().split(b"\n")):
        row = _row(line)
        if row is not None and is_said(row):
            return row["sessionId"] if isinstance(row.get("sessionId"), str) else ""
    return ""


def renamed(data: bytes, old: str, new: str) -> bytes:
    """Return the same rows with another session id. Text in the conversation is not touched: its quotes are escaped, so
    it cannot match."""
    named = rb'("sessionId"\s*:\s*")' + re.escape(old.encode()) + rb'"'
    return re.sub(named, rb"\g<1>" + new.encode() + b'"', data)


def _last_line(path: Path) -> tuple[int, bytes]:
    """Return the offset and the bytes of a last line without a newline. If the file ends in a newline, return its size
    and no bytes."""
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
    """Return the size of a file without a torn last row."""
    start, line = _last_line(path)
    return start if _row(line) is None else start + len(line)


def end_line(path: Path) -> None:
    """End a torn last line with a newline, so that the program skips it. Never truncates: another process may be
    writing that very row, and then the newline comes after it."""
    _, line = _last_line(path)
    if line:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b"\n")
        finally:
            os.close(file)


def cut_end(path: Path) -> None:
    """Cut off a torn last row of a private copy. A last row that only lacks its newline gets one."""
    start, line = _last_line(path)
    if line and _row(line) is None:
        os.truncate(path, start)
    else:
        end_line(path)


def rows_in(data: bytes) -> Iterator[Row]:
    """Yield the rows in a part of a file. Lines that are cut off at its ends are skipped."""
    for line in data.split(b"\n"):
        row = _row(line) if line else None
        if row is not None:
            yield row
