"""Opens the file of a SQLite store beside the store, to look into it or to damage it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

__all__ = ["database"]


@contextmanager
def database(path: Path) -> Iterator[apsw.Connection]:
    """A connection to a SQLite file, by the library that the store uses. With Python's own library, closing this
    connection would drop the locks of a store that has the file open in the same process."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(30_000)
        yield connection
