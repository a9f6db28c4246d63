"""Limits the work that a SQLite file can make its reader do.

SQLite trusts the file that it reads. A hostile file of a few kilobytes can hold a table whose pages point at the same
page again and again, so that a query takes years. SQLite can call a function, a progress handler, after every so many
steps of its virtual machine. The handler in this module ends a statement that takes more steps than reading a file of
this size can need.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["STEPS", "StepLimit"]

STEPS = 1_000_000
"""How many steps of SQLite's virtual machine lie between two calls of a `StepLimit`. They take some 10 ms."""
_ALWAYS = 50 * STEPS
_FOR_A_BYTE = 50
"""A transaction may take `_ALWAYS` steps, and `_FOR_A_BYTE` more for each byte of the database. A row has at least ten
bytes, and reading it takes 10 to 30 steps."""


class StepLimit:
    """A progress handler for one transaction on the database file `path`. SQLite is to call it every `STEPS` steps. It
    returns True, which ends the statement with an error, once the transaction has taken more steps than reading a
    database of this size can need."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._taken = 0

    def __call__(self) -> bool:
        self._taken += STEPS
        return self._taken > _ALWAYS and self._taken > _ALWAYS + _FOR_A_BYTE * self._size()

    def _size(self) -> int:
        """Return the bytes that the database file and its write-ahead log take together. A missing file counts as 0."""
        total = 0
        for name in (self._path, f"{self._path}-wal"):
            try:
                total += os.stat(name).st_size
            except OSError:
                continue  # no log, or a database that was deleted meanwhile
        return total
