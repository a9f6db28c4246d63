"""Where Claude Code keeps what it knows: `~/.claude`, or what `CLAUDE_CONFIG_DIR` names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from clew.errors import InvalidInput
from clew.providers.base import Place
from clew.providers.claude_code.rows import has_conversation

__all__ = [
    "checked",
    "config_dir",
    "is_key",
    "locate",
    "project_dir",
    "projects_dir",
    "session_files",
    "side_folders",
    "slug",
    "tasks_dir",
]

_KEY = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LONGEST = 200
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def checked(key: str) -> str:
    """The key, which becomes part of a path: it must be what Claude Code takes as a session's id."""
    if not is_key(key):
        raise InvalidInput(f"{key!r} is no session of Claude Code: its sessions are named by a UUID")
    return key


def config_dir(place: Place) -> Path:
    named = place.env.get("CLAUDE_CONFIG_DIR")
    return place.cwd / named if named else place.home / ".claude"


def projects_dir(place: Place) -> Path:
    return config_dir(place) / "projects"


def tasks_dir(place: Place, key: str) -> Path:
    """The list of things to do that the model keeps with its tools, a file each."""
    return config_dir(place) / "tasks" / key


def project_dir(place: Place) -> Path:
    """Where sessions that are begun in the place's folder go."""
    return projects_dir(place) / slug(os.path.realpath(place.cwd))


def slug(folder: str) -> str:
    """The name of a folder's project: all but letters and digits become dashes, one for each UTF-16 unit. A long one is
    cut, and ends in a hash of the whole."""
    units = folder.encode("utf-16-le", "surrogatepass")
    codes = [units[at] | units[at + 1] << 8 for at in range(0, len(units), 2)]
    name = "".join(chr(code) if code < 128 and chr(code).isalnum() else "-" for code in codes)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{_hash(codes)}"


def _hash(codes: list[int]) -> str:
    total = 0
    for code in codes:
        total = (total * 31 + code) & 0xFFFFFFFF
    rest = abs(total - 0x1_0000_0000 if total >= 0x8000_0000 else total)
    digits = ""
    while rest:
        rest, digit = divmod(rest, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def session_files(place: Place, key: str) -> Iterator[Path]:
    """The files of this key, whatever they hold: one for each project that has it."""
    return (path for project in _projects(place) if (path := project / f"{key}.jsonl").is_file())


def side_folders(place: Place, key: str) -> Iterator[Path]:
    """What lies beside the rows of this key. A turn in another folder than the first puts its long outputs in that
    folder's project, while its rows and sub-agents go where the session is."""
    return (path for project in _projects(place) if (path := project / key).is_dir())


def _projects(place: Place) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(projects_dir(place)))
    except FileNotFoundError:
        return []


def locate(place: Place, key: str) -> Path | None:
    """The file of a conversation that can be gone on with; the one written last, if it is in several projects."""
    found = [path for path in session_files(place, checked(key)) if has_conversation(path)]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
