"""Refuses a database with SQL in its schema that SQLite would run while Clew reads or writes rows.

When a row is read, SQLite computes generated columns. When a row is written, it runs CHECK constraints, default values,
indexes on expressions and triggers. opencode has none of these. In a hostile file each can take gigabytes of memory or
run without end. Clew's limit on the number of SQLite's steps does not help, because all of this can happen within one
step.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from clew.errors import Corrupt

__all__ = ["check_to_read", "check_to_write"]


class _Object(NamedTuple):
    """A table, index, trigger or view of the database, as `sqlite_schema` lists it. `sql` is the statement that made
    it; empty for an index that SQLite made by itself."""

    type: str
    name: str
    sql: str


def check_to_read(connection: sqlite3.Connection, path: Path, needed: frozenset[str]) -> None:
    """Raise `Corrupt` if reading the database could run SQL that somebody wrote into the file: a table has a generated
    column, or one of the tables `needed` is a view or a virtual table. `path` is the path of the database."""
    for found in _objects(connection):
        if found.name.lower() in needed and found.type in ("table", "view") and not _is_ordinary(found):
            raise Corrupt(
                f"{path} is not a database of opencode: {found.name!r} is not an ordinary table in it, and reading it could "
                "run what somebody wrote into the file. Restore it from a copy."
            )
        if _is_ordinary(found) and "AS" in _words(found.sql):
            raise _computes(path, found, "a generated column in the table", "reads")


def check_to_write(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `Corrupt` if writing to the database could run SQL that somebody wrote into the file: a trigger, a CHECK
    constraint, a default value that is an expression, or an index on expressions or for some rows only. `path` is the
    path of the database."""
    for found in _objects(connection):
        words = list(_words(found.sql))
        if found.type == "trigger":
            raise _computes(path, found, "the trigger", "writes")
        if _is_ordinary(found) and "CHECK" in words:
            raise _computes(path, found, "a CHECK constraint in the table", "writes")
        if _is_ordinary(found) and ("DEFAULT", "(") in pairwise(words):
            raise _computes(path, found, "a default value that is an expression in the table", "writes")
        if found.type == "index" and ("WHERE" in words or words.count("(") > 1):
            raise _computes(path, found, "an expression in the index", "writes")


def _objects(connection: sqlite3.Connection) -> Iterator[_Object]:
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall():
        yield _Object(str(kind), str(name), str(sql or ""))


def _is_ordinary(found: _Object) -> bool:
    return found.type == "table" and list(islice(_words(found.sql), 2)) == ["CREATE", "TABLE"]


_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^]]*\] | --[^\n]* | /\*.*?(?:\*/|\Z) | ([\w$]+ | \S)""",
    re.DOTALL | re.VERBOSE,
)
"""A token of SQL as SQLite reads it. The group is set for a word or a sign that is neither quoted nor a comment."""


def _words(sql: str) -> Iterator[str]:
    """Yield the words and signs of a statement in upper case, without quoted names, strings and comments."""
    return (token[1].upper() for token in _TOKEN.finditer(sql) if token[1] is not None)


def _computes(path: Path, found: _Object, what: str, does: str) -> Corrupt:
    return Corrupt(
        f"{path} has {what} {found.name!r}, which opencode does not make and which would run as Clew "
        f"{does} the database. Nothing was changed. Restore it from a copy, or drop it."
    )
