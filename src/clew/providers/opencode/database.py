"""Finds and opens opencode's database. Also encodes its rows for export, makes ids for sessions and messages, and
assigns sessions to working folders.

Errors of SQLite are raised as `Unavailable` or `Corrupt`.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from clew import advice
from clew.checkpointers.sql.steps import STEPS, StepLimit
from clew.errors import Corrupt, InvalidInput, Unavailable
from clew.providers.base import Place
from clew.providers.opencode.schema import check_to_read, check_to_write

__all__ = [
    "Columns",
    "Namer",
    "Row",
    "checked",
    "columns_of",
    "connect",
    "data_folder",
    "database_path",
    "decode",
    "encode",
    "has_database",
    "id_in",
    "is_session",
    "limit_steps",
    "located",
    "new_session",
    "now",
    "open_to_read",
    "open_to_write",
    "opened",
    "quoted",
    "real",
    "sealed",
    "select",
    "settle",
    "time_in",
]


Columns = dict[str, tuple[str, ...]]
_WAIT = 10.0
"""The most seconds to wait for another process that is writing to the database."""
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
            "OPENCODE_DB is ':memory:', so opencode keeps no conversation that could be continued. Unset it."
        )
    return data_folder(place) / (named or "opencode.db")


def has_database(place: Place) -> bool:
    """Return whether opencode's database exists. Raises `Unavailable` if there is none but an older opencode has kept
    conversations in files, so that they are not overlooked."""
    path = database_path(place)
    if path.exists():
        return path.stat().st_size > 0
    old = data_folder(place) / "storage" / "session"
    if old.is_dir() and any(old.iterdir()):
        raise Unavailable(
            f"{path} does not exist, and the conversations of an older opencode in {old} cannot be read. "
            f"Upgrade opencode and start it once: {advice.install_program('opencode', 'latest')}"
        )
    return False


@contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for reading, until the context ends. All reads see the same state, even if another process
    writes meanwhile. Raises `Unavailable` or `Corrupt` if it cannot be read."""
    with _translated_errors(path), _connected(path, "ro") as connection:
        connection.execute("BEGIN")
        _check(connection, path)
        yield connection


@contextmanager
def open_to_write(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for one transaction, which lasts as long as the context. If the context ends with an error,
    nothing of it is kept. Raises `Unavailable` or `Corrupt` if the database cannot be written."""
    with _translated_errors(path), _connected(path, "rw") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        _check(connection, path)
        check_to_write(connection, path)
        yield connection
        connection.execute("COMMIT")


def quoted(name: str) -> str:
    """Return the name of a table or column in double quotes, for use in an SQL statement. Quotes inside the name are
    escaped, so SQL in a name is never run."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    return tuple(row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))


def select(connection: sqlite3.Connection, query: str, values: tuple[object, ...]) -> Iterator[Row]:
    """Yield the rows of a query as dicts by column name."""
    cursor = connection.execute(query, values)
    columns = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(columns, row, strict=True))


def time_in(value: object) -> int:
    """Return the value of a column that holds a time, in milliseconds since 1970. SQLite stores any kind of value in any
    column, so this raises `Corrupt` if it is not a whole number."""
    if not isinstance(value, int):
        raise Corrupt(f"opencode's database is damaged: {value!r:.60} is not a time in it. Restore it from a copy.")
    return value


def id_in(value: object) -> str:
    """Return the value of a column that holds the id of a row. Raises `Corrupt` if it is not text."""
    if not isinstance(value, str):
        raise Corrupt(f"opencode's database is damaged: {value!r:.60} is not an id in it. Restore it from a copy.")
    return value


def connect(path: Path, mode: str, *, wait: float, any_thread: bool = False) -> sqlite3.Connection:
    """Connect to the database. `mode` is `ro` for reading or `rw` for writing too. `wait` is how many seconds to wait
    at most for another process that is writing. With `any_thread`, different OS threads may use the connection one
    after the other."""
    name = f"file:{quote(str(path))}?mode={mode}"
    connection = sqlite3.connect(name, uri=True, timeout=wait, isolation_level=None, check_same_thread=not any_thread)
    connection.execute("PRAGMA trusted_schema = OFF")  # no function in a view, an index or a default value of the file
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def limit_steps(connection: sqlite3.Connection, path: Path) -> None:
    """Limit how long the next transaction can take, because a hostile database could keep a query busy for years.
    SQLite counts the steps of its work. If the transaction takes more steps than it can need to read a database of this
    size, the running statement fails with `sqlite3.OperationalError`. `path` is the path of the database."""
    connection.set_progress_handler(StepLimit(path), STEPS)


