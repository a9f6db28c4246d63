"""The sessions in opencode's database: all of them, and the one that somebody means."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clew.errors import InvalidInput
from clew.providers.base import NativeSession
from clew.providers.opencode.database import select
from clew.providers.opencode.ids import is_session
from clew.providers.opencode.reading import model_name, stored

__all__ = ["find", "model_of", "sessions"]

_SHORTEST = 6
"""Characters of a part of a key, beside its prefix: all keys of one day have the first few in common."""
_PART_OF_KEY = re.compile(r"[0-9A-Za-z_]+")


_PROMPTS = """SELECT session_id, sum(substr(data, 1, 14) = '{"role":"user"') FROM message GROUP BY session_id"""


def sessions(connection: sqlite3.Connection, path: Path) -> Iterator[NativeSession]:
    """Without those of sub-agents. A prompt is known by how its row begins, so that none is read whole."""
    prompts = dict(connection.execute(_PROMPTS).fetchall())
    query = "SELECT * FROM session WHERE parent_id IS NULL ORDER BY time_updated DESC, id"
    for row in select(connection, query, ()):
        yield NativeSession(
            provider="opencode",
            key=row["id"],
            path=path,
            cwd=row["directory"],
            title=row["title"],
            turns=prompts.get(row["id"], 0),
            created_at=_time(row["time_created"]),
            updated_at=_time(row["time_updated"]),
        )


def find(connection: sqlite3.Connection, session: str) -> str | None:
    if is_session(session):
        return session if connection.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone() else None
    if not _PART_OF_KEY.fullmatch(session) or len(session.removeprefix("ses_")) < _SHORTEST:
        return None
    found = [row[0] for row in connection.execute("SELECT id FROM session WHERE instr(id, ?)", (session,))]
    if len(found) > 1:
        named = ", ".join(sorted(found)[:3])
        raise InvalidInput(
            f"{session!r} is a part of {len(found)} sessions of opencode: {named} … Give more of the name."
        )
    return str(found[0]) if found else None


def model_of(connection: sqlite3.Connection, session: str) -> str:
    """The model that answered last in this session; empty if none did."""
    query = "SELECT * FROM message WHERE session_id = ? ORDER BY time_created DESC, id DESC LIMIT 1"
    return next((model_name(stored(row, ()).info) for row in select(connection, query, (session,))), "")


def _time(value: Any) -> datetime | None:
    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, (int, float)) else None
