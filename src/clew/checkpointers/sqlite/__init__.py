"""The embedded store: one SQLite file."""

from __future__ import annotations

from clew.checkpointers.sqlite.store import SQLiteCheckpointer

__all__ = ["SQLiteCheckpointer"]
