"""Writes the conversation of an export folder, which holds Clew's copy of it, into opencode's database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from clew.errors import Corrupt, InvalidInput
from clew.providers.fields import values
from clew.providers.files import check_folders, files_in, put
from clew.providers.opencode.database import (
    Namer,
    Row,
    columns_of,
    id_in,
    located,
    new_session,
    now,
    quoted,
    select,
    settle,
)
from clew.providers.opencode.storage import (
    OUTPUTS,
    PRIVATE,
    Sheet,
    load,
    manifest_rows,
    message_rows,
    rows_of,
    small_tables,
    standing,
    tree,
)

__all__ = ["insert_session", "install", "install_outputs"]

_NAMES = re.compile(r"\b(?:ses|msg|prt)_[0-9A-Za-z]+")
_NOT_HERE: Row = {"workspace_id": None, "share_url": None}
"""Columns by which a session refers to the machine that it comes from, with empty values. A session that is new in this
database gets these values; a session that is already in the database keeps its own."""


def install(connection: sqlite3.Connection, key: str, folder: Path, cwd: Path) -> None:
    """Put the conversation of an export folder, which holds Clew's copy of it, into the database, and assign it to the
    working folder `cwd`. It replaces the session with this key in the database. If that session has anything that the
    folder lacks, it is first copied to a session with another key. Raises `InvalidInput` if the folder's conversation
    has another key than `key`."""
    manifest = load(folder)
    if manifest.key != key:
        raise InvalidInput(
            f"{folder} holds the conversation {manifest.key!r}, not {key!r}. Install it under its own key."
        )
    stands = standing(connection, key, folder)
    if stands == "same":
        settle(connection, key, cwd)
        return
    coming = {sheet.id for sheet in manifest.sessions}
    if stands in ("ahead", "apart"):
        _give_way(connection, coming, _keep_aside(connection, key, coming))
    _check_strangers(connection, key, coming)
    place = {**located(connection, cwd), **_NOT_HERE}
    rows = _Rows(connection)
    for sheet in manifest.sessions:
        _clear(connection, sheet.id)
        for table, row in _own_rows(connection, sheet, folder):
            rows.insert(table, {**_harmless(row), **place} if table == "session" else row)
        for table, row in rows_of(folder, sheet):
            rows.insert(table, row)


def _check_strangers(connection: sqlite3.Connection, key: str, coming: set[str]) -> None:
    """Raise `Corrupt` if the database already has a session with one of the keys in `coming` that is neither the
    session `key` nor one of its sub-agents. `coming` are the keys of the sessions in an export folder, which would
    replace it. The check is needed because the folder may come from an untrusted source."""
    for session in sorted(coming.difference(tree(connection, key))):
        if connection.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone():
            raise Corrupt(f"the session {session} is here already, and does not belong to {key}. Nothing was changed.")


def _own_rows(connection: sqlite3.Connection, sheet: Sheet, folder: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of one session that may be written into the database, each as table name and row. They come from
    `sheet`, the entry for that session in the manifest of the export folder `folder`. Rows of tables that do not belong
    to sessions are skipped, because such tables hold the user's accounts and permissions. Raises `Corrupt`, naming the
    folder, if a row belongs to another session."""
    tables = {"session": "id", **dict.fromkeys(small_tables(connection), "session_id")}
    for table, row in manifest_rows(sheet):
        if table in tables:
            if row.get(tables[table]) != sheet.id:
                raise Corrupt(f"{folder} is damaged: it has a row of {table!r} that is not of {sheet.id}.")
            yield table, row


def _harmless(session: Row) -> Row:
    """Return a session's row without the permissions that it grants; what it denies stays denied. Permissions in a
    session take precedence over all settings of opencode, and the export folder that the row comes from may be from an
    untrusted source."""
    said = session.get("permission")
    try:
        rules = msgspec.json.decode(said) if isinstance(said, str) else []
    except msgspec.DecodeError:
        rules = said
    denied = [rule for rule in rules if values(rule).get("action") == "deny"] if isinstance(rules, list) else []
    if denied == rules:
        return session
    return {**session, "permission": msgspec.json.encode(denied).decode()}


