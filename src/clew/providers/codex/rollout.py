"""A rollout: lines of JSON, each with its time, its type and its payload, the first of them about the session itself."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from clew.errors import Corrupt
from clew.providers import files
from clew.providers.base import Place, values
from clew.providers.files import put

__all__ = [
    "MARKS",
    "SUMMARY",
    "USER_MARKS",
    "Record",
    "append",
    "born_at",
    "codex_home",
    "contents",
    "head_of",
    "is_key",
    "is_prompt",
    "key_of",
    "line",
    "lines_from_end",
    "locate",
    "meta_of",
    "moment_of",
    "new_key",
    "newest_first",
    "path_for",
    "record_of",
    "records",
    "rollouts",
    "said_parts",
    "stamp",
    "text_of",
    "title_of",
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
    return files.lines_from_end(path) if path.suffix != ".zst" else reversed(contents(path).split(b"\n"))


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


_KEY = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(rf"rollout-.+-({_KEY.pattern})\.jsonl(?:\.zst)?")
_LIVE, _ARCHIVED = "sessions", "archived_sessions"


def codex_home(place: Place) -> Path:
    named = place.env.get("CODEX_HOME")
    return Path(named) if named else place.home / ".codex"


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def new_key() -> str:
    """A UUID of version 7, as Codex makes them: its first 48 bits are the time in milliseconds."""
    moment = time.time_ns() // 1_000_000
    digits = f"{moment:012x}7{secrets.randbits(12):03x}{0x8000 | secrets.randbits(14):04x}{secrets.randbits(48):012x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def born_at(key: str) -> datetime | None:
    """When a key was made; None where it does not say so."""
    if not is_key(key) or key[14] != "7":
        return None
    return datetime.fromtimestamp(int(key[:8] + key[9:13], 16) / 1000, UTC)


def key_of(path: Path) -> str | None:
    """The key in a rollout's name; None if this is the name of something else."""
    found = _NAME.fullmatch(path.name)
    return found.group(1) if found else None


def path_for(home: Path, key: str, moment: datetime) -> Path:
    """Where a rollout that is not there yet belongs."""
    return home / _LIVE / f"{moment:%Y/%m/%d}" / f"rollout-{moment:%Y-%m-%dT%H-%M-%S}-{key}.jsonl"


def locate(home: Path, key: str) -> Path | None:
    """The rollout of this key. Looked for under the day that the key names, and then everywhere."""
    born = born_at(key)
    days = [born + timedelta(days=off) for off in (0, -1, 1)] if born else []
    for day in days:
        for path in _rollout_files(home / _LIVE / f"{day:%Y/%m/%d}"):
            if key_of(path) == key:
                return path
    return next((path for path in rollouts(home) if key_of(path) == key), None)


def rollouts(home: Path) -> Iterator[Path]:
    """All rollouts, those that are archived last."""
    for folder in (_LIVE, _ARCHIVED):
        for path in _rollout_files(home / folder):
            if key_of(path) is not None:
                yield path


def newest_first(home: Path) -> list[tuple[float, int, Path]]:
    """All rollouts with the time of their last change and their size in bytes."""
    found = []
    for path in rollouts(home):
        try:
            seen = path.stat()
        except FileNotFoundError:
            continue
        found.append((seen.st_mtime, seen.st_size, path))
    return sorted(found, reverse=True)


def _rollout_files(folder: Path) -> Iterator[Path]:
    """All files below a folder; none if it is not there."""
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                found = list(entries)
        except FileNotFoundError:
            continue
        folders += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        yield from (Path(entry.path) for entry in found if entry.is_file())


MARKS = "internal_chat_message_metadata_passthrough"
SUMMARY = "compaction.summary"
"""What Codex calls the message that stands for all that a compaction took away."""
USER_MARKS: dict[str, list[Any]] = {
    "content_item_kinds": ["user.text"],
    "content_item_metadata": [{"provenance": {"type": "user"}}],
}
"""The marks of a text of the user's own."""
_HARNESS = (
    "<environment_context>",
    "<permissions instructions>",
    "<skills_instructions>",
    "<subagent_notification>",
    "<turn_aborted>",
    "<user_instructions>",
    "# AGENTS.md instructions",
)
"""How the program's own texts begin, for rollouts of versions that did not mark them."""
_TITLE = 100

Part = dict[str, Any]


def said_parts(message: Part) -> list[Part]:
    """The parts of a message that are not the program's own. Of those to the model from its developer, these are all,
    unless they are marked as the user's."""
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    role = message.get("role")
    if role == "assistant":
        return parts
    marks = values(message.get(MARKS))
    kinds, metadata = _listed(marks.get("content_item_kinds")), _listed(marks.get("content_item_metadata"))
    return [
        part
        for at, part in enumerate(parts)
        if _is_said(part, role, kinds[at] if at < len(kinds) else None, metadata[at] if at < len(metadata) else None)
    ]


def _is_said(part: Part, role: Any, kind: Any, metadata: Any) -> bool:
    origin = values(values(metadata).get("provenance")).get("type")
    if role != "user":
        return bool(origin == "user")
    if kind == SUMMARY or origin == "user":
        return True
    if origin is not None:
        return False
    if isinstance(kind, str):
        return kind.startswith("user.") or kind == "unknown"
    return not str(part.get("text", "")).lstrip().startswith(_HARNESS)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_prompt(item: Part) -> bool:
    """Whether an item is something that the user said; a summary is not."""
    if item.get("type") != "message" or item.get("role") != "user" or not said_parts(item):
        return False
    return SUMMARY not in _listed(values(item.get(MARKS)).get("content_item_kinds"))


def text_of(message: Part) -> str:
    return "\n".join(str(part.get("text", "")) for part in said_parts(message) if part.get("text"))


def title_of(text: str) -> str:
    """The first words of a prompt, on one line."""
    words = " ".join(text[: _TITLE * 4].split())
    return words if len(words) <= _TITLE else words[: _TITLE - 2].rstrip() + " …"
