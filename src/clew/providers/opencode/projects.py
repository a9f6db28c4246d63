"""Which of opencode's projects a folder belongs to, and how a session is made to be of a folder."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from clew.providers.opencode.database import columns_of
from clew.providers.opencode.ids import now
from clew.providers.opencode.rows import Row

__all__ = ["located", "real", "settle"]

_GLOBAL = "global"
"""The project of all folders that belong to no other."""


def real(folder: Path) -> str:
    """As opencode names a folder, once it has gone there."""
    return os.path.realpath(folder)


def located(connection: sqlite3.Connection, cwd: Path) -> Row:
    """The columns of a session that say where it is.

    opencode knows a repository by its first commit, and finds that out by itself: a session of `global` in a repository's
    root becomes its project's when opencode starts there. So only projects that it knows already are looked for.
    """
    directory = real(cwd)
    project, worktree = _project(connection, Path(directory))
    return {
        "project_id": project,
        "directory": directory,
        "path": os.path.relpath(directory, worktree) if directory != worktree else "",
    }


def settle(connection: sqlite3.Connection, session: str, cwd: Path) -> None:
    """Make a session one of this folder, as opencode's own import does: it goes on nowhere but in a session's folder."""
    known = columns_of(connection, "session")
    place = {column: value for column, value in located(connection, cwd).items() if column in known}
    named = ", ".join(f"{column} = ?" for column in place)
    connection.execute(f"UPDATE session SET {named} WHERE id = ?", (*place.values(), session))  # noqa: S608


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
            f"INSERT INTO project ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608
            [row[column] for column in columns],
        )
    return _GLOBAL, "/"
