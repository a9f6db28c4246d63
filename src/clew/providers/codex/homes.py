"""Where Codex keeps its conversations: a rollout each, named by time and key, in a folder for each day."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clew.providers.base import Place

__all__ = ["born_at", "codex_home", "is_key", "key_of", "locate", "new_key", "newest_first", "path_for", "rollouts"]

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
        for path in _files(home / _LIVE / f"{day:%Y/%m/%d}"):
            if key_of(path) == key:
                return path
    return next((path for path in rollouts(home) if key_of(path) == key), None)


def rollouts(home: Path) -> Iterator[Path]:
    """All rollouts, those that are archived last."""
    for folder in (_LIVE, _ARCHIVED):
        for path in _files(home / folder):
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


def _files(folder: Path) -> Iterator[Path]:
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
