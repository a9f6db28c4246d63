"""SQLite files that somebody prepared: nothing in them runs, and none takes long."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from clew.checkpointers import SQLiteCheckpointer
from clew.checkpointers.sqlite.backup import backup
from clew.checkpointers.sqlite.connection import connect
from clew.errors import Corrupt
from clew.testing.contract.builders import append, heads, listed
from tests.limits import processor_time
from tests.sqlite_files import database

pytestmark = [pytest.mark.anyio, pytest.mark.attack]

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x"
COLUMNS = "id, ns, key, log_id, frames, thread_id, status, agent, parent, created, updated, head, title, tags"
HEADS = ", ".join(f"x AS {column}" for column in COLUMNS.split(", "))
HOSTILE = {
    "an endless view instead of the heads": [
        "DROP TABLE heads",
        f"CREATE VIEW heads AS {ENDLESS} AS more, {HEADS} FROM n",
    ],
    "an endless view instead of the packs": [
        "DROP TABLE packs",
        f"CREATE VIEW packs AS {ENDLESS} AS thread, x AS number, 1 AS count, x AS data FROM n",
    ],
    "a view that nobody asks": ["CREATE VIEW theirs AS SELECT 1"],
    "a trigger": ["CREATE TRIGGER theirs AFTER INSERT ON frames BEGIN DELETE FROM heads; END"],
    "a virtual table": ["CREATE VIRTUAL TABLE theirs USING fts5(text)"],
    "a virtual table instead of the refs": ["DROP TABLE refs", "CREATE VIRTUAL TABLE refs USING fts5(thread, digest)"],
    "a computed column": ["ALTER TABLE heads ADD COLUMN more AS (hex(zeroblob(10000)))"],
    "a column more": ["ALTER TABLE frames ADD COLUMN more DEFAULT 'theirs'"],
    "an index over an expression": ["CREATE INDEX theirs ON heads (hex(zeroblob(10000)))"],
    "an index with a condition": [
        "DROP INDEX heads_by_key",
        "CREATE UNIQUE INDEX heads_by_key ON heads (ns, key) WHERE status = 'done'",
    ],
}


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store with one thread."""
    found = tmp_path / "clew.db"
    async with SQLiteCheckpointer(found) as store:
        await append(store, "t", b"frame")
    return found


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_file_that_would_run_what_its_author_wrote_is_refused_at_opening(path: Path, what: str) -> None:
    with database(path) as db:
        for statement in HOSTILE[what]:
            db.execute(statement)
    with processor_time(20):
        async with SQLiteCheckpointer(path) as store:
            with pytest.raises(Corrupt, match=r"no version of Clew makes|its tables are lost"):
                await heads(store)
            with pytest.raises(Corrupt):
                await append(store, "t", b"more", at=1)
        with pytest.raises(Corrupt):
            backup(path, path.with_name("copy.db"))


async def test_tables_that_the_owner_added_are_left_alone(path: Path) -> None:
    with database(path) as db:
        db.execute("CREATE TABLE mine (x, y)")
        db.execute("CREATE INDEX by_y ON mine (y)")
        db.execute("ANALYZE")
    async with SQLiteCheckpointer(path) as store:
        await append(store, "t", b"more", at=1)
        assert await listed(store) == ["t"]


async def test_what_is_put_into_a_file_after_it_was_opened_does_not_run_either(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        assert await listed(store) == ["t"]
        with database(path) as db:
            db.execute("CREATE TRIGGER theirs AFTER INSERT ON frames BEGIN DELETE FROM heads; END")
            db.execute("DROP TABLE packs")
            db.execute(f"CREATE VIEW packs AS {ENDLESS} AS thread, x AS number, 1 AS count, x AS data FROM n")
        with processor_time(20):
            with pytest.raises(Corrupt):
                await store.read("t")
            assert await listed(store) == ["t"]


async def test_a_connection_trusts_nothing_in_the_file(path: Path) -> None:
    connection = connect(path)
    try:
        assert connection.execute("PRAGMA trusted_schema").get == 0
        assert connection.execute("PRAGMA cell_size_check").get == 1
    finally:
        connection.close()


async def test_pages_that_point_at_one_page_many_times_over_do_not_make_a_listing_endless(path: Path) -> None:
    """A hundred pointers on each of 16 levels: a table of 10^32 rows in a few kilobytes."""
    levels, pointers = 16, 100
    with database(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'heads'").get
        size = db.execute("PRAGMA page_size").get
    data = bytearray(path.read_bytes())
    count = len(data) // size
    leaf = data[(root - 1) * size : root * size]
    pages = [inner_page(size, count + level + 2, pointers) for level in range(levels)]
    data[(root - 1) * size : root * size] = inner_page(size, count + 1, pointers)
    data += b"".join(pages) + leaf
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)
    with processor_time(60):
        async with SQLiteCheckpointer(path) as store:
            with pytest.raises(Corrupt, match="more steps to read than its size explains"):
                await heads(store)


def inner_page(size: int, child: int, pointers: int) -> bytes:
    """An inner page of a table's tree, all of whose pointers go to one page."""
    cell = struct.pack(">IB", child, 1)
    start = size - len(cell) * pointers
    places = b"".join(struct.pack(">H", start + len(cell) * number) for number in range(pointers))
    header = struct.pack(">BHHHBI", 5, 0, pointers, start, 0, child)
    return (header + places).ljust(start, b"\0") + cell * pointers
