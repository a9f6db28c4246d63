"""SQLite files that are not as this version would make them: of an older version, in another journal mode, damaged, empty,
half gone or read-only; and that a process uses one SQLite library for them."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from clew.checkpointers import HeadQuery, SQLiteCheckpointer, open_checkpointer
from clew.checkpointers.sqlite import connection, schema
from clew.checkpointers.sqlite.backup import backup
from clew.checkpointers.sqlite.store import _listing
from clew.errors import Corrupt, InvalidInput, NewerFormat, Unavailable
from clew.providers.opencode import database as database_of_opencode
from clew.testing.contract.builders import append, digest_of, heads, listed, minute, state
from tests.checkpointers.scripts import _PREAMBLE, race, run_script
from tests.sqlite_files import database

pytestmark = pytest.mark.anyio

VERSION_1 = Path(__file__).with_name("sqlite_version_1.db.gz")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clew.db"


@pytest.fixture
def old(path: Path) -> Path:
    """A store that was made when the tables had version 1, with five threads and one in another namespace."""
    path.write_bytes(gzip.decompress(VERSION_1.read_bytes()))
    path.chmod(0o600)
    return path


def age(path: Path, version: int) -> None:
    """Bring the tables of a store back to an older version."""
    with database(path) as db:
        db.execute("DROP INDEX heads_by_due; ALTER TABLE heads DROP COLUMN due")
        if version < 4:
            db.execute("DROP TABLE packs")
        for column in ("title", "tags") if version < 3 else ():
            db.execute(f"ALTER TABLE heads DROP COLUMN {column}")
        if version == 1:
            db.execute("DROP INDEX heads_by_updated")
            db.execute("DROP INDEX heads_by_created")
        db.execute(f"PRAGMA user_version = {version}")


def value(path: Path, statement: str) -> object:
    with database(path) as db:
        return db.execute(statement).get


def indexes(path: Path) -> set[object]:
    with database(path) as db:
        return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql NOT NULL")}


# Version 1


async def check_content(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store, SQLiteCheckpointer(path, namespace="other") as other:
        for number in range(1, 6):
            frames, head, refs = await state(store, f"thread {number}")
            assert frames == [b"frame %d.%d" % (number, at) for at in range(number)]
            assert head is not None
            assert head.frames == number
            assert refs == ({digest_of(b"a blob")} if number == 5 else set())
        assert await store.get_blobs([digest_of(b"a blob")]) == {digest_of(b"a blob"): b"a blob"}
        assert await other.read("thread 1") == [b"elsewhere"]


async def test_a_store_of_version_1_is_migrated_in_place_and_keeps_everything(old: Path) -> None:
    await check_content(old)
    assert value(old, "PRAGMA user_version") == schema.VERSION == 5
    assert {"heads_by_updated", "heads_by_created"} <= indexes(old)
    await check_content(old)
    async with SQLiteCheckpointer(old) as store:
        assert await listed(store, order="created") == ["thread 5", "thread 4", "thread 3", "thread 2", "thread 1"]
        await append(store, "thread 1", b"more", at=1)
        assert await store.read("thread 1") == [b"frame 1.0", b"more"]


async def test_a_migrated_store_has_the_tables_and_indexes_of_a_new_one(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    for path in (old, new):
        async with SQLiteCheckpointer(path) as store:
            await store.head("thread")
    statement = "SELECT name, sql FROM sqlite_schema ORDER BY name"
    with database(old) as migrated, database(new) as made:
        assert migrated.execute(statement).fetchall() == made.execute(statement).fetchall()


async def test_a_store_of_version_1_is_migrated_while_others_have_it_open(old: Path) -> None:
    writer = apsw.Connection(str(old))  # a process of before: it goes on with the statements that it has prepared
    insert = "UPDATE heads SET updated = updated + 1 WHERE thread_id = 'thread 3'"
    writer.execute(insert)
    await race(4, "async def main():\n    await all_are_ready()\n    async with SQLiteCheckpointer(path) as store:\n"
                  "        assert len(await listed(store)) == 5\nasyncio.run(main())", str(old))  # fmt: skip
    writer.execute(insert)
    writer.close()
    await check_content(old)
    with database(old) as db:
        assert db.execute("PRAGMA integrity_check").get == "ok"


async def test_a_migration_that_is_broken_off_leaves_version_1(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "INDEXES", schema.INDEXES + "CREATE INDEX again ON heads (no_such_column);")
    async with SQLiteCheckpointer(old) as store:
        with pytest.raises(Corrupt):
            await store.read("thread 1")
    assert value(old, "PRAGMA user_version") == 1
    assert "heads_by_updated" not in indexes(old)
    monkeypatch.undo()
    await check_content(old)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("read_only", [False, True])
async def test_titles_and_tags_of_an_older_store_are_found(
    path: Path, version: int, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SQLiteCheckpointer(path) as store:
        for number in range(5):
            await append(store, f"thread {number}", b"frame", title=f"Straße {number}", tags={"n": str(number % 2)})
        await append(store, "damaged", b"frame", title="Straße")
    with database(path) as db:
        db.execute("UPDATE heads SET head = substr(head, 2) WHERE thread_id = 'damaged'")
    age(path, version)
    if read_only:
        monkeypatch.setattr("clew.checkpointers.sqlite.file.is_read_only", lambda _: True)
    async with SQLiteCheckpointer(path) as store:
        assert sorted(await listed(store, title="STRASSE 3")) == ["thread 3"]
        assert sorted(await listed(store, tags={"n": "1"})) == ["thread 1", "thread 3"]
        assert await listed(store, tags={"n": "1"}, title="strasse 2") == []
        with pytest.raises(Corrupt, match="'damaged'"):
            await listed(store)
    assert value(path, "PRAGMA user_version") == (version if read_only else schema.VERSION)


async def test_a_backup_of_a_store_of_version_1_is_one_too(old: Path, tmp_path: Path) -> None:
    copy = backup(old, tmp_path / "copy.db").path
    assert value(copy, "PRAGMA user_version") == 1
    await check_content(copy)


async def test_a_page_of_a_listing_is_read_from_an_index(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"frame", due=minute(1))
        last = (await heads(store))[-1]
    with database(path) as db:
        for query in (
            HeadQuery(limit=50),
            HeadQuery(limit=50, order="created"),
            HeadQuery(limit=50).after(last),
            HeadQuery(limit=50, title="a", tags={"b": "c"}, status="done"),
            HeadQuery(order="due"),
            HeadQuery(order="due", limit=50, agent="a", tags={"b": "c"}, status=("queued", "running")),
            HeadQuery(order="due", limit=50, updated_after=minute(0), updated_before=minute(1)).after(last),
        ):
            statement, values = _listing("", query)
            plan = " ".join(str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values))
            assert f"heads_by_{query.order}" in plan
            assert "TEMP B-TREE" not in plan


async def test_no_head_is_read_that_has_not_the_title_and_the_tags_of_the_query(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        for number in range(40):
            await append(
                store, f"thread {number}", b"frame", title=f"No. {number}", tags={"even": str(number % 2 == 0)}
            )
        await append(store, "thread 12", b"more", at=1, title="Renamed")
        assert await listed(store, title="No. 12") == []
        assert await listed(store, title="renamed") == ["thread 12"]
    with database(path) as db:
        for query in (HeadQuery(limit=2, title="no. 1"), HeadQuery(limit=2, title="no. 1", tags={"even": "True"})):
            assert len(db.execute(*_listing("", query)).fetchall()) == 2


# The queue


@pytest.mark.parametrize("version", [1, 4])
async def test_a_store_of_before_the_queue_lists_its_queue(path: Path, version: int) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "old", b"frame")
    age(path, version)
    async with SQLiteCheckpointer(path) as store:
        assert await listed(store, order="due") == []
        await append(store, "new", b"frame", due=minute(2))
        await append(store, "old", b"more", at=1, due=minute(1))
        assert await listed(store, order="due") == ["old", "new"]


async def test_a_store_of_before_the_queue_that_cannot_be_written_has_an_empty_one(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.checkpointers.sqlite.file.is_read_only", lambda _: True)
    async with SQLiteCheckpointer(old) as store:
        assert await listed(store, order="due") == []
        assert len(await listed(store)) == 5


async def test_an_older_process_that_writes_a_queued_thread_takes_it_out_of_the_queue(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "queued", b"frame", due=minute(1))
        await append(store, "written", b"frame", due=minute(0))
        await append(store, "done", b"frame", status="done")
    with database(path) as db:  # such a process replaces the head and knows no column `due`
        db.execute(
            "UPDATE heads SET head = (SELECT head FROM heads WHERE thread_id = 'done') WHERE thread_id = 'written'"
        )
    async with SQLiteCheckpointer(path) as store:
        assert await listed(store, order="due") == ["queued"]


async def test_an_append_to_a_thread_that_is_not_queued_leaves_the_index_of_the_queue_alone(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        for at in range(3):
            await append(store, "thread", b"frame", at=at)
    with database(path) as db:
        assert db.execute("SELECT count(*) FROM heads INDEXED BY heads_by_due WHERE due IS NOT NULL").get == 0
    async with SQLiteCheckpointer(path) as store:
        await append(store, "queued", b"frame", due=minute(1))
    with database(path) as db:
        entries = "SELECT count(*) FROM heads INDEXED BY heads_by_due WHERE due IS NOT NULL"
        assert db.execute(entries).get == 1


# Journal mode


@pytest.mark.parametrize("mode", ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"])
async def test_a_store_in_another_journal_mode_is_brought_back_to_wal(path: Path, mode: str) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
    with database(path) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"two", at=1)
        assert Path(f"{path}-wal").stat().st_size
    assert value(path, "PRAGMA journal_mode") == "wal"


def left(path: Path, way: str, tmp_path: Path) -> Path:
    """Return a copy of this store as a backup or a restore makes it, or the store itself."""
    copy = tmp_path / "copy.db"
    if way == "by VACUUM INTO":
        with database(path) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
    elif way == "restored from a dump":
        marks = [(name, value(path, f"PRAGMA {name}")) for name in ("application_id", "user_version")]
        pragmas = "".join(f";PRAGMA {name} = {mark}" for name, mark in marks)
        restored = sqlite3.connect(copy)
        restored.executescript("\n".join(sqlite3.connect(path).iterdump()) + pragmas)
        restored.close()
    else:
        return path
    return copy


@pytest.mark.parametrize(
    "way", ["in place", "by VACUUM INTO", "restored from a dump", "after an I/O error at its first open"]
)
@pytest.mark.parametrize("version", [3, schema.VERSION])
@pytest.mark.parametrize("mode", ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF", "WAL"])
async def test_whatever_mode_a_store_was_left_in_every_connection_syncs_in_wal_mode(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, version: int, way: str
) -> None:
    """Also a store of an older version, which is migrated as it is opened."""
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
    copy = left(path, way, tmp_path)
    if version != schema.VERSION:
        age(copy, version)
    with database(copy) as db:
        assert db.execute(f"PRAGMA journal_mode = {mode}").get == mode.lower()
    opened: list[apsw.Connection] = []
    failing = [apsw.IOError("disk I/O error")] if "I/O" in way else []

    def connect(path: Path, *, wait: connection.LockWait) -> apsw.Connection:
        opened.append(connection.connect(path, wait=wait))
        return opened[-1]

    def use_wal(db: apsw.Connection, where: str, wait: connection.LockWait) -> None:
        if failing:
            raise failing.pop()
        connection.use_wal(db, where, wait)

    monkeypatch.setattr("clew.checkpointers.sqlite.file.connect", connect)
    monkeypatch.setattr(schema, "use_wal", use_wal)
    if failing:
        async with SQLiteCheckpointer(copy) as store:
            with pytest.raises(Unavailable, match="I/O error"):
                await store.read("thread")
        opened.clear()
    async with SQLiteCheckpointer(copy) as store:
        assert await store.read("thread") == [b"one"]
        await append(store, "thread", b"two", at=1)
        assert [db.execute("PRAGMA journal_mode; PRAGMA synchronous").fetchall() for db in opened] == [
            [("wal",), (2,)]
        ] * 2
    assert value(copy, "PRAGMA journal_mode") == "wal"
    assert value(copy, "PRAGMA user_version") == schema.VERSION


async def test_a_copy_by_vacuum_into_is_brought_to_wal(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
        with database(path) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
    assert value(copy, "PRAGMA journal_mode") == "delete"
    async with SQLiteCheckpointer(copy) as store:
        assert await store.read("thread") == [b"one"]
    assert value(copy, "PRAGMA journal_mode") == "wal"


async def test_a_store_that_cannot_be_in_wal_mode_is_unavailable(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
    with database(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    reader = subprocess.Popen([sys.executable, "-c", _READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        async with SQLiteCheckpointer(path, timeout=0.2) as store:
            with pytest.raises(Unavailable, match="another process"):
                await append(store, "thread", b"two", at=1)
        reader.communicate(b"\n")
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"two", at=1)


_READER = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN")
db.execute("SELECT count(*) FROM heads").fetchone()
print("reading", flush=True)
sys.stdin.readline()
"""


