"""Backs up a SQLite store while it is in use."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from clew._runtime import files
from clew.checkpointers.sqlite import schema
from clew.errors import ClewError, Corrupt, InvalidInput, Unavailable

__all__ = ["Backup", "backup"]

STEP = 1024
"""Pages of the database that are copied between two calls of `progress`: 8 MiB."""
LOCK_WAIT = 30.0
"""Seconds to wait while another process has locked the database."""


class Backup(msgspec.Struct, frozen=True):
    """A finished backup: where it is, and its size in bytes."""

    path: Path
    bytes: int


def backup(
    store: str | os.PathLike[str],
    target: str | os.PathLike[str],
    progress: Callable[[int, int | None], None] | None = None,
) -> Backup:
    """Copy the store's database file to `target` with SQLite's backup API. Blocks until the copy is complete and
    survives a power cut.

    The copy is the store as it was at one moment, and has every append that was acknowledged before the call. Writers
    are not held up, and they do not make the copy start over: it is made in one read transaction. `target` is a private
    file that appears only when it is complete. Raises `InvalidInput` if `target` exists already or `store` does not.
    `progress` is called from time to time with two numbers: the pages copied so far, and the pages in total, which are
    never None here.
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
            _copy(source, temporary, progress)
            return _keep(temporary, path, taken)
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{temporary}{suffix}")
    except sqlite3.Error as error:
        raise _explained(error, source, path) from error
    except OSError as error:
        raise files.explain(error, path) from error


def _copy(source: Path, target: Path, progress: Callable[[int, int | None], None] | None) -> None:
    def tell(_: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    address = f"{source.as_uri()}?mode=rw"
    with (
        contextlib.closing(sqlite3.connect(address, uri=True, timeout=LOCK_WAIT, isolation_level=None)) as live,
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        schema.check(live, str(source))
        schema.configure(copy)
        live.execute("BEGIN")
        live.execute("SELECT count(*) FROM sqlite_master").fetchone()  # fixes the moment that is copied
        live.backup(copy, pages=STEP, progress=tell)
        live.execute("ROLLBACK")


def _keep(temporary: Path, path: Path, taken: InvalidInput) -> Backup:
    """Sync the finished copy at `temporary` to the disk, rename it to `path`, and return the backup. If a file at
    `path` was made meanwhile, raises `taken`, an error that the caller has prepared."""
    fd = os.open(temporary, os.O_RDWR)
    try:
        files.sync(fd)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise taken from None
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise taken from None
        os.rename(temporary, path)
    files.sync_folder(path.parent)
    return Backup(path, size)


def _explained(error: sqlite3.Error, source: Path, target: Path) -> ClewError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Corrupt(f"{source} is not a sound SQLite database ({error}). Restore it from a copy, or move it away.")
    hint = {
        sqlite3.SQLITE_BUSY: f"another process held its lock for {LOCK_WAIT:.0f} s",
        sqlite3.SQLITE_FULL: f"there is no room for {target}; free some space",
    }.get(code, "check the disk")
    return Unavailable(f"no backup of {source}: {error}: {hint}, then try again.")