@contextmanager
def _connected(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    connection = connect(path, mode, wait=_WAIT)
    limit_steps(connection, path)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    """Turn an error of SQLite that is raised inside this context into `Unavailable` or `Corrupt`. The new error names
    `path`, the path of the database, and says what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", None)  # an error of Python's module, not of SQLite, has none
        if code is None:
            raise Corrupt(f"{path} is damaged: {error}. Restore it from a copy.") from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise Corrupt(
                f"opencode's database {path} takes far more steps to read than its size explains: its pages point at each "
                "other in a circle or many times over. Restore it from a copy."
            ) from error
        raise Unavailable(f"opencode's database {path} could not be used: {error}. Try again.") from error
    except sqlite3.IntegrityError as error:
        raise Corrupt(
            f"opencode's database {path} does not take this conversation: {error}. Nothing was changed."
        ) from error
    except MemoryError as error:  # SQLite says so of some damaged files too
        raise Unavailable(
            f"opencode's database {path} could not be read: SQLite reports that it has no memory for it. If there is memory "
            "left, the file is damaged: restore it from a copy."
        ) from error
    except UnicodeDecodeError as error:  # in a message of SQLite that names what is damaged
        raise Corrupt(f"{path} is damaged: a name in it is not text. Restore it from a copy.") from error
    except sqlite3.DatabaseError as error:
        raise Corrupt(f"{path} cannot be read as opencode's database: {error}. Restore it from a copy.") from error


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `Corrupt` if opencode's database, at `path`, lacks a table or column that Clew needs, or if reading it
    could run SQL that somebody wrote into the file."""
    check_to_read(connection, path, frozenset(_NEEDED))
    for table, needed in _NEEDED.items():
        there = columns_of(connection, table)
        missing = [column for column in needed if column not in there]
        if missing:
            raise Corrupt(
                f"{path} has a format that this Clew does not know: table {table!r} has no column {missing[0]!r}. "
                f"It was written by {_version(connection)}. Upgrade Clew, or use opencode 1.18."
            )


def _version(connection: sqlite3.Connection) -> str:
    """Describe in words which version of opencode wrote the database, as far as the database tells."""
    if "version" in columns_of(connection, "session"):
        newest = connection.execute("SELECT version FROM session ORDER BY rowid DESC LIMIT 1").fetchone()
        if newest:
            return f"opencode {newest[0]}"
    if "id" in columns_of(connection, "migration"):
        last = connection.execute("SELECT max(id) FROM migration").fetchone()
        if last and last[0]:
            return f"an opencode whose newest migration is {last[0]}"
    return "an unknown version of opencode"


Row = dict[str, Any]
"""A database row as a dict by column name, with the values as SQLite returns them."""

_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]])


def opened(row: Row) -> dict[str, msgspec.Raw]:
    """Convert a row to a dict from column name to encoded JSON value. A text column that itself holds a JSON object or
    list becomes that object or list, not a string."""
    return {column: msgspec.Raw(_encoder.encode(_embedded(value))) for column, value in row.items()}


def sealed(row: Mapping[str, msgspec.Raw]) -> Row:
    """Convert a row from the form that `opened` returns, a dict from column name to encoded JSON value, back to the
    form of the database. JSON objects and lists become texts, as the database holds them."""
    return {column: _plain(bytes(value)) for column, value in row.items()}


def encode(table: str, row: Row) -> bytes:
    """Encode a row as one line of JSON that also names its table, with a newline."""
    return _encoder.encode({table: {column: _embedded(value) for column, value in row.items()}}) + b"\n"


def decode(line: bytes, where: str) -> tuple[str, Row]:
    """Decode a line written by `encode` to the name of its table and the row. Raises `Corrupt`, naming `where` as the
    place of the line, if it is not valid."""
    try:
        ((table, row),) = _lines.decode(line).items()
        return table, sealed(row)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{where} is damaged: {error}. Restore it from a copy.") from error


def _embedded(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "[") and value[-1:] in ("}", "]") and "\n" not in value:
        try:
            raw = msgspec.json.decode(value, type=msgspec.Raw)
        except msgspec.DecodeError:
            return value
        return raw
    return value


def _plain(value: bytes) -> Any:
    return value.decode() if value[:1] in (b"{", b"[") else msgspec.json.decode(value)


_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BITS = 48
_COUNTS = 4096
_ROUND = 2**_BITS // _COUNTS
"""Milliseconds, 2.2 years in all, after which the time in an id starts again from zero. An id has 48 bits for a time
and a counter, and the counter takes 12 of them."""
_SESSION = re.compile(r"ses_[0-9a-f]{12}[0-9A-Za-z]{14}")


