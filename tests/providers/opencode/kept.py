"""A machine on which the seen version of opencode has worked: its database, as real runs left it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from clew.providers.base import Place
from clew.providers.opencode import OpenCode

__all__ = ["ANSWERED", "COMPACTED", "FAILED", "FIXTURES", "WITH_CHILD", "change", "database", "machine"]

FIXTURES = Path(__file__).with_name("fixtures") / "1.18.33"
ANSWERED = "ses_e1fb1a8bf5a8RZXCXZ1oOpxJrJ"
WITH_CHILD = "ses_e1fb1a8bfcdaEXSRuDpL6qltpv"
COMPACTED = "ses_e1fb1a8ba9a5kNVw7qcq61vmNF"
FAILED = "ses_e1fb1a8baebctvz4NKjhosUo8o"


def machine(root: Path, *, empty: bool = False) -> OpenCode:
    """With a home and a folder of its own. `empty`: nobody has talked to opencode there yet."""
    cwd = root / "project"
    cwd.mkdir(parents=True)
    opencode = OpenCode(Place(cwd, {"HOME": str(root / "home"), "PATH": ""}))
    path = database(opencode)
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.executescript((FIXTURES / "database.sql").read_text())
    if empty:
        for table in ("part", "message", "todo", "session", "project"):
            connection.execute(f"DELETE FROM {table}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.commit()
    connection.close()
    return opencode


def database(opencode: OpenCode) -> Path:
    return opencode.place.home / ".local" / "share" / "opencode" / "opencode.db"


def change(opencode: OpenCode, *statements: str) -> None:
    """As opencode would, behind Clew's back."""
    connection = sqlite3.connect(database(opencode))
    connection.execute("PRAGMA foreign_keys = ON")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
