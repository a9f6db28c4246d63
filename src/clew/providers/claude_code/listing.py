"""The sessions on this machine, told from the beginning and the end of each file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from clew.providers.base import NativeSession, Place
from clew.providers.claude_code.homes import is_key, projects_dir
from clew.providers.claude_code.reading import last_cwd, prompt_of, time_of, title_of
from clew.providers.claude_code.rows import Row, is_said, rows_in

__all__ = ["sessions"]

_PART = 8 * 1024
_LONG_PART = 128 * 1024
"""For sessions that begin with something long."""
_SUFFIX = ".jsonl"


def sessions(place: Place, provider: str) -> Iterator[NativeSession]:
    """Newest first. A file is opened when its turn comes, so that the first few cost no more than a look at all names."""
    found = sorted(_files(projects_dir(place)), key=lambda file: (-file[1].st_mtime_ns, file[0]))
    for path, status in found:
        try:
            session = _described(path, status, provider)
        except FileNotFoundError:
            continue
        if session is not None:
            yield session


def _files(projects: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for project in _entries(projects):
        for entry in _entries(Path(project.path)):
            if entry.name.endswith(_SUFFIX) and is_key(entry.name.removesuffix(_SUFFIX)) and entry.is_file():
                yield Path(entry.path), entry.stat()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _described(path: Path, status: os.stat_result, provider: str) -> NativeSession | None:
    """None for what a program left that died before it had begun."""
    rows, is_all = _ends(path, status.st_size, _PART)
    if not is_all and not any(prompt_of(row) for row in rows):
        rows, is_all = _ends(path, status.st_size, _LONG_PART)
    if is_all and not any(is_said(row) for row in rows):
        return None
    return NativeSession(
        provider=provider,
        key=path.stem,
        path=path,
        cwd=last_cwd(rows),
        title=title_of(rows),
        turns=sum(bool(prompt_of(row)) for row in rows) if is_all else None,
        created_at=next((time for row in rows if (time := time_of(row))), None),
        updated_at=datetime.fromtimestamp(status.st_mtime, UTC),
        size=status.st_size,
    )


def _ends(path: Path, size: int, part: int) -> tuple[list[Row], bool]:
    """The rows at both ends of a file, and whether these are all."""
    with path.open("rb") as file:
        if size <= 2 * part:
            return list(rows_in(file.read())), True
        head = file.read(part)
        file.seek(size - part)
        return [*rows_in(head), *rows_in(file.read())], False
