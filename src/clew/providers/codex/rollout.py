"""A rollout: lines of JSON, each with its time, its type and its payload, the first of them about the session itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from clew.errors import Corrupt
from clew.providers import _files
from clew.providers._files import put
from clew.providers.base import values

__all__ = [
    "Record",
    "append",
    "contents",
    "head_of",
    "line",
    "lines_from_end",
    "meta_of",
    "moment_of",
    "record_of",
    "records",
    "stamp",
    "travelling",
    "unpacked",
    "whole",
]

Record = dict[str, Any]

_PROVIDER = re.compile(
    rb'"model_provider(?:_id)?":"(?:[^"\\]|\\.)*",|,"model_provider(?:_id)?":"(?:[^"\\]|\\.)*"',
)
_TORN = "truncated"
"""The word of msgspec for a text that ends before its value does."""


def contents(path: Path, start: int = 0) -> bytes:
    """The rollout from this byte on, unpacked where Codex has packed it."""
    with path.open("rb") as file:
        if path.suffix != ".zst":
            file.seek(start)
            return file.read()
        unpacked = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        try:
            return bytes(unpacked.read()[start:])
        except zstandard.ZstdError as error:
            raise Corrupt(f"{path} cannot be unpacked ({error}). Restore it from a copy.") from error


def unpacked(path: Path) -> Path:
    """The same rollout as a file that can be added to: Codex does this too before it goes on with one that is packed."""
    if path.suffix != ".zst":
        return path
    plain = path.with_suffix("")
    put(plain, contents(path))
    path.unlink()
    return plain


def whole(data: bytes) -> bytes:
    """Without a last line that was not written to its end."""
    return data[: data.rfind(b"\n") + 1]


def travelling(data: bytes) -> bytes:
    """A rollout as it travels: whole lines, without the name of a model provider, which Codex looks up in its
    configuration and which need not be there on another machine. What has no such name goes on with the one configured."""
    data = whole(data)
    if b'"model_provider' not in data:
        return data
    lines = data.split(b"\n")
    return b"\n".join(
        _PROVIDER.sub(b"", row) if b'"model_provider' in row and _is_setting(row) else row for row in lines
    )


def _is_setting(row: bytes) -> bool:
    record = record_of(row)
    if record is None:
        return False
    return (
        record.get("type") == "session_meta" or values(record.get("payload")).get("type") == "thread_settings_applied"
    )


def record_of(row: bytes) -> Record | None:
    """The record of a line; None if it holds none."""
    try:
        record = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def records(data: bytes, path: Path) -> Iterator[Record]:
    """All records. A line that ends too early is one that Codex was killed in: it goes on behind it, and so do we."""
    for number, row in enumerate(data.split(b"\n"), 1):
        if not row.strip():
            continue
        try:
            record = msgspec.json.decode(row)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if _TORN in str(error):
                continue
            raise Corrupt(f"{path}, line {number} is damaged ({error}). Restore the file from a copy.") from error
        if isinstance(record, dict):
            yield record


def lines_from_end(path: Path) -> Iterator[bytes]:
    """The lines, the last one first, reading no more than is asked for."""
    return _files.lines_from_end(path) if path.suffix != ".zst" else reversed(contents(path).split(b"\n"))


def head_of(path: Path, most: int) -> bytes:
    """The first bytes of a rollout."""
    if path.suffix == ".zst":
        return contents(path)[:most]
    with path.open("rb") as file:
        return file.read(most)


def meta_of(path: Path) -> Record:
    """What the first line says of the session. `Corrupt` if this is no rollout."""
    head = head_of(path, 65_536)
    end = head.find(b"\n")
    if end < 0:
        head = contents(path)
        end = head.find(b"\n")
    record = record_of(head[: end if end >= 0 else None]) or {}
    meta = values(record.get("payload"))
    if record.get("type") != "session_meta" or not isinstance(meta.get("id"), str):
        raise Corrupt(f"{path} is no session of Codex: its first line does not tell of one.")
    return meta


def line(kind: str, payload: Record, moment: datetime, ordinal: int | None = None) -> bytes:
    """A record as a line. In newer rollouts each has its number."""
    numbered = {} if ordinal is None else {"ordinal": ordinal}
    return msgspec.json.encode({"timestamp": stamp(moment), **numbered, "type": kind, "payload": payload}) + b"\n"


def append(path: Path, kind: str, payload: Record) -> None:
    """Write one more record at the end, on a line of its own whatever the last one came to."""
    torn, ordinal = b"", None
    for at, row in enumerate(lines_from_end(path)):
        if at == 0 and row:
            torn = b"\n"
        record = record_of(row)
        if record is not None:
            number = record.get("ordinal")
            ordinal = number + 1 if isinstance(number, int) else None
            break
    with path.open("ab") as file:
        file.write(torn + line(kind, payload, datetime.now(UTC), ordinal))


def stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def moment_of(value: Any) -> datetime | None:
    """A time as records write it; None for whatever else was there."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
