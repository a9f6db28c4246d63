"""Files as Clew writes them into a home: whole or not at all, for their owner alone, and over nobody else's."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

from clew.providers.claude_code.rows import repair_end

__all__ = ["bring", "copy", "make_folder", "set_aside", "write"]

_NEW = ".clew-new"


def make_folder(folder: Path) -> None:
    """This folder, for its owner alone; one that is there stays as it is."""
    missing = [folder, *folder.parents]
    for path in reversed([path for path in missing if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)


def write(path: Path, data: bytes) -> None:
    make_folder(path.parent)
    new = _created(path)
    new.write_bytes(data)
    os.replace(new, path)


def copy(source: Path, target: Path) -> None:
    make_folder(target.parent)
    new = _created(target)
    shutil.copyfile(source, new)
    os.replace(new, target)


def bring(source: Path, target: Path) -> None:
    """Copy a file if it has changed since it was copied last. A file of rows comes without a torn end."""
    status = source.stat()
    if _is_same(status, target):
        return
    make_folder(target.parent)
    new = _created(target)
    shutil.copyfile(source, new)
    if source.suffix == ".jsonl":
        repair_end(new)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(new, target)


def _is_same(status: os.stat_result, target: Path) -> bool:
    try:
        there = target.stat()
    except FileNotFoundError:
        return False
    return (there.st_size, there.st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def _created(path: Path) -> Path:
    new = path.with_name(f"{path.name}{_NEW}")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return new


def set_aside(path: Path) -> None:
    """Give a file or folder, if it is there, a name beside its own that the program does not look at."""
    if path.exists():
        names = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
