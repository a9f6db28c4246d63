"""Files for providers: written whole or not at all, readable only by their owner, and copied again only when they have
changed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "bring",
    "copy",
    "is_draft",
    "lines_from_end",
    "make_folder",
    "put",
    "put_if_changed",
    "remembered",
    "scratch",
    "sweep",
]

_DRAFT = re.compile(r"\..+\.clew-[0-9a-f]{16}")
_ABANDONED = 3600.0
"""Seconds after which a draft counts as abandoned."""
_TICK = 20_000_000
"""Nanoseconds within which two changes of a file may get the same time."""
_BLOCK = 65_536
_known: dict[tuple[str, int, int], str] = {}


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, each accessible only by its owner."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def put(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with _draft(path) as draft:
        draft.write_bytes(data)


def put_if_changed(path: Path, data: bytes) -> None:
    """Write a file atomically, unless it has this content already."""
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    except FileNotFoundError:
        pass
    put(path, data)


def copy(source: Path, target: Path) -> None:
    """Copy a file atomically."""
    with _draft(target) as draft:
        shutil.copyfile(source, draft)


def bring(source: Path, target: Path, fill: Callable[[Path, Path], object] = shutil.copyfile) -> bool:
    """Update a copy of a file; return False if it is up to date. `fill(source, draft)` writes the copy.

    A copy gets the modification time of its original, which shows later whether it is up to date. If the original
    changed just now, it could change again within the same time stamp. Then the copy does not get that time, so that it
    is made again next time.
    """
    seen = source.stat().st_mtime_ns
    if target.exists() and target.stat().st_mtime_ns == seen:
        return False
    settled = abs(time.time_ns() - seen) > _TICK
    with _draft(target) as draft:
        fill(source, draft)
        if settled:
            os.utime(draft, ns=(seen, seen))
    return True


@contextmanager
def scratch() -> Iterator[Path]:
    """Make an empty temporary folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="clew-") as top:
        folder = Path(top, "session")
        folder.mkdir()
        yield folder


def lines_from_end(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file from the last to the first, reading only as far as needed."""
    with path.open("rb") as file:
        end, rest = file.seek(0, os.SEEK_END), b""
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            rest, *lines = (file.read(end - start) + rest).split(b"\n")
            yield from reversed(lines)
            end = start
        yield rest


def sweep(folder: Path) -> None:
    """Remove drafts in this folder whose writer was killed."""
    for path in folder.rglob(".*.clew-*"):
        try:
            if is_draft(path.name) and time.time() - path.lstat().st_mtime > _ABANDONED:
                path.unlink()
        except FileNotFoundError:
            continue  # its writer has finished, or another process removed it


def is_draft(name: str) -> bool:
    """Return whether this is the name of a draft: a file that is still being written."""
    return _DRAFT.fullmatch(name) is not None


def remembered(path: Path, ask: Callable[[], str]) -> str:
    """Return what `ask()` returns for a file. The answer is remembered in this process until the file changes."""
    status = path.stat()
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _known:
        _known[key] = ask()
    return _known[key]


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Make a new file that replaces this one on success and is deleted on failure. Each writer has its own."""
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.clew-{secrets.token_hex(8)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
