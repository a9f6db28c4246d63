"""Rollouts: the files in which Codex keeps its conversations.

A rollout has one JSON object a line, called a record, with its time, type and payload. The first record describes the
session. This module reads and writes rollouts, finds them by their key in Codex's home folder, and tells what people
said from what the program added.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from clew.errors import Corrupt, InvalidInput
from clew.providers import files
from clew.providers.base import Place
from clew.providers.fields import format_time, from_seconds, values
from clew.providers.files import put

__all__ = [
    "MARKS",
    "SEEN_VERSION",
    "SUMMARY",
    "USER_MARKS",
    "Record",
    "append",
    "born_at",
    "checked",
    "codex_home",
    "contents",
    "head_of",
    "is_key",
    "is_prompt",
    "key_of",
    "length",
    "limit_end",
    "line",
    "lines_from_end",
    "locate",
    "meta_line",
    "meta_of",
    "new_key",
    "newest_first",
    "path_for",
    "portable",
    "record_of",
    "records",
    "rollouts",
    "rows",
    "said_parts",
    "text_of",
    "title_of",
    "unpacked",
    "whole",
]


Record = dict[str, Any]

SEEN_VERSION = "0.166.0"
"""The newest version of Codex whose rollouts (conversation files) this package was tested with."""


_PROVIDER = re.compile(
    rb'"model_provider(?:_id)?":"(?:[^"\\]|\\.)*",|,"model_provider(?:_id)?":"(?:[^"\\]|\\.)*"',
)
_TORN = "truncated"
"""A word in msgspec's error message for JSON that ends too early."""


_ALWAYS = 16 * 2**20
_RATIO = 40
"""A compressed rollout is refused if it unpacks to more than `_ALWAYS` bytes and also to more than `_RATIO` times its
own size. What Codex compresses is text, which shrinks to a tenth or a twentieth; a few hostile kilobytes would unpack
to gigabytes."""
_PIECE = 2**20
"""Bytes to decompress at once."""
_FIRST_LINE = 16 * 2**20
"""The most bytes that the first line of a rollout may have. That line holds Codex's own instructions, which have about
20 KB."""


def contents(path: Path, start: int = 0) -> bytes:
    """Return the bytes of a rollout (Codex's file of one conversation) from the offset `start` on. A file that Codex
    has compressed is decompressed; then the offset counts in the decompressed bytes. Raises `Corrupt` if that fails, or
    if the file would unpack to more than 16 MiB and more than 40 times its size."""
    with path.open("rb") as file:
        if path.suffix == ".zst":
            return b"".join(_unpack(file, path))[start:]
        file.seek(start)
        return file.read()


def length(path: Path) -> int:
    """Return the size in bytes of a rollout (Codex's file of one conversation), counted after decompression if Codex
    has compressed the file. Only a piece of it is in memory at a time. Raises `Corrupt` if the file cannot be
    decompressed, or would unpack to more than 16 MiB and more than 40 times its size."""
    if path.suffix != ".zst":
        return path.stat().st_size
    with path.open("rb") as file:
        return sum(map(len, _unpack(file, path)))


