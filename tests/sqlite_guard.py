"""Stops a test that opens the file of a SQLite store in the process that has the store open, other than by the library of
the store. When such a file is closed, the operating system drops all locks of this process on it, the store's too."""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import unquote

__all__ = ["guard_stores"]

_SIDE_FILES = ("-wal", "-shm")


def guard_stores() -> None:
    """Raise `AssertionError` from now on where Python's own SQLite library, `open` or `os.open` is about to open the file
    of a store, or a file beside it, that this process has open."""
    sys.addaudithook(_check)


def _check(event: str, given: tuple[Any, ...]) -> None:
    # Called for every audit event of the test run: what costs time comes last.
    if event != "open" and event != "sqlite3.connect":
        return
    engine = sys.modules.get("clew.checkpointers.sqlite.engine")
    stores = None if engine is None else engine.__dict__.get("_engines")
    if not stores or not isinstance(given[0], str | bytes | os.PathLike):
        return
    name = os.fsdecode(given[0])
    if event == "sqlite3.connect" and name.startswith("file:"):
        name = unquote(name.removeprefix("file:").partition("?")[0])
    for side in _SIDE_FILES:
        name = name.removesuffix(side)
    base = os.path.basename(name)
    opened = {(path, pid) for path, pid, _ in tuple(stores) if path.endswith(base)}
    if opened and (os.path.realpath(name), os.getpid()) in opened:
        raise AssertionError(
            f"{name} is opened beside the store that this process has open, so closing it drops the store's locks. Use "
            "tests.sqlite_files.database, or another process."
        )