def now() -> int:
    """Return the current time in milliseconds since 1970, which is how opencode stores times."""
    return time.time_ns() // 1_000_000


def new_session() -> str:
    """Make a key for a new session: `ses_`, 12 hexadecimal digits and 14 random characters. The digits are the time,
    counted down, so that the newest session sorts first."""
    digits = ~(now() * _COUNTS + secrets.randbelow(_COUNTS)) % 2**_BITS
    return f"ses_{digits:012x}" + "".join(secrets.choice(_BASE62) for _ in range(14))


def is_session(name: str) -> bool:
    return _SESSION.fullmatch(name) is not None


def checked(key: str) -> str:
    """Return the key if it is a session key as opencode makes them, otherwise raise `InvalidInput`. Keys are checked
    because they become parts of file names."""
    if not is_session(key):
        raise InvalidInput(f"{key!r} is not a session key of opencode; OpenCode.new_key() makes one")
    return key


class Namer:
    """Makes ids for the messages that Clew writes for opencode, and for their parts (pieces such as a text or a tool
    call). An id consists of a prefix, a time with a counter, and characters computed from `seed`.

    opencode sorts by id. So each id sorts after the id that was made before it, and all sort before the ids that
    opencode will make later. The same `seed` and start time `at`, in milliseconds since 1970, give the same ids. The
    present is used instead of `at` if `at` is in the future, or so long ago that it does not fit the 48 bits in an id.
    """

    def __init__(self, seed: str, at: int, clock: Callable[[], int] = now) -> None:
        present = clock()
        self._at = at if at <= present and at // _ROUND == present // _ROUND else present
        self._seed = seed
        self._count = 0

    @property
    def time(self) -> int:
        """The time in milliseconds that the next id gets. It advances by one millisecond after every thousand ids."""
        return self._at + self._count // 1000

    def next(self, prefix: str) -> str:
        digits = (self.time * _COUNTS + self._count % 1000 + 1) % 2**_BITS
        lot = int.from_bytes(blake2b(f"{self._seed} {self._count}".encode(), digest_size=16).digest())
        self._count += 1
        tail = ""
        for _ in range(14):
            lot, place = divmod(lot, 62)
            tail += _BASE62[place]
        return f"{prefix}_{digits:012x}{tail}"


_GLOBAL = "global"
"""The project to which opencode assigns all folders that belong to no other project."""


def real(folder: Path) -> str:
    """Return the absolute path of a folder with symbolic links resolved, as opencode stores it."""
    return os.path.realpath(folder)


def located(connection: sqlite3.Connection, cwd: Path) -> Row:
    """Return the database columns that assign a session to the working folder `cwd`: its project, its folder, and the
    path within the project.

    To opencode each repository is a project, identified by its first commit. Only projects that the database already
    has are looked up here; otherwise the project is `global`, which is created if it is missing. When opencode is
    started in a repository's root later, it moves the `global` sessions of that folder to the repository's project by
    itself.
    """
    directory = real(cwd)
    project, worktree = _project(connection, Path(directory))
    return {
        "project_id": project,
        "directory": directory,
        "path": os.path.relpath(directory, worktree) if directory != worktree else "",
    }


def settle(connection: sqlite3.Connection, session: str, cwd: Path) -> None:
    """Assign a session to the working folder `cwd` in the database, as opencode's own import does. opencode continues a
    session only in the folder that it is assigned to."""
    known = columns_of(connection, "session")
    place = {column: value for column, value in located(connection, cwd).items() if column in known}
    named = ", ".join(f"{quoted(column)} = ?" for column in place)
    connection.execute(f"UPDATE session SET {named} WHERE id = ?", (*place.values(), session))  # noqa: S608 - quoted


def _project(connection: sqlite3.Connection, folder: Path) -> tuple[str, str]:
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if root is not None:
        query = "SELECT id, worktree FROM project WHERE worktree = ? AND id <> ?"
        if found := connection.execute(query, (str(root), _GLOBAL)).fetchone():
            return str(found[0]), str(found[1])
    if connection.execute("SELECT 1 FROM project WHERE id = ?", (_GLOBAL,)).fetchone() is None:
        row = {"id": _GLOBAL, "worktree": "/", "sandboxes": "[]", "time_created": now(), "time_updated": now()}
        columns = [column for column in row if column in columns_of(connection, "project")]
        marks = ", ".join("?" * len(columns))
        connection.execute(
            f"INSERT INTO project ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608 - our names
            [row[column] for column in columns],
        )
    return _GLOBAL, "/"
