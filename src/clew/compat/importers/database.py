"""Reads the SQLite database of another program. The file may be hostile, and may be written to meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clew.checkpointers.sql.steps import STEPS, StepLimit
from clew.errors import Corrupt, InvalidInput, Unavailable

__all__ = ["Database", "Row"]

Row = dict[str, Any]
"""A row as a dict by column name, with the values as SQLite returns them."""

_WAIT = 10.0
"""The most seconds to wait for another process that is writing to the database."""


class Database:
    """A SQLite file of another program, opened for reading only. In errors, `what` says what the file should be.

    Only ordinary tables are read: a view or a virtual table could run what somebody wrote into the file. A statement
    that takes far longer than the file's size explains ends with `Corrupt`.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Open the file at `path`. In errors, `what` says what the file should be. Raises `InvalidInput` if it is not a
        SQLite database, and `Unavailable` if it cannot be opened."""
        self._path = path
        self._what = what
        self._tables: dict[str, tuple[str, ...]] = {}
        self._places: dict[tuple[str, str], dict[object, list[int]]] = {}
        name = f"file:{quote(str(path.absolute()))}?mode=ro"
        with self._translated_errors():
            self._connection = sqlite3.connect(name, uri=True, timeout=_WAIT, isolation_level=None)
        try:
            self._look()
        except BaseException:
            self._connection.close()
            raise

    def _look(self) -> None:
        """Read from the database the names of its tables and of their columns. Raises `InvalidInput` if the file is not
        a SQLite database."""
        try:
            with self._translated_errors():
                self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
                self._connection.execute("PRAGMA trusted_schema = OFF")
                self._connection.execute("PRAGMA cell_size_check = ON")
                found = self._connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
                plain = [name for name, sql in found if str(sql).lower().startswith("create table")]
                for table in plain:
                    columns = self._connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
                    self._tables[table] = tuple(row[0] for row in columns)
        except Corrupt as error:
            raise InvalidInput(f"{self._path} is not {self._what}: it is no SQLite database.") from error

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is an ordinary table of this name that has these columns."""
        return table in self.tables_with(*columns)

    def tables_with(self, *columns: str) -> list[str]:
        """Return the names of the ordinary tables that have these columns."""
        return [name for name, its_own in self._tables.items() if {*columns} <= {*its_own}]

    def rows(self, query: str, *values: object) -> list[Row]:
        """Run a query, with `values` for the placeholders in it, and return its rows. Raises `Unavailable` if the
        database cannot be read now, and `Corrupt` if it is damaged or does not have what the query asks for."""
        with self._translated_errors():
            self._connection.set_progress_handler(StepLimit(self._path), STEPS)
            cursor = self._connection.execute(query, values)
            columns = [column[0] for column in cursor.description]
            return [dict(zip(columns, row, strict=True)) for row in cursor]

    def matching(self, table: str, column: str, value: object) -> list[Row]:
        """Return the rows of `table` that have `value` in `column`, in the order in which they were inserted. The first
        call for a column reads the column in all rows and notes where each value is, so that later calls are fast even
        if the table has no index. Rows that are inserted after the first call are not found."""
        places = self._places.get((table, column))
        if places is None:
            places = self._places[table, column] = {}
            for row in self.rows(f'SELECT rowid AS place, "{column}" AS value FROM "{table}"'):  # noqa: S608 - names of ours
                places.setdefault(row["value"], []).append(row["place"])
        query = f'SELECT * FROM "{table}" WHERE rowid = ?'  # noqa: S608 - a name of ours
        return [row for place in places.get(value, ()) for row in self.rows(query, place)]

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """A context manager that turns an error of SQLite in its block into `Unavailable` or `Corrupt`. The message
        names the file and says what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # Python's own errors have none
            if code == sqlite3.SQLITE_INTERRUPT:
                raise Corrupt(
                    f"{self._path} takes far more steps to read than its size explains: its pages point at each other in a "
                    "circle or many times over. Restore it from a copy."
                ) from error
            if code & 0xFF == sqlite3.SQLITE_ERROR:  # the tables are not as they should be
                raise Corrupt(f"{self._path} cannot be read as {self._what}: {error}.") from error
            raise Unavailable(f"{self._path}, {self._what}, could not be read: {error}. Try again.") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise Corrupt(f"{self._path} cannot be read as {self._what}: {error}. Restore it from a copy.") from error