# Damage


async def made(path: Path) -> Path:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"frame")
    return path


async def refused_as_damaged(path: Path) -> str:
    before = path.read_bytes()
    async with SQLiteCheckpointer(path) as store:
        with pytest.raises(Corrupt, match=str(path)) as caught:
            await store.read("thread")
        with pytest.raises(Corrupt):
            await store.head("thread")
        with pytest.raises(Corrupt):
            await append(store, "thread", b"more", at=1)
        with pytest.raises(Corrupt):
            await listed(store)
    assert path.read_bytes() == before
    return str(caught.value)


@pytest.mark.parametrize("place", [0, 20])
async def test_a_header_that_was_overwritten_is_corrupt(path: Path, place: int) -> None:
    data = bytearray((await made(path)).read_bytes())
    data[place : place + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    await refused_as_damaged(path)


@pytest.mark.parametrize(
    "statement",
    ["PRAGMA application_id = 0", "PRAGMA application_id = 7", "PRAGMA user_version = 0", "DROP TABLE frames"],
)
async def test_a_store_without_its_marks_or_tables_is_corrupt(path: Path, statement: str) -> None:
    with database(await made(path)) as db:
        db.execute(statement)
    assert "is a store, but" in await refused_as_damaged(path)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
async def test_a_restored_dump_is_refused_with_the_command_that_makes_it_a_store_again(
    path: Path, tmp_path: Path, version: int
) -> None:
    with database(await made(path)) as db:
        if version < 5:
            db.execute("DROP INDEX heads_by_due; ALTER TABLE heads DROP COLUMN due")
        if version < 4:
            db.execute("DROP TABLE packs")
        if version < 3:
            db.execute("ALTER TABLE heads DROP COLUMN title; ALTER TABLE heads DROP COLUMN tags")
        if version < 2:
            db.execute("DROP INDEX heads_by_updated; DROP INDEX heads_by_created")
    dumped = "\n".join(sqlite3.connect(path).iterdump())
    restored = tmp_path / "it's restored.db"
    sqlite3.connect(restored).executescript(dumped)
    async with SQLiteCheckpointer(restored) as store:
        with pytest.raises(Corrupt, match="restored from a dump") as caught:
            await store.read("thread")
    program, file, pragmas = shlex.split(str(caught.value).partition("write them back: ")[2])
    assert (program, file) == ("sqlite3", str(restored))
    sqlite3.connect(file).executescript(pragmas)
    async with SQLiteCheckpointer(restored) as store:
        assert await store.read("thread") == [b"frame"]
        await append(store, "thread", b"more", at=1)
        assert await listed(store) == ["thread"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
@pytest.mark.parametrize("scheme", ["sqlite:///", "file://"])
async def test_what_is_not_a_file_is_refused_by_its_name_and_not_waited_for(path: Path, scheme: str) -> None:
    os.mkfifo(path)
    for place, kind in ((path, "named pipe"), (Path("/dev/null"), "character device")):
        async with open_checkpointer(f"{scheme}{place}") as store:
            with pytest.raises(InvalidInput, match=kind):
                await store.read("thread")


async def test_a_store_that_lost_its_schema_is_corrupt(path: Path) -> None:
    with database(await made(path)) as db:
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_schema")
    assert "its tables are lost" in await refused_as_damaged(path)


async def test_an_empty_file_is_corrupt_and_not_an_empty_store(path: Path) -> None:
    os.truncate(await made(path), 0)
    assert "delete the file to start a new store" in await refused_as_damaged(path)


async def test_a_write_ahead_log_without_its_database_is_not_given_to_a_new_store(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"the log of a store that is gone")
    async with SQLiteCheckpointer(path) as store:
        with pytest.raises(Corrupt, match="move that file away"):
            await append(store, "thread", b"frame")
    assert not path.exists()


@pytest.mark.parametrize("fill", [b"\x00", b"\xff"])
async def test_no_damaged_page_makes_a_thread_absent(path: Path, fill: bytes) -> None:
    async with SQLiteCheckpointer(path) as store:
        for number in range(40):
            await append(store, f"thread {number}", b"frame" * 100)
    whole = path.read_bytes()
    for start in range(schema.PAGE_SIZE, len(whole), schema.PAGE_SIZE):
        path.write_bytes(whole[:start] + fill * schema.PAGE_SIZE + whole[start + schema.PAGE_SIZE :])
        async with SQLiteCheckpointer(path) as store:
            for number in range(40):
                try:
                    assert await store.read(f"thread {number}") == [b"frame" * 100]
                    assert await store.head(f"thread {number}") is not None
                except Corrupt:
                    continue


async def test_a_newer_store_without_a_table_is_newer_and_not_damaged(path: Path) -> None:
    with database(await made(path)) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("DROP TABLE refs")
    async with SQLiteCheckpointer(path) as store:
        with pytest.raises(NewerFormat, match="99"):
            await store.read("thread")


async def test_a_store_that_could_not_be_made_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "TABLES", schema.TABLES + "CREATE TABLE heads (twice);")
    async with SQLiteCheckpointer(path) as store:
        with pytest.raises(Corrupt):
            await append(store, "thread", b"frame")
    assert list(path.parent.iterdir()) == []


# Read-only

_READ = """
async def main():
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("thread") == [b"frame"], "it can be read"
        assert await listed(store) == ["thread"]
        try:
            await append(store, "thread", b"more", at=1)
        except Unavailable as error:
            print(error)
asyncio.run(main())
"""


async def test_a_store_that_may_not_be_written_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(path)
    monkeypatch.setattr("clew.checkpointers.sqlite.file.is_read_only", lambda _: True)
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("thread") == [b"frame"]
        assert await listed(store) == ["thread"]
        with pytest.raises(Unavailable, match="read-only"):
            await append(store, "thread", b"more", at=1)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a folder a second time, which Linux can")
@pytest.mark.parametrize("version", ["old", "new"])
async def test_a_store_on_a_read_only_file_system_can_be_read(path: Path, version: str) -> None:
    await made(path)
    if version == "old":
        age(path, 1)
    if os.geteuid() != 0:
        path.chmod(0o400)
        path.parent.chmod(0o500)
        try:
            said = await run_script(_READ, str(path))
        finally:
            path.parent.chmod(0o700)
    else:
        mounted = f'mount --bind "{path.parent}" "{path.parent}" && mount -o remount,bind,ro "{path.parent}"'
        script = f'{mounted} && exec "{sys.executable}" -c "$CODE" "{path}"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script], env={**os.environ, "CODE": _PREAMBLE + _READ},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = done.stdout
    assert "read-only" in said


# One library


OTHER_WAYS: dict[str, Callable[[Path], object]] = {
    "sqlite3.connect": sqlite3.connect,
    "sqlite3.dbapi2.connect": sqlite3.dbapi2.connect,
    "a URI": lambda path: database_of_opencode.connect(path, "ro", wait=1),
    "a relative URI": lambda path: sqlite3.connect(f"file:{os.path.relpath(path)}?mode=ro", uri=True),
    "open": lambda path: path.open("rb"),
    "os.open": lambda path: os.open(path, os.O_RDONLY),
    "shutil.copy": lambda path: shutil.copy(path, path.with_suffix(".copy")),
    "open of the shared memory": lambda path: Path(f"{path}-shm").read_bytes(),
    "open of the write-ahead log": lambda path: Path(f"{path}-wal").read_bytes(),
    "open of a link": lambda path: linked(path).read_bytes(),
}


def linked(path: Path) -> Path:
    link = path.parent / "link" / path.name
    link.parent.mkdir()
    link.symlink_to(path)
    return link


@pytest.mark.parametrize("way", OTHER_WAYS)
async def test_a_test_that_opens_the_file_of_an_open_store_in_another_way_is_stopped(path: Path, way: str) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"frame")
        with pytest.raises(AssertionError, match="drops the store's locks"):
            OTHER_WAYS[way](path)
    sqlite3.connect(path).close()
    assert path.read_bytes()


def test_the_library_has_no_race_that_loses_commits() -> None:
    major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split("."))
    assert (major, minor, patch) >= (3, 51, 3)
    assert apsw.sqlite_lib_version() in connection.library()
