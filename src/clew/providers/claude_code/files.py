"""A session's files on their way, and out of the way."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from clew.providers import _files
from clew.providers.claude_code.rows import cut_end

__all__ = ["bring", "set_aside"]


def bring(source: Path, target: Path) -> None:
    """Copy a file if it has changed since it was copied last. A file of rows comes without a torn end."""
    _files.bring(source, target, _fill_with_rows if source.suffix == ".jsonl" else shutil.copyfile)


def _fill_with_rows(source: Path, draft: Path) -> None:
    shutil.copyfile(source, draft)
    cut_end(draft)


def set_aside(path: Path) -> None:
    """Give a file or folder, if it is there, a name beside its own that the program does not look at."""
    if path.exists():
        names = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
