"""Backs up a SQLite store while it is in use."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec

from clew._runtime import files
from clew.checkpointers.patience import TIMEOUT
from clew.checkpointers.sqlite import schema
from clew.checkpointers.sqlite.connection import FAULTS, LockWait, configure, connect, explain, remove
from clew.errors import InvalidInput

__all__ = ["Backup", "backup"]

STEP = 1024
"""Pages of the database that are copied between two calls of `progress`: 8 MiB."""


class Backup(msgspec.Struct, frozen=True):
    """A finished backup: where it is, and its size in bytes."""

    path: Path
    bytes: int


def backup(
    store: str | os.PathLike[str],
    target: str | os.PathLike[str],
    progress: Callable[[int, int | None], None] | None = None,
    *,
    timeout: float = TIMEOUT,
) -> Backup:
    """Copy the store's database file to `target` with SQLite's backup API. Blocks until the copy is complete and
    survives a power cut. Returns the path and the size of the copy.

    The copy is the store as it was at one moment, and has every append that was acknowledged before the call. Writers
    are not held up, and they do not make the copy start over: it is made in one read transaction. `target` is a private
    file that appears only when it is complete. Raises `InvalidInput` if `target` exists already or `store` does not.
    `progress` is called from time to time with two numbers: the pages copied so far, and the pages in total, which are
    never None here. `timeout` is how many seconds to wait while another process has locked the store and writes nothing.
    """
    source, path = Path(os.path.abspath(Path(store).expanduser())), Path(os.path.abspath(Path(target).expanduser()))
    if not source.is_file():
        raise InvalidInput(f"{source} does not exist, so there is no SQLite store to back up.")
    taken = InvalidInput(f"{path} exists and is left alone. Choose another name for the backup.")
    if os.path.lexists(path):
        raise taken
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        files.make_private_folder(path.parent)
        files.make_private_file(temporary)
        try:
            _copy(source, temporary, progress, timeout)
            size = temporary.stat().st_size
            if not files.publish(temporary, path):
                raise taken
            return Backup(path, size)
        finally:
            remove(temporary)
    except FAULTS as error:
        raise explain(error, path if isinstance(error, apsw.FullError) else source) from error
    except OSError as error:
        raise files.explain(error, path) from error


def _copy(source: Path, target: Path, progress: Callable[[int, int | None], None] | None, timeout: float) -> None:
    wait = LockWait(source, timeout)
    wait.allow(time.monotonic())
    with contextlib.closing(connect(source, wait=wait)) as live, contextlib.closing(connect(target)) as copy:
        schema.check(live, str(source))
        configure(copy)
        live.execute("BEGIN")
        live.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # fixes the moment that is copied
        with copy.backup("main", live, "main") as copying:
            while not copying.done:
                copying.step(STEP)
                if progress is not None:
                    progress(copying.page_count - copying.remaining, copying.page_count)
        live.execute("ROLLBACK")
