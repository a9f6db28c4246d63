"""The tables and settings of a SQLite store, and the check that a database file is one."""

from __future__ import annotations

import sqlite3
import sys

from clew.errors import InvalidInput, NewerFormat

__all__ = ["VERSION", "check", "configure", "migrate"]

APPLICATION_ID = 0x434C4557
"""The bytes "CLEW" as a number. It is written into the database file, where Clew and the program `file` recognise a
store by it."""
VERSION = 1

PAGE_SIZE = 8192
"""Bytes of a page of the database. Measured with frames of 1 to 2 KB: a page of 4096 bytes wastes a fifth of its space;
pages of 16384 bytes write twice as much to the WAL (SQLite's write-ahead log)."""

CHECKPOINT_AFTER = 256
"""When the WAL (SQLite's write-ahead log) has this many pages, the writer moves them to the database. A WAL that is
soon overwritten instead of growing syncs in two thirds of the time (measured)."""
CHECKPOINT_AT_MOST = 1024
"""When the WAL (SQLite's write-ahead log) has this many pages, SQLite itself moves them to the database before a commit
returns. This applies only to transactions whose pages the writer does not count."""

TABLES = """
CREATE TABLE heads (
    id        INTEGER PRIMARY KEY,
    ns        TEXT NOT NULL,
    key       BLOB NOT NULL,      -- blake3 of the thread id
    log_id    TEXT NOT NULL,
    frames    INTEGER NOT NULL,
    thread_id TEXT NOT NULL,
    status    TEXT NOT NULL,
    agent     TEXT NOT NULL,
    parent    TEXT,
    created   INTEGER NOT NULL,   -- microseconds since 1970
    updated   INTEGER NOT NULL,
    head      BLOB NOT NULL       -- the whole head: msgpack and its CRC-32, little-endian
);
CREATE UNIQUE INDEX heads_by_key ON heads (ns, key);
-- No index by time: every append would have to move its entry. Sorting 10,000 heads takes some milliseconds.

CREATE TABLE frames (             -- in the order of arrival, so that the frames of many threads share a page
    id     INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,      -- heads.id
    number INTEGER NOT NULL,
    data   BLOB NOT NULL
);
CREATE UNIQUE INDEX frames_by_number ON frames (thread, number);

CREATE TABLE refs (
    thread INTEGER NOT NULL,      -- heads.id
    digest BLOB NOT NULL,
    PRIMARY KEY (thread, digest)
) WITHOUT ROWID;

CREATE TABLE blobs (
    id      INTEGER PRIMARY KEY,
    ns      TEXT NOT NULL,
    digest  BLOB NOT NULL,
    touched INTEGER NOT NULL      -- microseconds since 1970; apart from the data, so that a touch is cheap
);
CREATE UNIQUE INDEX blobs_by_digest ON blobs (ns, digest);
CREATE TABLE blob_data (
    id   INTEGER PRIMARY KEY,     -- blobs.id
    data BLOB NOT NULL
);
"""


def configure(connection: sqlite3.Connection) -> None:
    """Apply the settings that every connection needs. With them a write that was acknowledged is on the disk, not in a
    cache."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_AT_MOST}")
    connection.execute("PRAGMA temp_store = MEMORY")
    if sys.platform == "darwin":
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")


def check(connection: sqlite3.Connection, where: str) -> None:
    """Raise `InvalidInput` or `NewerFormat` unless the database is empty or is a store that this version of Clew can
    use. Changes nothing. `where` names the database in errors."""
    _version(connection, where)


def migrate(connection: sqlite3.Connection, where: str) -> None:
    """Create the tables in an empty database. In any other, only check that it is a store that this version of Clew can
    use, and raise `InvalidInput` or `NewerFormat` if not. Several processes may do this at the same time. `where` names
    the database in errors."""
    if _version(connection, where) < VERSION:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # writes, which readers must not
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection, where) == 0:
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _version(connection: sqlite3.Connection, where: str) -> int:
    """Return the schema version of the database, 0 if it is empty. Raises `InvalidInput` if it is the database of
    another program, and `NewerFormat` if it was made by a later version of Clew.

    Tables are counted before the application id is read. So if another process creates the store in between, its id is
    seen too, and its tables are not taken for those of another program.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID and (tables or application):
        raise InvalidInput(f"{where} is the database of another program. Give Clew a file of its own.")
    if version > VERSION:
        raise NewerFormat(where, version, VERSION)
    return int(version)
