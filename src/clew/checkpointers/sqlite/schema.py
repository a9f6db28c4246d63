"""The tables of a SQLite store, their migration, and the check that a database file is a store."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import shlex
from pathlib import Path

import apsw

from clew._runtime import files
from clew.checkpointers.heads import Head
from clew.checkpointers.sql.heads import decode_head, tags_column, title_column
from clew.checkpointers.sqlite.connection import LockWait, configure, connect, limit_steps, remove, roll_back, use_wal
from clew.errors import Corrupt, InvalidInput, NewerFormat

__all__ = ["CHECKPOINT_AFTER", "PAGE_SIZE", "VERSION", "check", "create", "migrate", "show_as_newest"]

APPLICATION_ID = 0x434C4557
"""The bytes "CLEW" as a number. It is written into the database file, where Clew and the program `file` recognise a
store by it."""
VERSION = 5
"""The version of the tables. Version 2 added the indexes by time, version 3 the columns `title` and `tags`, version 4 the
table `packs`, version 5 the column `due`."""

PAGE_SIZE = 4096
"""Bytes of a page of a new database; stores that were made by version 3 and before have 8192. With frames of 1 to 2 KB, a
page of 4096 bytes wastes a fifth of its space until the frames are packed. Larger pages write twice as much to the WAL
(SQLite's write-ahead log), and each table takes at least one."""

CHECKPOINT_AFTER = 256
"""When the WAL (SQLite's write-ahead log) has this many pages, the writer moves them to the database. A WAL that is
soon overwritten instead of growing syncs in two thirds of the time (measured)."""

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
INDEXES = """
CREATE INDEX heads_by_updated ON heads (ns, updated, key);
CREATE INDEX heads_by_created ON heads (ns, created, key);
"""
"""The indexes from which a page of a listing is read in order. Every append moves its thread's entry in the first one,
which makes an append write one more page of the database."""

COLUMNS = """
ALTER TABLE heads ADD COLUMN title BLOB NOT NULL DEFAULT x'';
ALTER TABLE heads ADD COLUMN tags BLOB NOT NULL DEFAULT x'';
"""
"""The columns that a listing searches for a title or a tag: what `title_column` and `tags_column` make of the head's
title and tags. Without them every head has to be decoded. That takes 20 times as long, and 200 times while another
thread of the process is busy, because `apsw` releases the interpreter lock at every row (measured)."""

PACKS = """
CREATE TABLE packs (              -- frames that have been joined, see packs.py
    thread INTEGER NOT NULL,      -- heads.id
    number INTEGER NOT NULL,      -- of the first frame
    count  INTEGER NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (thread, number)
) WITHOUT ROWID;
"""

QUEUE = """
ALTER TABLE heads ADD COLUMN due INTEGER;
CREATE INDEX heads_by_due ON heads (ns, due, key) WHERE due IS NOT NULL;
"""
"""The column by which the queue of the workers is listed: what `due_place` makes of the head, and NULL for a thread that
is not in the queue. Only queued threads are in the index. So listing them takes the same time however many others there
are, and an append to another thread changes nothing in the index. No store of an older version has queued threads."""

_FORMATS = 18
"""The offset in a database file of two bytes that say in which formats the file is to be written and read; they also
show whether it is in WAL mode. If these bytes are damaged, SQLite only says that the file may not be written."""
_TABLES = {"heads", "frames", "refs", "blobs", "blob_data"}


def create(path: Path) -> None:
    """Create an empty store. It appears under its name only when it is complete, so that a store is never an empty
    file. If another process has created the file meanwhile, that file stays. Raises `Corrupt` if a write-ahead log is
    there without its database."""
    if files.size(f"{path}-wal"):
        if path.exists():  # another process has just created it, and writes to it already
            return
        raise Corrupt(
            f"{path} is gone, but {path.name}-wal beside it still holds a part of it. Restore the store from a copy, or "
            "move that file away to start a new store."
        )
    files.sync_path(path.parent)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        files.make_private_file(temporary)
        wait = LockWait(temporary, 0.0)  # nobody else knows this file
        with contextlib.closing(connect(temporary, wait=wait)) as connection:
            configure(connection)
            migrate(connection, str(path), wait)
        files.publish(temporary, path)
    finally:
        remove(temporary)


def check(connection: apsw.Connection, where: str) -> None:
    """Check that the database is empty or is a store that this version of Clew can use. Changes nothing. `where` names
    the database in errors.

    Raises `InvalidInput` if it is the database of another program, and `NewerFormat` if a later version of Clew made
    it. Raises `Corrupt` if it is a store whose tables are lost, or whose application id and version in the file's
    header are lost. Also raises `Corrupt` if it holds what no store holds: a view, a trigger, a virtual table, or one
    of Clew's tables or indexes with another definition.
    """
    limit_steps(connection, Path(where))
    try:
        if _version(connection, where):
            _check_objects(connection, where)
    finally:
        connection.set_progress_handler(None)


def _check_objects(connection: apsw.Connection, where: str) -> None:
    """Raise `Corrupt` if the database of a store holds a view, a trigger or a virtual table, or if a table or index of
    the store has another definition than Clew gave it. With any of these, somebody who changed the file could make
    SQLite run what they wrote into it. Other tables that somebody added, and their indexes, are left alone: Clew never
    touches them. `where` names the database in the error."""
    for kind, name, table, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"):
        is_ours = table in _TABLES | {"packs"}
        is_plain = kind in ("table", "index") and not _plain_sql(sql).startswith("create virtual")
        if not is_plain or (is_ours and sql is not None and _plain_sql(sql) not in _definitions()):
            raise Corrupt(
                f"{where} holds the {kind} {name!r} in a form that no version of Clew makes. Such a file can run what its "
                "author wrote into it, so it is not opened. Restore the store from a copy, or move the file away."
            )


@functools.cache
def _definitions() -> set[str]:
    """Return the SQL definitions of all tables and indexes that a store of any version of Clew can have. Each is in
    lower case, without comments and with single spaces, so that it can be compared with others."""
    found: set[str] = set()
    with contextlib.closing(apsw.Connection(":memory:")) as model:
        for step in (TABLES, INDEXES, COLUMNS, PACKS, QUEUE):
            model.execute(step)
            found.update(_plain_sql(sql) for (sql,) in model.execute("SELECT sql FROM sqlite_schema") if sql)
    return found


def _plain_sql(sql: object) -> str:
    """Return an SQL definition without comments, in lower case and with single spaces. Definitions are compared in this
    form, because two versions of Clew may write the definition of the same table with other comments, capital letters
    or spaces."""
    return " ".join(_COMMENT.sub(" ", str(sql)).lower().split())


_COMMENT = re.compile(r"--[^\n]*")


def migrate(connection: apsw.Connection, where: str, wait: LockWait) -> None:
    """Bring a database to the current version and into WAL mode. An empty database gets all tables; a store of an older
    version gets what later versions have added. Raises `InvalidInput` if it is the database of another program,
    `NewerFormat` if a later version of Clew made it, `Corrupt` if it is a store whose tables are lost, and
    `Unavailable` if it cannot be changed to WAL mode.

    The change is one transaction. Several processes may do this at the same time, and processes that have the store
    open can go on. `where` names the database in errors. `wait` decides how long to wait for the locks of others.
    """
    version = _version(connection, where)
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only here: this writes to the file
    use_wal(connection, where, wait)
    if version == VERSION:
        return
    _add_functions(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, where)
        if version == 0:
            connection.execute(TABLES)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        if version < 2:
            connection.execute(INDEXES)
        if version < 3:
            connection.execute(COLUMNS)
            connection.execute("UPDATE heads SET title = clew_title(head), tags = clew_tags(head)")
        if version < 4:
            connection.execute(PACKS)
        if version < 5:
            connection.execute(QUEUE)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def show_as_newest(connection: apsw.Connection, where: str) -> None:
    """Make a store that cannot be written look to this connection as if its tables had the current version. Columns
    that an older version lacks are computed by a temporary view, and a table that it lacks is an empty temporary one.
    `where` names the database in errors."""
    version = _version(connection, where)
    if version < 4:
        connection.execute("CREATE TEMP TABLE packs (thread, number, count, data)")
    if version < 5:
        added = "NULL AS due"
        if version < 3:
            _add_functions(connection)
            added += ", clew_title(head) AS title, clew_tags(head) AS tags"
        connection.execute(f"CREATE TEMP VIEW heads AS SELECT *, {added} FROM main.heads")  # noqa: S608 - our columns


def _add_functions(connection: apsw.Connection) -> None:
    """Add the SQL functions `clew_title` and `clew_tags` to this connection. They take a stored head and return the
    values of its columns `title` and `tags`. For a damaged head they return an empty value, as for a thread without
    title and tags."""
    connection.create_scalar_function("clew_title", _title_of, 1, deterministic=True)
    connection.create_scalar_function("clew_tags", _tags_of, 1, deterministic=True)


def _title_of(*values: object) -> bytes:
    head = _sound(values[0])
    return title_column(head.title) if head else b""


def _tags_of(*values: object) -> bytes:
    head = _sound(values[0])
    return tags_column(head.tags) if head else b""


def _sound(data: object) -> Head | None:
    with contextlib.suppress(Corrupt):  # a listing reports it
        return decode_head(data, "", "")
    return None


def _version(connection: apsw.Connection, where: str) -> int:
    """Return the schema version of the database, 0 if it is empty. Raises `InvalidInput` if it is the database of
    another program, and `NewerFormat` if a later version of Clew made it. Raises `Corrupt` if it is a store whose
    tables, or whose application id and version in the file's header, are lost. `where` names the database in errors.
    """
    if not set(connection.read("main", 0, _FORMATS, 2)[1]) <= {0, 1, 2}:
        raise Corrupt(f"{where} is a store, but its header is damaged. Restore it from a copy, or move it away.")
    with connection:  # one transaction, because another process may be creating the store
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        version = int(connection.execute("PRAGMA user_version").get)
        application = connection.execute("PRAGMA application_id").get
    is_marked, has_tables = application == APPLICATION_ID, tables >= _TABLES
    if not tables and not application and not version:
        return 0
    if is_marked and version > VERSION:
        raise NewerFormat(where, version, VERSION)
    if not is_marked and not has_tables:
        raise InvalidInput(f"{where} is the database of another program. Give Clew a file of its own.")
    if not application and not version:
        raise Corrupt(
            f"{where} is a store, but its marks are lost, as in a database that was restored from a dump: a dump leaves out "
            f"two settings. If it was, write them back: {_remark(connection, where)}"
        )
    if not (is_marked and has_tables and version > 0):
        lost = "its tables are lost" if is_marked else "its header is damaged"
        raise Corrupt(f"{where} is a store, but {lost}. Restore it from a copy, or move it away.")
    return version


def _remark(connection: apsw.Connection, where: str) -> str:
    """Return a shell command that repairs a store which has all of its tables, but has lost the application id and the
    version in the header of its file. The command writes both back. The version is derived from the tables, columns and
    indexes that exist. `where` is the path of the file."""
    columns = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('heads')")}
    has_packs = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'packs'").get
    indexes = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}
    version = (
        5
        if "due" in columns
        else 4
        if has_packs
        else 3
        if "title" in columns
        else 2
        if "heads_by_updated" in indexes
        else 1
    )
    pragmas = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};"
    return f'sqlite3 {shlex.quote(where)} "{pragmas}"'
