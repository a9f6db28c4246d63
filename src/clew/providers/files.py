"""Files as providers write them: whole or not at all, for their owner alone, and read again only where they have changed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["bring", "copy", "is_draft", "lines_from_end", "make_folder", "put", "put_if_changed", "remembered", "sweep"]

_DRAFT = re.compile(r"\..+\.clew-[0-9a-f]{16}")
_ABANDONED = 3600.0
"""Seconds after which nobody is still at work on a draft."""
_TICK = 20_000_000
"""Nanoseconds within which two changes of a file may have the same time."""
_BLOCK = 65_536
_known: dict[tuple[str, int, int], str] = {}


def make_folder(folder: Path) -> None:
    """With those above it, each for its owner alone if it was not there."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def put(path: Path, data: bytes) -> None:
    with _draft(path) as draft:
        draft.write_bytes(data)


def put_if_changed(path: Path, data: bytes) -> None:
    """Nothing is written if the file says the same already."""
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    except FileNotFoundError:
        pass
    put(path, data)


def copy(source: Path, target: Path) -> None:
    with _draft(target) as draft:
        shutil.copyfile(source, draft)


def bring(source: Path, target: Path, fill: Callable[[Path, Path], object] = shutil.copyfile) -> bool:
    """Make a copy as its original is now; False if it is that already. `fill(source, draft)` writes it.

    A copy has the time of its original, and is known by it. It does not get that of an original that changed just now,
    which might change once more within the same time: such a one is copied again when it is next asked for.
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


def lines_from_end(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last one first, reading no more than is asked for."""
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
    """Remove what a process left in this folder that was killed while it wrote there."""
    for path in folder.rglob(".*.clew-*"):
        try:
            if is_draft(path.name) and time.time() - path.lstat().st_mtime > _ABANDONED:
                path.unlink()
        except FileNotFoundError:
            continue  # its writer is done with it, or another sweeps


def is_draft(name: str) -> bool:
    """Whether a file of this name is one that somebody is writing."""
    return _DRAFT.fullmatch(name) is not None


def remembered(path: Path, ask: Callable[[], str]) -> str:
    """What was learned about a file, asked once in this process for as long as the file is the same."""
    status = path.stat()
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _known:
        _known[key] = ask()
    return _known[key]


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A new file that takes the place of this one at the end, or is gone. No two writers have the same."""
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.clew-{secrets.token_hex(8)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
