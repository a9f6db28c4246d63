"""From a folder to opencode's database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from clew.errors import InvalidInput
from clew.providers.opencode.database import columns_of, select
from clew.providers.opencode.exporting import message_rows, small_tables, tree
from clew.providers.opencode.folders import OUTPUTS, load, manifest_rows, put, rows_of
from clew.providers.opencode.ids import Namer, new_session, now
from clew.providers.opencode.projects import located, settle
from clew.providers.opencode.rows import Row
from clew.providers.opencode.standing import standing

__all__ = ["insert_session", "install", "install_outputs"]

_NAMES = re.compile(r"\b(?:ses|msg|prt)_[0-9A-Za-z]+")
_NOT_HERE: Row = {"workspace_id": None, "share_url": None}
"""What a session says of the machine it comes from, beside its folder."""


def install(connection: sqlite3.Connection, key: str, folder: Path, cwd: Path) -> None:
    """Make the session of this key the folder's, and one of `cwd`. What it holds here and not there is kept aside, as a
    session of another name."""
    manifest = load(folder)
    if manifest.key != key:
        raise InvalidInput(f"{folder} holds the conversation {manifest.key!r}, and not {key!r}. Give its own key.")
    stands = standing(connection, key, folder)
    if stands == "same":
        settle(connection, key, cwd)
        return
    if stands in ("ahead", "apart"):
        _keep_aside(connection, key)
    if stands != "absent":
        for session in tree(connection, key):
            connection.execute("DELETE FROM session WHERE id = ?", (session,))
    place = {**located(connection, cwd), **_NOT_HERE}
    rows = _Rows(connection)
    for sheet in manifest.sessions:
        for table, row in manifest_rows(sheet):
            rows.insert(table, {**row, **place} if table == "session" else row)
        for table, row in rows_of(folder, sheet):
            rows.insert(table, row)


def install_outputs(folder: Path, outputs: Path) -> None:
    """Put long results of tools where opencode keeps them; those that are there stay."""
    for source in (folder / OUTPUTS).glob("tool_*"):
        if not (outputs / source.name).exists():
            put(outputs / source.name, source.read_bytes())


def insert_session(connection: sqlite3.Connection, row: Row, cwd: Path) -> None:
    """A session that has no messages yet."""
    _Rows(connection).insert("session", {**row, **located(connection, cwd)})


class _Rows:
    """Writes rows that may be of another version of opencode: columns that this database does not have are left out, and
    so are tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._columns: dict[str, tuple[str, ...]] = {}

    def insert(self, table: str, row: Row) -> None:
        if table not in self._columns:
            self._columns[table] = columns_of(self._connection, table)
        columns = [column for column in row if column in self._columns[table]]
        if columns:
            named, marks = ", ".join(columns), ", ".join("?" * len(columns))
            self._connection.execute(
                f'INSERT INTO "{table}" ({named}) VALUES ({marks})',  # noqa: S608
                [row[column] for column in columns],
            )


def _keep_aside(connection: sqlite3.Connection, key: str) -> None:
    """Copy a session, its sub-agents' and all they hold under names of their own, as opencode does for a fork."""
    names: dict[str, str] = {}
    namer = Namer(new_session(), now())

    def renamed(row: Row) -> Row:
        return {
            column: _NAMES.sub(lambda match: names.get(match[0], match[0]), value) if isinstance(value, str) else value
            for column, value in row.items()
        }

    found = list(_all_rows(connection, key))
    for table, row in found:
        if table in ("session", "message", "part"):
            names[row["id"]] = new_session() if table == "session" else namer.next(row["id"][:3])
    rows = _Rows(connection)
    for table, row in found:
        copy = renamed(row)
        if table == "session" and row["id"] == key:
            copy["title"] = f"{row['title']} (kept aside by Clew)"
        if table in ("session", "message", "part", "todo"):
            rows.insert(table, copy)


def _all_rows(connection: sqlite3.Connection, key: str) -> Iterator[tuple[str, Row]]:
    has_todo = "todo" in small_tables(connection)
    for session in tree(connection, key):
        for row in select(connection, "SELECT * FROM session WHERE id = ?", (session,)):
            yield "session", row
        for row in select(connection, "SELECT * FROM todo WHERE session_id = ?", (session,)) if has_todo else ():
            yield "todo", row
        for message, parts in message_rows(connection, session):
            yield "message", message
            yield from (("part", part) for part in parts)