def _clear(connection: sqlite3.Connection, session: str) -> None:
    """Delete the messages of a session, and all other rows that belong to it. Its row in the table of sessions stays:
    deleting it would also delete data that only this machine has, such as the link by which others can read the
    session."""
    for table in ("part", "message", *small_tables(connection)):
        connection.execute(f"DELETE FROM {quoted(table)} WHERE session_id = ?", (session,))  # noqa: S608 - quoted


def _give_way(connection: sqlite3.Connection, coming: set[str], aside: dict[str, str]) -> None:
    """Remove sessions from the database that were copied to new keys, to make room for an exported conversation that is
    installed next. `aside` maps their old keys to the new ones. Sessions whose old keys are in `coming` are not
    removed, because the installation overwrites them. Rows of a removed session that are never exported, such as the
    link by which others can read it, are moved to its copy."""
    tables = [table for table in sorted(PRIVATE) if columns_of(connection, table)]
    for session in aside.keys() - coming:
        for table in tables:
            query = f"UPDATE {quoted(table)} SET session_id = ? WHERE session_id = ?"  # noqa: S608 - quoted
            connection.execute(query, (aside[session], session))
        connection.execute("DELETE FROM session WHERE id = ?", (session,))


def install_outputs(folder: Path, outputs: Path) -> None:
    """Copy the long tool results in the export folder `folder`, which holds Clew's copy of a conversation, to
    `outputs`, where opencode keeps them. Existing files are not replaced."""
    check_folders(outputs, outputs / "tool_")
    for name in files_in(folder / OUTPUTS):
        if name.startswith("tool_") and "/" not in name and not (outputs / name).exists():
            put(outputs / name, (folder / OUTPUTS / name).read_bytes())


def insert_session(connection: sqlite3.Connection, row: Row, cwd: Path) -> None:
    """Insert a session without messages into the database. `row` is its row in the table of sessions; the columns that
    say which folder the session belongs to are set to the working folder `cwd`."""
    _Rows(connection).insert("session", {**row, **located(connection, cwd)})


class _Rows:
    """Inserts rows into the database. They may come from another version of opencode, so columns and tables that this
    database does not have are skipped."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._columns: dict[str, tuple[str, ...]] = {}

    def insert(self, table: str, row: Row) -> None:
        if table not in self._columns:
            self._columns[table] = columns_of(self._connection, table)
        columns = [column for column in row if column in self._columns[table]]
        if columns:
            named, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
            kept = [f"{quoted(column)} = excluded.{quoted(column)}" for column in columns if column not in _NOT_HERE]
            there = f" ON CONFLICT (id) DO UPDATE SET {', '.join(kept)}" if table == "session" else ""
            self._connection.execute(
                f"INSERT INTO {quoted(table)} ({named}) VALUES ({marks}){there}",  # noqa: S608 - quoted
                [row[column] for column in columns],
            )


def _keep_aside(connection: sqlite3.Connection, key: str, coming: set[str]) -> dict[str, str]:
    """Copy a session and the sessions of its sub-agents, with their messages and to-do lists, to new keys, as opencode
    does for a fork. Returns a dict from the old key of each session to the new one.

    The copy does not get the link by which others can read a session if the session's key is in `coming`. These are the
    keys of sessions that will be written next: they keep their links.
    """
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
            old = id_in(row["id"])
            names[old] = new_session() if table == "session" else namer.next(old[:3])
    rows = _Rows(connection)
    for table, row in found:
        copy = renamed(row)
        if table == "session" and row["id"] == key:
            copy["title"] = f"{row['title']} (kept aside by Clew)"
        if table == "session" and row["id"] in coming:
            copy["share_url"] = None
        if table in ("session", "message", "part", "todo"):
            rows.insert(table, copy)
    return {old: new for old, new in names.items() if new.startswith("ses_")}


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
