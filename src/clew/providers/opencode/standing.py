"""How a conversation in opencode's database stands to one in a folder."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from clew.providers.base import Standing
from clew.providers.opencode.exporting import tree
from clew.providers.opencode.folders import load, rows_of

__all__ = ["standing"]

_Name = tuple[str, str]


def standing(connection: sqlite3.Connection, key: str, folder: Path) -> Standing:
    """Messages and parts are compared by their names; one that both have is the newer one's where it differs."""
    sessions = tree(connection, key)
    if not sessions:
        return "absent"
    here = _times(connection, sessions)
    more_here = more_there = False
    common = 0
    for sheet in load(folder).sessions:
        for table, row in rows_of(folder, sheet):
            name = (table, row["id"])
            if name not in here:
                more_there = True
                continue
            common += 1
            if here[name] != row["time_updated"] and _data(connection, name) != row["data"]:
                more_here |= here[name] > row["time_updated"]
                more_there |= here[name] < row["time_updated"]
    more_here |= common < len(here)
    if more_here and more_there:
        return "apart"
    return "ahead" if more_here else "behind" if more_there else "same"


def _times(connection: sqlite3.Connection, sessions: list[str]) -> dict[_Name, int]:
    found: dict[_Name, int] = {}
    for session in sessions:
        for table in ("message", "part"):
            query = f"SELECT id, time_updated FROM {table} WHERE session_id = ?"  # noqa: S608
            found.update({(table, name): updated for name, updated in connection.execute(query, (session,))})
    return found


def _data(connection: sqlite3.Connection, name: _Name) -> str:
    query = f"SELECT data FROM {name[0]} WHERE id = ?"  # noqa: S608
    data: str = connection.execute(query, (name[1],)).fetchone()[0]
    return data
