"""opencode's database: where it is, and how it is opened. Whatever goes wrong there is told in Clew's errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from clew import advice
from clew.errors import Corrupt, InvalidInput, Unavailable
from clew.providers.base import Place
from clew.providers.opencode.rows import Row

__all__ = [
    "Columns",
    "columns_of",
    "connect",
    "data_folder",
    "database_path",
    "has_database",
    "open_to_read",
    "open_to_write",
    "select",
]

Columns = dict[str, tuple[str, ...]]
_WAIT = 10.0
"""Seconds to wait for another process that writes."""
_NEEDED: Columns = {
    "project": ("id", "worktree"),
    "session": (
        *("id", "project_id", "parent_id", "slug", "directory", "title", "version", "time_created", "time_updated"),
    ),
    "message": ("id", "session_id", "time_created", "time_updated", "data"),
    "part": ("id", "message_id", "session_id", "time_created", "time_updated", "data"),
}


def data_folder(place: Place) -> Path:
    base = place.env.get("XDG_DATA_HOME")
    return (Path(base) if base else place.home / ".local" / "share") / "opencode"


def database_path(place: Place) -> Path:
    named = place.env.get("OPENCODE_DB", "")
    if named == ":memory:":
        raise InvalidInput(
            "OPENCODE_DB is ':memory:', so opencode keeps no conversation that could be gone on with. Unset it."
        )
    return data_folder(place) / (named or "opencode.db")


def has_database(place: Place) -> bool:
    """Whether there is one. Conversations that an older opencode keeps in files are told of, and not passed over."""
    path = database_path(place)
    if path.exists():
        return path.stat().st_size > 0
    old = data_folder(place) / "storage" / "session"
    if old.is_dir() and any(old.iterdir()):
        raise Unavailable(
            f"there is no {path}, but conversations of an older opencode in {old}, which are not read. "
            f"Upgrade opencode and start it once: {advice.install_program('opencode', 'latest')}"
        )
    return False


@contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """All that is read through it is from one moment, whoever writes meanwhile."""
    with _told(path), _connected(path, "ro") as connection:
        connection.execute("BEGIN")
        _check(connection, path)
        yield connection


@contextmanager
def open_to_write(path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction: all that is written through it is there afterwards, or nothing is."""
    with _told(path), _connected(path, "rw") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        _check(connection, path)
        yield connection
        connection.execute("COMMIT")


def columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    return tuple(row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))


def select(connection: sqlite3.Connection, query: str, values: tuple[object, ...]) -> Iterator[Row]:
    """The rows of a query, by the names of their columns."""
    cursor = connection.execute(query, values)
    columns = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(columns, row, strict=True))


def connect(path: Path, mode: str, *, wait: float = _WAIT, any_thread: bool = False) -> sqlite3.Connection:
    """A connection to the database, `ro` or `rw`. `wait`: seconds to wait for another process that writes. With
    `any_thread` it may be used by one thread after the other."""
    name = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(name, uri=True, timeout=wait, isolation_level=None, check_same_thread=not any_thread)


@contextmanager
def _connected(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    connection = connect(path, mode)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise Unavailable(f"opencode's database {path} could not be used: {error}. Try again.") from error
    except sqlite3.IntegrityError as error:
        raise Corrupt(
            f"opencode's database {path} does not take this conversation: {error}. Nothing was changed."
        ) from error
    except sqlite3.DatabaseError as error:
        raise Corrupt(f"{path} cannot be read as opencode's database: {error}. Restore it from a copy.") from error


def _check(connection: sqlite3.Connection, path: Path) -> None:
    for table, needed in _NEEDED.items():
        there = columns_of(connection, table)
        missing = [column for column in needed if column not in there]
        if missing:
            raise Corrupt(
                f"{path} has a form that this Clew does not know: table {table!r} has no column {missing[0]!r}. "
                f"It was written by {_version(connection)}. Upgrade Clew, or take an opencode that it knows (1.18)."
            )


def _version(connection: sqlite3.Connection) -> str:
    """As far as the database itself says which opencode wrote it."""
    if "version" in columns_of(connection, "session"):
        newest = connection.execute("SELECT version FROM session ORDER BY rowid DESC LIMIT 1").fetchone()
        if newest:
            return f"opencode {newest[0]}"
    if "id" in columns_of(connection, "migration"):
        last = connection.execute("SELECT max(id) FROM migration").fetchone()
        if last and last[0]:
            return f"an opencode whose newest migration is {last[0]}"
    return "an unknown version of opencode"
