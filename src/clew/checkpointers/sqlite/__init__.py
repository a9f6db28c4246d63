"""The SQLite store: threads in one file on this machine."""

from __future__ import annotations

from clew.checkpointers.sqlite.store import SQLiteCheckpointer

__all__ = ["SQLiteCheckpointer"]