def _unpack(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes of an open file piece by piece. Raises `Corrupt`, naming `path`, if the file is
    damaged, or if it would unpack to more than 16 MiB and more than 40 times its size: a hostile file could fill the
    memory."""
    left = max(_ALWAYS, _RATIO * os.fstat(file.fileno()).st_size)
    packed = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    try:
        while piece := packed.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise Corrupt(
                    f"{path} unpacks to more than {_RATIO} times its size, which no conversation of Codex does. If you "
                    f"trust it, unpack it yourself and delete the packed file: zstd -d --rm {shlex.quote(str(path))}"
                )
            yield piece
    except zstandard.ZstdError as error:
        raise Corrupt(f"{path} cannot be unpacked ({error}). Restore it from a copy.") from error


def unpacked(path: Path) -> Path:
    """Make sure that a rollout (Codex's file of one conversation) is a plain file that can be appended to, and return
    the path of the plain file. A compressed file is replaced by a decompressed one, as Codex does too before it
    continues a conversation."""
    if path.suffix != ".zst":
        return path
    plain = path.with_suffix("")
    put(plain, contents(path))
    path.unlink()
    return plain


def whole(data: bytes) -> bytes:
    """Return `data`, the content of a conversation file, without a last line that has no newline. Such a line is left
    if the program is killed while writing."""
    return data[: data.rfind(b"\n") + 1]


def portable(data: bytes) -> bytes:
    """Return the bytes of a rollout (Codex's file of one conversation) as they are exported. A last line that is cut
    off is left out, and so is the name of the model provider: Codex looks that name up in its configuration, which may
    differ on another machine. Without it Codex uses the provider that is configured there."""
    data = whole(data)
    if b'"model_provider' not in data:
        return data
    kept = bytearray()
    for row in rows(data):
        kept += _PROVIDER.sub(b"", row) if b'"model_provider' in row and _is_setting(row) else row
    return bytes(kept)


def rows(data: bytes) -> Iterator[bytes]:
    """Yield the lines in `data`, the content of a rollout (Codex's file of one conversation), each with its newline. Only
    one line at a time is copied: a list of millions of short lines would take many times the memory of the file."""
    return io.BytesIO(data)


def _is_setting(row: bytes) -> bool:
    record = record_of(row)
    if record is None:
        return False
    return (
        record.get("type") == "session_meta" or values(record.get("payload")).get("type") == "thread_settings_applied"
    )


def record_of(row: bytes) -> Record | None:
    """Decode one line of JSON; None if it is not a JSON object."""
    try:
        record = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def records(data: bytes, path: Path) -> Iterator[Record]:
    """Yield the records in `data`, which is the content of a rollout file: one JSON object a line. A line that ends too
    early is skipped, as Codex itself does, because a killed program leaves such lines. Any other damage raises
    `Corrupt`, which names `path`, the path of that file."""
    for number, row in enumerate(map(bytes.strip, rows(data)), 1):
        if not row:
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
    """Yield the lines of a rollout (Codex's file of one conversation) from the last to the first, without newlines.
    Only as much is read as the caller takes, unless the file is compressed."""
    return files.lines_from_end(path) if path.suffix != ".zst" else _lines_from_end(contents(path))


def _lines_from_end(data: bytes) -> Iterator[bytes]:
    end = len(data)
    while end >= 0:
        start = data.rfind(b"\n", 0, end) + 1
        yield data[start:end]
        end = start - 1


def head_of(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a rollout (Codex's file of one conversation), decompressed if necessary; fewer
    if it is shorter."""
    with path.open("rb") as file:
        if path.suffix != ".zst":
            return file.read(most)
        head = bytearray()
        for piece in _unpack(file, path):
            head += piece
            if len(head) >= most:
                break
        return bytes(head[:most])


def meta_of(path: Path) -> Record:
    """Return the description of the session in the first line of a rollout, Codex's file of one conversation. Raises
    `Corrupt` if the file is not a rollout."""
    head = head_of(path, 65_536)
    if b"\n" not in head:
        head = head_of(path, _FIRST_LINE)
    record = record_of(head.partition(b"\n")[0]) or {}
    meta = values(record.get("payload"))
    if record.get("type") != "session_meta" or not isinstance(meta.get("id"), str):
        raise Corrupt(f"{path} is not a session of Codex: its first line does not describe one.")
    return meta


def line(kind: str, payload: Record, moment: datetime, ordinal: int | None = None) -> bytes:
    """Encode one record of a rollout (Codex's file of one conversation) as a line of JSON. `kind` is the record's type,
    `payload` its content, and `moment` its time. `ordinal` is the record's number, which only newer rollouts have."""
    numbered = {} if ordinal is None else {"ordinal": ordinal}
    return msgspec.json.encode({"timestamp": format_time(moment), **numbered, "type": kind, "payload": payload}) + b"\n"


def meta_line(key: str, cwd: str, moment: datetime, version: str) -> bytes:
    """Return the first line of a new rollout (Codex's file of one conversation), which describes the session: its key,
    working folder and time, and the version of Codex. No model provider is named, so Codex uses the one in its
    configuration."""
    meta = {
        "id": key,
        "timestamp": format_time(moment),
        "cwd": cwd,
        "originator": "codex_exec",
        "cli_version": version,
        "source": "exec",
    }
    return line("session_meta", meta, moment)


def append(path: Path, kind: str, payload: Record) -> None:
    """Append a record to a rollout, Codex's file of one conversation. `kind` is the record's type and `payload` its
    content. If the last line is cut off, it is ended first, so that the record gets a line of its own."""
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


_KEY = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(rf"rollout-.+-({_KEY.pattern})\.jsonl(?:\.zst)?")
_LIVE, _ARCHIVED = "sessions", "archived_sessions"


def codex_home(place: Place) -> Path:
    named = place.env.get("CODEX_HOME")
    return Path(named) if named else place.home / ".codex"


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def checked(key: str) -> str:
    """Return the key if it is a session id as Codex makes them, a UUID in lower case; otherwise raise `InvalidInput`."""
    if not is_key(key):
        raise InvalidInput(f"{key!r} is not a session id of Codex. Its session ids are UUIDs in lower case.")
    return key


def new_key() -> str:
    """Make a key for a new conversation, as Codex does: a UUID of version 7, whose first 48 bits are the time in
    milliseconds."""
    moment = time.time_ns() // 1_000_000
    digits = f"{moment:012x}7{secrets.randbits(12):03x}{0x8000 | secrets.randbits(14):04x}{secrets.randbits(48):012x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def born_at(key: str) -> datetime | None:
    """Return the time at which a key was made, in UTC. Only a key that is a UUID of version 7 holds this time; for any
    other key, return None."""
    if not is_key(key) or key[14] != "7":
        return None
    return datetime.fromtimestamp(int(key[:8] + key[9:13], 16) / 1000, UTC)


def key_of(path: Path) -> str | None:
    """Return the key of a conversation, which the name of its rollout (Codex's file of one conversation) holds. Returns
    None if the file is not named like a rollout."""
    found = _NAME.fullmatch(path.name)
    return found.group(1) if found else None


def path_for(home: Path, key: str, moment: datetime) -> Path:
    """Return the path for a new rollout (Codex's file of one conversation) in Codex's home folder `home`: in the folder
    of the day of `moment`, with time and key in its name."""
    return home / _LIVE / f"{moment:%Y/%m/%d}" / f"rollout-{moment:%Y-%m-%dT%H-%M-%S}-{key}.jsonl"


def locate(home: Path, key: str) -> Path | None:
    """Return the path of the rollout (Codex's file of one conversation) with this key in Codex's home folder `home`;
    None if there is none. The folders near the day on which the key was made are searched first, then all."""
    born = born_at(key)
    days = [born + timedelta(days=off) for off in (0, -1, 1)] if born else []
    for day in days:
        for path in _files_below(home / _LIVE / f"{day:%Y/%m/%d}"):
            if key_of(path) == key:
                return path
    return next((path for path in rollouts(home) if key_of(path) == key), None)


def rollouts(home: Path) -> Iterator[Path]:
    """Yield the paths of all rollouts (Codex's files of conversations) in Codex's home folder `home`, archived ones
    last."""
    for folder in (_LIVE, _ARCHIVED):
        for path in _files_below(home / folder):
            if key_of(path) is not None:
                yield path


def newest_first(home: Path) -> list[tuple[float, int, Path]]:
    """List all rollouts (Codex's files of conversations) in Codex's home folder `home`, newest first. Each is given as
    the time of its last change in seconds since 1970, its size in bytes, and its path."""
    found = []
    for path in rollouts(home):
        try:
            seen = path.stat()
        except FileNotFoundError:
            continue
        found.append((seen.st_mtime, seen.st_size, path))
    return sorted(found, reverse=True)


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders; none if the folder does not exist. Links are left out: one may
    point at any file of the user's."""
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                found = list(entries)
        except FileNotFoundError:
            continue
        folders += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        yield from (Path(entry.path) for entry in found if entry.is_file(follow_symlinks=False))


MARKS = "internal_chat_message_metadata_passthrough"
SUMMARY = "compaction.summary"
"""The text that Codex writes into `content_item_kinds` of a message to mark it as the summary of what a compaction
removed."""
USER_MARKS: dict[str, list[Any]] = {
    "content_item_kinds": ["user.text"],
    "content_item_metadata": [{"provenance": {"type": "user"}}],
}
"""Fields that Codex adds to a message to say that its text was written by the user. Each list must be repeated as many
times as the message has parts."""
_HARNESS = (
    "<environment_context>",
    "<permissions instructions>",
    "<skills_instructions>",
    "<subagent_notification>",
    "<turn_aborted>",
    "<user_instructions>",
    "# AGENTS.md instructions",
)
"""How texts begin that the program itself added to a conversation. Used for files of older versions only; newer ones
mark such texts."""
_TITLE = 100

Part = dict[str, Any]


def said_parts(message: Part) -> list[Part]:
    """Return the parts of a message's content, such as texts and pictures, without those that the program itself added.
    All parts of a model's response are returned. Of a developer message, only the parts are returned that Codex marked
    as written by the user, in fields beside the content."""
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
    """Return whether an item of a conversation, which is a message or a tool call, is a prompt of the user. The summary
    that a compaction wrote has the user's role but is not a prompt."""
    if item.get("type") != "message" or item.get("role") != "user" or not said_parts(item):
        return False
    return SUMMARY not in _listed(values(item.get(MARKS)).get("content_item_kinds"))


def text_of(message: Part) -> str:
    return "\n".join(str(part.get("text", "")) for part in said_parts(message) if part.get("text"))


def title_of(text: str) -> str:
    """Shorten a prompt to a title of at most 100 characters on one line: the beginning of the prompt."""
    words = " ".join(text[: _TITLE * 4].split())
    return words if len(words) <= _TITLE else words[: _TITLE - 2].rstrip() + " …"


def limit_end(limits: Any) -> datetime | None:
    """Return when Codex can be used again, which is when all used-up usage limits have ended; None if no limit is used
    up. `limits` is the report of the limits that Codex writes into the file of a conversation."""
    windows = [values(values(limits).get(name)) for name in ("primary", "secondary")]
    full = [window for window in windows if _number(window.get("used_percent")) >= 100]
    return max(filter(None, (from_seconds(window.get("resets_at")) for window in full)), default=None)


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) else 0
