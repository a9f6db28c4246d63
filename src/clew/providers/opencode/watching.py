"""Finds the tool calls that opencode has begun: it prints a call only when it is done, but its database has it before."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from clew.providers.base import values
from clew.providers.opencode.database import connect, select
from clew.providers.opencode.rows import Row

__all__ = ["RunningCalls"]

_PRINTED = {"text": "text", "reasoning": "reasoning", "tool": "tool_use"}
"""What opencode calls a part where it prints it, by what it calls it in its database."""
_RECENT = 2
"""How many of the newest messages are looked at: a response is one, and a prompt may stand behind it."""


class RunningCalls:
    """Looks at one session while opencode works on it. A look at a database that has not changed takes microseconds."""

    def __init__(self, path: Path, session: str) -> None:
        """What the session holds by now is not looked at again. `path` need not be there yet."""
        self._path = path
        self._session = session
        self._connection: sqlite3.Connection | None = None
        self._version = -1
        self._start = (-1, "")
        self._told: set[str] = set()
        try:
            self._start = self._newest() or self._start
        except sqlite3.Error:
            self.close()

    def look(self) -> list[bytes]:
        """Return a line, in the form that opencode prints, for each tool call that runs and was not returned before, and
        for the finished parts of the same response in front of it. Returns nothing where the database cannot be read."""
        try:
            connection = self._connected()
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version == self._version:
                return []
            lines = self._changes(connection)
            self._version = version
        except sqlite3.Error:
            self.close()
            return []
        return lines

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._version = -1

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path, "ro", wait=0.0, any_thread=True)
        return self._connection

    def _newest(self) -> tuple[int, str] | None:
        query = "SELECT time_created, id FROM message WHERE session_id = ? ORDER BY time_created DESC, id DESC LIMIT 1"
        found: tuple[int, str] | None = self._connected().execute(query, (self._session,)).fetchone()
        return found

    def _changes(self, connection: sqlite3.Connection) -> list[bytes]:
        """In the order of the parts. All of them are of one moment, as each is one query."""
        rows = select(
            connection,
            "SELECT id, message_id, data FROM part WHERE message_id IN (SELECT id FROM message WHERE session_id = ? "
            "AND (time_created, id) > (?, ?) ORDER BY time_created DESC, id DESC LIMIT ?) ORDER BY message_id, id",
            (self._session, *self._start, _RECENT),
        )
        messages: dict[str, list[Row]] = {}
        for row in rows:
            messages.setdefault(row["message_id"], []).append(row)
        return [line for parts in messages.values() for line in self._begun([_part(row) for row in parts])]

    def _begun(self, parts: list[dict[str, Any]]) -> list[bytes]:
        running = [at for at, part in enumerate(parts) if _status(part) == "running" and part["id"] not in self._told]
        if not running:
            return []
        lines = []
        for part in parts[: running[-1] + 1]:
            if part["id"] not in self._told and (_status(part) == "running" or values(part.get("time")).get("end")):
                self._told.add(part["id"])
                lines.append(msgspec.json.encode({"type": _PRINTED[part["type"]], "part": part}))
        return lines


def _part(row: Row) -> dict[str, Any]:
    """As opencode prints it: with its names beside it. One that it does not print is left empty."""
    try:
        data = values(msgspec.json.decode(row["data"]))
    except (msgspec.DecodeError, TypeError):
        data = {}
    kept = data if data.get("type") in _PRINTED else {}
    return {**kept, "id": row["id"], "messageID": row["message_id"]}


def _status(part: dict[str, Any]) -> Any:
    return values(part.get("state")).get("status")
