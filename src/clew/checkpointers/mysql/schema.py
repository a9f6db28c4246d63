"""The tables of a MySQL store, and how they are created.

All text is stored as UTF-8 bytes or as a digest of them, so that it is compared byte for byte. MySQL's collations may ignore
case, accents and spaces at the end.
"""

from __future__ import annotations

from clew.checkpointers.mysql.wire import Connection, Failure
from clew.errors import Corrupt, NewerFormat

__all__ = ["VERSION", "prepare"]

VERSION = 2
"""The version of the tables. Version 2 added the column `due`."""

_NO_SUCH_TABLE = 1146
_THERE_ALREADY = frozenset({1060, 1061})
"""The server's error codes which say that a column or an index exists already, because another process made it."""
_TABLES = (
    """
CREATE TABLE IF NOT EXISTS {prefix}heads (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    space      BINARY(16) NOT NULL,      -- of the namespace
    thread_key BINARY(32) NOT NULL,      -- blake3 of the thread id
    log        BINARY(16) NOT NULL,
    frames     BIGINT NOT NULL,
    created    BIGINT NOT NULL,          -- microseconds since 1970
    updated    BIGINT NOT NULL,
    due        BIGINT,                   -- microseconds since 1970, negative; NULL if no worker has to take the thread
    thread_id  VARBINARY(1024) NOT NULL,
    status     VARBINARY(16) NOT NULL,
    agent      BINARY(16) NOT NULL,
    parent     BINARY(16),
    title      MEDIUMBLOB NOT NULL,      -- case folded
    tags       MEDIUMBLOB NOT NULL,      -- FF name FE value FF, one after the other: bytes that UTF-8 never has
    head       MEDIUMBLOB NOT NULL,      -- the whole head: msgpack and its CRC-32, little-endian
    UNIQUE KEY by_key (space, thread_key),
    KEY by_updated (space, updated, thread_key),
    KEY by_created (space, created, thread_key),
    KEY by_due (space, due, thread_key),
    KEY by_thread_id (space, thread_id),
    KEY by_parent (space, parent)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary
""",
    """
CREATE TABLE IF NOT EXISTS {prefix}frames (
    thread BIGINT UNSIGNED NOT NULL,     -- heads.id
    number INT NOT NULL,
    data   MEDIUMBLOB NOT NULL,
    PRIMARY KEY (thread, number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary
""",
    """
CREATE TABLE IF NOT EXISTS {prefix}refs (
    thread BIGINT UNSIGNED NOT NULL,
    digest BINARY(32) NOT NULL,
    PRIMARY KEY (thread, digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary
""",
    """
CREATE TABLE IF NOT EXISTS {prefix}blobs (
    space   BINARY(16) NOT NULL,
    digest  BINARY(32) NOT NULL,
    touched BIGINT NOT NULL,             -- microseconds since 1970, by this server's clock
    PRIMARY KEY (space, digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary
""",
    """
CREATE TABLE IF NOT EXISTS {prefix}blob_data (
    space  BINARY(16) NOT NULL,
    digest BINARY(32) NOT NULL,
    part   INT NOT NULL,                 -- parts, so that a blob may be larger than any packet
    data   MEDIUMBLOB NOT NULL,
    PRIMARY KEY (space, digest, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET binary
""",
    """
CREATE TABLE IF NOT EXISTS {prefix}meta (
    id      INT NOT NULL PRIMARY KEY,
    version INT NOT NULL
) ENGINE = InnoDB
""",
)

_QUEUE = (
    "ALTER TABLE {prefix}heads ADD COLUMN due BIGINT AFTER updated",
    "ALTER TABLE {prefix}heads ADD KEY by_due (space, due, thread_key)",
)
"""What version 2 added. The server carries out both while others write. If another program keeps the table locked, such as a
backup, they give up after 5 seconds, because all other writes wait meanwhile."""


async def prepare(connection: Connection, prefix: str, where: str) -> None:
    """Create the store's tables unless they exist, and add to older ones what they lack. `prefix` is the text with
    which their names start. Raises `NewerFormat` if a newer Clew made them. `where` names the store in errors.

    Any number of processes may do this at once, and any may stop half way. Each step skips what exists, and the version
    is written last, so a store that has a version is complete.
    """
    version = await _version(connection, prefix)
    if version is None:
        for table in _TABLES:
            await connection.run(table.format(prefix=prefix).strip().encode())
        await connection.run(f"INSERT IGNORE INTO {prefix}meta VALUES (1, {VERSION})".encode())  # noqa: S608 - a checked prefix
        version = await _version(connection, prefix)
    if version is not None and version < 2:
        await connection.run(b"SET SESSION lock_wait_timeout = 5")
        for step in _QUEUE:
            await _add(connection, step.format(prefix=prefix))
        await connection.run(b"SET SESSION lock_wait_timeout = DEFAULT")
        raised = f"UPDATE {prefix}meta SET version = {VERSION} WHERE id = 1 AND version < {VERSION}"  # noqa: S608 - a checked prefix
        await connection.run(raised.encode())
        version = VERSION
    if version is None:
        raise Corrupt(f"{where} does not say which version it has. Restore a copy.")
    if version > VERSION:
        raise NewerFormat(where, version, VERSION)


async def _add(connection: Connection, step: str) -> None:
    """Run a statement that adds a column or an index. Does nothing if that exists already."""
    try:
        await connection.run(step.encode())
    except Failure as failure:
        if failure.code not in _THERE_ALREADY:
            raise


async def _version(connection: Connection, prefix: str) -> int | None:
    try:
        [[_, rows]] = await connection.run(f"SELECT version FROM {prefix}meta WHERE id = 1".encode())  # noqa: S608 - a checked prefix
    except Failure as failure:
        if failure.code == _NO_SUCH_TABLE:
            return None
        raise
    return int(rows[0][0]) if rows else None
