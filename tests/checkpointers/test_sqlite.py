"""What is SQLite's own: its file, its locks, its group commit, and other processes."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from blake3 import blake3

from clew._runtime import files as _files
from clew.checkpointers import HeadQuery, SQLiteCheckpointer, open_checkpointer
from clew.checkpointers.sqlite import engine as _sqlite_engine
from clew.checkpointers.sqlite import schema
from clew.checkpointers.sqlite.connection import CHECKPOINT_AT_MOST
from clew.checkpointers.sqlite.file import StoreFile
from clew.errors import ClewError, Conflict, Corrupt, InvalidInput, NewerFormat, Unavailable
from clew.testing.contract.builders import append, every_call, heads, listed, minute, put, state
from tests.checkpointers.damage import sound_and_damaged
from tests.checkpointers.scripts import race, run_script
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.sqlite_files import database

pytestmark = pytest.mark.anyio

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clew.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteCheckpointer]:
    async with SQLiteCheckpointer(path) as store:
        yield store


# The file


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_the_database_and_its_side_files_are_private_from_the_start(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "new folder" / "clew.db"
    before = os.umask(umask)
    try:
        async with SQLiteCheckpointer(path) as store:
            await append(store, "thread", b"frame")
            await store.read("thread")
            files = sorted(path.parent.iterdir())
            assert [file.name for file in files] == ["clew.db", "clew.db-reserve", "clew.db-shm", "clew.db-wal"]
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


@posix
async def test_a_store_that_others_could_read_is_made_private(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"frame")
    path.chmod(0o644)
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"more", at=1)
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


async def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with SQLiteCheckpointer(tmp_path / "clew.db") as store:
        await append(store, "thread", b"frame")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


async def test_making_a_checkpointer_touches_no_file(path: Path) -> None:
    async with SQLiteCheckpointer(path):
        assert not path.exists()
    assert not path.exists()


async def test_closing_leaves_one_file(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"frame")
    assert [file.name for file in path.parent.iterdir()] == ["clew.db"]


@pytest.mark.parametrize(
    "name", ["with spaces.db", "100%.db", "%41.db", "ünïcödé 🧵.db", "a#b.db", "a&b=c.db", ":memory:"]
)
async def test_any_file_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    for store in (SQLiteCheckpointer(tmp_path / name), SQLiteCheckpointer.from_url(f"sqlite:///{tmp_path}/{name}")):
        async with store:
            await append(store, "thread", b"frame")
    assert [file.name for file in tmp_path.iterdir()] == [name]


async def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    store = open_checkpointer("sqlite:///clew.db")
    monkeypatch.chdir(tmp_path / "there")
    async with store:
        await append(store, "thread", b"frame")
    assert (tmp_path / "here" / "clew.db").exists()
    assert list((tmp_path / "there").iterdir()) == []


async def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with SQLiteCheckpointer("~/clew.db") as store:
        await append(store, "thread", b"frame")
    assert (tmp_path / "clew.db").exists()


async def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_checkpointer("sqlite:///folder/clew.db") as relative:
        head = await append(relative, "thread", b"frame")
    async with open_checkpointer(f"sqlite:///{tmp_path}/folder/clew.db") as absolute:
        assert await absolute.head("thread") == head


@pytest.mark.parametrize(
    "url",
    ["sqlite://clew.db", "sqlite:clew.db", "sqlite:///", "sqlite://", "sqlite:///folder/"],
)
def test_a_url_that_names_no_file_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"sqlite:///relative\.db"):
        SQLiteCheckpointer.from_url(url)


# What is not a store


def other_program(path: Path, *settings: str) -> None:
    """A database of another program."""
    with database(path) as db:
        for setting in settings:
            db.execute(f"PRAGMA {setting}")
        db.execute("CREATE TABLE theirs (a)")
        db.execute("INSERT INTO theirs VALUES (1)")
    path.chmod(0o644)


def facts(path: Path) -> tuple[bytes, int, list[str]]:
    return path.read_bytes(), stat.S_IMODE(path.stat().st_mode), sorted(file.name for file in path.parent.iterdir())


@contextmanager
def untouched(path: Path) -> Iterator[None]:
    before = facts(path)
    yield
    assert facts(path) == before, f"{path} was changed"


async def refused(path: Path, error: type[ClewError]) -> str:
    """Every call is refused with this error; its message."""
    async with SQLiteCheckpointer(path) as store:
        for call in every_call(store).values():
            with pytest.raises(error) as caught:
                await call()
    return str(caught.value)


@pytest.mark.parametrize("settings", [(), ("auto_vacuum = FULL",), ("application_id = 7",), ("user_version = 1",)])
async def test_a_database_of_another_program_is_refused_untouched(path: Path, settings: tuple[str, ...]) -> None:
    other_program(path, *settings)
    with untouched(path):
        assert "another program" in await refused(path, InvalidInput)


async def test_a_store_of_a_newer_clew_is_refused_untouched(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"frame")
    with database(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA user_version = 99")
    with untouched(path):
        assert "99" in await refused(path, NewerFormat)


@pytest.mark.parametrize("text", [b"hello", b"a text file\n" * 1000])
async def test_a_file_that_is_no_database_is_corrupt_and_untouched(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    path.chmod(0o644)
    with untouched(path):
        assert str(path) in await refused(path, Corrupt)


async def test_a_folder_is_refused_with_the_way_out(path: Path) -> None:
    path.mkdir()
    assert f"sqlite:///{path}/clew.db" in await refused(path, InvalidInput)
    assert list(path.iterdir()) == []


async def test_a_path_through_a_file_is_invalid(path: Path) -> None:
    path.write_text("a file")
    await refused(path / "clew.db", InvalidInput)


async def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "network_file_system", lambda folder: "nfs4")
    assert "nfs4" in await refused(path, InvalidInput)
    assert list(path.parent.iterdir()) == []


def test_a_local_folder_is_not_taken_for_a_network(tmp_path: Path) -> None:
    assert _files.network_file_system(tmp_path) is None


# Damage


@posix
async def test_a_store_deleted_while_it_is_open_acknowledges_nothing_more(
    store: SQLiteCheckpointer, path: Path
) -> None:
    await append(store, "thread", b"frame")
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(Unavailable, match=r"clew\.db"):
        await append(store, "other", b"frame")
    with pytest.raises(Unavailable):
        await put(store, b"a blob")


@posix
async def test_reading_a_store_that_was_deleted_makes_no_file(store: SQLiteCheckpointer, path: Path) -> None:
    await append(store, "thread", b"frame")
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(Unavailable, match=r"clew\.db"):
        await store.read("thread")
    assert list(path.parent.iterdir()) == []


@posix
async def test_a_store_replaced_while_it_is_open_acknowledges_nothing_more(
    store: SQLiteCheckpointer, path: Path
) -> None:
    await append(store, "thread", b"frame")
    copy = path.with_suffix(".copy")
    subprocess.run(["cp", path, copy], check=True)  # a copy by this process would drop the locks of the store
    os.replace(copy, path)
    with pytest.raises(Unavailable, match="open it again"):
        await append(store, "other", b"frame")


def tamper(path: Path, statement: str, *values: object) -> None:
    with database(path) as db:
        db.execute(statement, values)


async def test_a_head_that_does_not_decode_is_corrupt(store: SQLiteCheckpointer, path: Path) -> None:
    await append(store, "thread", b"frame")
    tamper(path, "UPDATE heads SET head = ?", b"\xc1 not a head")
    with pytest.raises(Corrupt, match="'thread'"):
        await store.head("thread")
    with pytest.raises(Corrupt, match="'thread'"):
        await heads(store)


@pytest.mark.parametrize(
    "query", [HeadQuery(), HeadQuery(limit=9), HeadQuery(prefix="thread")], ids=["all", "limit", "prefix"]
)
async def test_sound_threads_are_listed_before_the_damaged_are_named(
    store: SQLiteCheckpointer, path: Path, query: HeadQuery
) -> None:
    for number in range(4):
        await append(store, f"thread {number}", b"frame")
    tamper(path, "UPDATE heads SET head = ? WHERE thread_id = ?", b"\xc1 not a head", "thread 1")
    tamper(path, "UPDATE heads SET head = ? WHERE thread_id = ?", "text", "thread 3")
    found, damage = await sound_and_damaged(store, query)
    assert found == ["thread 0", "thread 2"]
    assert re.search(r"2 thread\(s\).*clew verify 'thread 3' --repair", damage)
    assert "'thread 1'" in damage
    assert "'thread 3'" in damage
    await store.delete("thread 1")
    await store.delete("thread 3")
    assert len(await heads(store)) == 2


async def test_of_many_damaged_threads_the_first_are_named(store: SQLiteCheckpointer, path: Path) -> None:
    for number in range(15):
        await append(store, f"thread {number}", b"frame")
    tamper(path, "UPDATE heads SET head = ?", b"")
    with pytest.raises(Corrupt, match=r"15 thread\(s\).* And 5 more\.$") as error:
        await heads(store)
    assert str(error.value).count("fails its check") == 10


async def test_a_missing_frame_is_corrupt(store: SQLiteCheckpointer, path: Path) -> None:
    await append(store, "thread", b"one", b"two", b"three")
    tamper(path, "DELETE FROM frames WHERE data = ?", b"two")
    with pytest.raises(Corrupt, match="'thread'"):
        await store.read("thread")
    assert await store.read("thread", start=2) == [b"three"]


async def test_a_blob_whose_bytes_changed_is_corrupt(store: SQLiteCheckpointer, path: Path) -> None:
    digest, other = await put(store, b"blob", b"other")
    tamper(path, "UPDATE blob_data SET data = ? WHERE data = ?", b"blub", b"blob")
    with pytest.raises(Corrupt, match=digest):
        await store.get_blobs([other, digest])
    assert await store.get_blobs([other]) == {other: b"other"}


async def test_damaged_pages_are_corrupt(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", *(b"%d" % n * 1000 for n in range(100)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (size - 8192))
    async with SQLiteCheckpointer(path) as store:
        with pytest.raises(Corrupt, match=str(path)):
            await store.read("thread")


# Locks


HOLD_LOCK = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
db.execute("ROLLBACK")
"""


async def test_a_lock_held_too_long_is_unavailable_and_the_call_may_be_made_again(path: Path) -> None:
    async with SQLiteCheckpointer(path, timeout=0.2) as store:
        await append(store, "thread", b"one")
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(Unavailable, match="another process"):
                await append(store, "thread", b"two", at=1)
            with pytest.raises(Unavailable):
                await store.delete("thread")
            assert await store.read("thread") == [b"one"], "readers do not wait for a writer"
            holder.communicate()
        await append(store, "thread", b"two", at=1)
        assert await store.read("thread") == [b"one", b"two"]


async def test_a_thread_is_listed_by_the_creation_time_in_its_newest_head(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "first", b"frame", created_at=minute(1))
        await append(store, "second", b"frame", created_at=minute(2))
        await append(store, "first", b"more", at=1, created_at=minute(3))
        assert await listed(store, order="created") == ["first", "second"]
    async with SQLiteCheckpointer(path) as store:
        await append(store, "second", b"more", at=1, created_at=minute(4))
        assert await listed(store, order="created") == ["second", "first"]


# Group commit


class Writer:
    """The engine's writer under watch: how its requests were grouped, and a way to hold it while they gather."""

    def __init__(self, store: SQLiteCheckpointer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[int] = []
        self.fail_next_commit = False
        self._engine = store._use()
        transact: Any = _sqlite_engine.Engine._transact

        def watched(engine: _sqlite_engine.Engine, connection: Any, batch: Any, **given: Any) -> None:
            self.batches.append(len(batch))
            failing, self.fail_next_commit = self.fail_next_commit, False
            transact(engine, FailsToCommit(connection) if failing else connection, batch, **given)

        monkeypatch.setattr(_sqlite_engine.Engine, "_transact", watched)

    async def gather(self, *calls: Any, fail: bool = False) -> list[Any]:
        """Run these calls so that they meet in one transaction; errors in place of results."""
        held, go = threading.Event(), threading.Event()

        def hold(_: apsw.Cursor) -> None:
            held.set()
            go.wait(PATIENCE)

        holding = asyncio.create_task(self._engine.write(hold, asyncio.get_running_loop()))
        await asyncio.to_thread(held.wait, PATIENCE)
        self.batches.clear()
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.05)
        self.fail_next_commit = fail
        go.set()
        await holding
        return await asyncio.gather(*tasks, return_exceptions=True)


class FailsToCommit:
    """A connection or cursor on a disk that fails at the last moment."""

    error: type[apsw.Error] = apsw.IOError

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def cursor(self) -> FailsToCommit:
        return type(self)(self._real.cursor())

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == "COMMIT":
            raise self.error("it fails at the last moment")
        return self._real.execute(statement, *values)


class IsBusyAtCommit(FailsToCommit):
    error = apsw.BusyError


async def test_appends_that_come_together_share_a_transaction(
    store: SQLiteCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(store, monkeypatch)
    await asyncio.gather(*(append(store, f"thread {n}", b"frame") for n in range(200)))
    assert sum(writer.batches) == 200
    assert len(writer.batches) <= 20
    assert len(await listed(store)) == 200


async def test_two_checkpointers_on_one_file_share_a_transaction(
    store: SQLiteCheckpointer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    async with SQLiteCheckpointer(link, "another namespace") as other:
        assert other._use() is store._use()
        writer = Writer(store, monkeypatch)
        await writer.gather(append(store, "thread", b"mine"), append(other, "thread", b"theirs"))
        assert writer.batches == [2]
    assert await store.read("thread") == [b"mine"]


async def test_a_conflict_in_a_transaction_does_not_fail_its_neighbours(
    store: SQLiteCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(store, monkeypatch)
    results = await writer.gather(
        append(store, "a", b"frame"), append(store, "late", b"frame", at=5), append(store, "b", b"frame")
    )
    assert writer.batches == [3]
    assert [isinstance(result, Conflict) for result in results] == [False, True, False]
    assert sorted(await listed(store)) == ["a", "b"]


async def test_appends_to_one_thread_may_meet_in_a_transaction(
    store: SQLiteCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(store, monkeypatch)
    await writer.gather(*(append(store, "thread", b"%d" % at, at=at) for at in range(5)))
    assert writer.batches == [5]
    assert await store.read("thread") == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_failed_commit_fails_all_its_appends_and_they_may_be_made_again(
    store: SQLiteCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(store, monkeypatch)
    results = await writer.gather(*(append(store, f"thread {n}", b"frame") for n in range(3)), fail=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    assert await listed(store) == []
    await asyncio.gather(*(append(store, f"thread {n}", b"frame") for n in range(3)))
    assert len(await listed(store)) == 3


async def test_the_last_close_ends_the_engine(path: Path) -> None:
    first, second = SQLiteCheckpointer(path), SQLiteCheckpointer(path)
    await append(first, "thread", b"frame")
    await second.head("thread")
    await first.close()
    await append(second, "thread", b"more", at=1)
    await second.close()
    assert _sqlite_engine._engines == {}
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("clew-sqlite")] == []


# Written by the event loop itself


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The disk counts as quick from the start; the names of the threads that wrote, one for each transaction."""
    monkeypatch.setattr(_sqlite_engine, "QUICK_RUNS", 0)
    monkeypatch.setattr(_sqlite_engine, "QUICK", float("inf"))
    names: list[str] = []
    transact: Any = _sqlite_engine.Engine._transact

    def watched(*given: Any, **how: Any) -> None:
        names.append(threading.current_thread().name)
        transact(*given, **how)

    monkeypatch.setattr(_sqlite_engine.Engine, "_transact", watched)
    return names


HERE = threading.main_thread().name
WRITER = "clew-sqlite-writer"


HOUR = 3600.0
"""Seconds after which the loop may write again, however long it wrote before."""


async def test_a_lone_append_is_written_by_the_loop_while_the_disk_is_quick(
    store: SQLiteCheckpointer, writers: list[str], clock: Clock
) -> None:
    for at in range(5):
        await append(store, "thread", b"%d" % at, at=at)
        clock.advance(HOUR)
    assert writers == [WRITER, HERE, HERE, HERE, HERE], "the writer opens the database, whatever that takes"
    assert await store.read("thread") == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(Conflict):
        await append(store, "thread", b"again", at=1)


async def test_the_loop_leaves_it_to_the_writer_after_a_slow_sync(
    store: SQLiteCheckpointer, writers: list[str], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    await append(store, "thread", b"0")
    monkeypatch.setattr(_sqlite_engine, "QUICK_RUNS", 3)
    monkeypatch.setattr(_sqlite_engine, "QUICK", 0.0)
    for at in range(1, 3):
        await append(store, "thread", b"%d" % at, at=at)
    monkeypatch.setattr(_sqlite_engine, "QUICK", float("inf"))
    for at in range(3, 8):
        await append(store, "thread", b"%d" % at, at=at)
        clock.advance(HOUR)
    assert writers == [WRITER] * 6 + [HERE] * 2


async def test_the_loop_never_waits_for_another_process(
    store: SQLiteCheckpointer, path: Path, writers: list[str]
) -> None:
    await append(store, "thread", b"0")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        waiting = asyncio.create_task(append(store, "thread", b"1", at=1))
        await asyncio.sleep(
            0.2
        )  # the lock is given back only after this, so a loop that waited for it would never get it
        assert not waiting.done()
        holder.communicate()
    await waiting
    assert writers == [WRITER, HERE, WRITER]
    assert await store.read("thread") == [b"0", b"1"]


async def test_what_is_much_and_what_is_no_append_goes_to_the_writer(
    store: SQLiteCheckpointer, writers: list[str]
) -> None:
    await append(store, "thread", b"0")
    await append(store, "large", bytes(2**20 + 1))
    await asyncio.gather(*(append(store, f"thread {n}", b"frame") for n in range(65)))
    await put(store, b"a blob")
    assert set(writers) == {WRITER}
    await asyncio.gather(*(append(store, f"other {n}", b"frame") for n in range(64)))
    assert writers[-1] == HERE
    assert len(await listed(store)) == 131


async def test_the_loop_writes_for_no_more_than_half_of_its_time(
    store: SQLiteCheckpointer, writers: list[str], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    await append(store, "thread", b"0")
    monkeypatch.setattr(StoreFile, "check", lambda file: clock.advance(HOUR / 2))
    await append(store, "thread", b"1", at=1)
    await append(store, "thread", b"2", at=2)
    clock.advance(HOUR)
    await append(store, "thread", b"3", at=3)
    assert writers == [WRITER, HERE, WRITER, HERE]


async def test_no_append_overtakes_one_that_the_writer_has(store: SQLiteCheckpointer, writers: list[str]) -> None:
    await append(store, "thread", b"0")
    for at in range(1, 40, 2):
        first = asyncio.create_task(append(store, "thread", bytes(2**20 + 1), at=at))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.gather(first, append(store, "thread", b"small", at=at + 1))


async def test_after_a_slow_sync_the_loop_leaves_it_to_the_writer_for_a_while(
    store: SQLiteCheckpointer, writers: list[str], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    await append(store, "thread", b"0")
    await append(store, "thread", b"1", at=1)
    clock.advance(HOUR)
    monkeypatch.setattr(_sqlite_engine, "QUICK", 0.0)
    monkeypatch.setattr(_sqlite_engine, "SLOW_PAUSE", 10**6)
    await append(store, "thread", b"2", at=2)
    monkeypatch.setattr(_sqlite_engine, "QUICK", float("inf"))
    for at in range(3, 6):
        await append(store, "thread", b"%d" % at, at=at)
        clock.advance(0.05)
    assert writers == [WRITER, HERE, HERE, WRITER, WRITER, WRITER]


async def test_an_append_with_many_refs_goes_to_the_writer(store: SQLiteCheckpointer, writers: list[str]) -> None:
    await append(store, "thread", b"0")
    blobs = {blake3(b"%d" % number).hexdigest(): b"%d" % number for number in range(65)}
    await store.put_blobs(blobs)
    await append(store, "thread", b"1", at=1, refs=list(blobs))
    assert set(writers) == {WRITER}


async def test_pages_are_moved_out_of_the_log_by_the_writer(
    store: SQLiteCheckpointer, path: Path, writers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    checkpoint: Any = _sqlite_engine.Engine._checkpoint

    def watched(engine: Any, connection: Any) -> None:
        sizes.append(path.stat().st_size)
        checkpoint(engine, connection)
        sizes.append(path.stat().st_size)

    monkeypatch.setattr(_sqlite_engine.Engine, "_checkpoint", watched)
    for at in range(40):
        await append(store, "thread", os.urandom(100_000), at=at)
    assert len(sizes) >= 2
    assert sizes[1] > sizes[0]
    assert path.with_name("clew.db-wal").stat().st_size < 8_000_000


# Other processes


async def test_another_process_sees_and_goes_on_from_what_is_acknowledged(
    store: SQLiteCheckpointer, path: Path
) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"mine", refs=[blob])
    code = """
async def main():
    async with SQLiteCheckpointer(path) as store:
        print(await store.read("thread"))
        await append(store, "thread", b"theirs", at=1, title="from outside")
asyncio.run(main())
"""
    assert await run_script(code, str(path)) == "[b'mine']\n"
    frames, head, refs = await state(store, "thread")
    assert frames == [b"mine", b"theirs"]
    assert head is not None
    assert head.title == "from outside"
    assert refs == {blob}


async def test_processes_that_make_one_store_at_once_all_succeed(path: Path) -> None:
    code = """
async def main():
    store = SQLiteCheckpointer(path)
    await all_are_ready()
    for number in range(5):
        await append(store, f"thread {os.getpid()} {number}", b"frame")
    await store.close()
asyncio.run(main())
"""
    await race(6, code, str(path))
    async with SQLiteCheckpointer(path) as store:
        assert len(await listed(store)) == 30


async def test_a_process_that_ends_without_closing_loses_nothing_acknowledged(path: Path) -> None:
    code = """
async def main():
    store = SQLiteCheckpointer(path)
    await asyncio.gather(*(append(store, f"thread {n}", b"frame %d" % n) for n in range(20)))
    os._exit(0)
asyncio.run(main())
"""
    await run_script(code, str(path))
    async with SQLiteCheckpointer(path) as store:
        for n in range(20):
            assert await store.read(f"thread {n}") == [b"frame %d" % n]


@posix
async def test_a_forked_child_that_ends_normally_does_no_harm(path: Path) -> None:
    code = """
import selectors, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads when it forks is the point

loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll would be shared with the child
store = SQLiteCheckpointer(path)
loop.run_until_complete(append(store, "thread", b"one"))
loop.run_until_complete(store.read("thread"))
child = os.fork()
if child == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
loop.run_until_complete(append(store, "thread", b"two", at=1))
child = os.fork()
if child == 0:
    async def go_on():
        async with SQLiteCheckpointer(path) as mine:
            await append(mine, "thread", b"of the child", at=2)
    asyncio.run(go_on())
    sys.exit(6)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
loop.run_until_complete(append(store, "thread", b"three", at=3))
loop.run_until_complete(store.close())
loop.close()
"""
    assert await run_script(code, str(path)) == "5\n6\n"
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("thread") == [b"one", b"two", b"of the child", b"three"]


@posix
async def test_a_full_disk_is_unavailable_and_harms_nothing_acknowledged(path: Path) -> None:
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
frame = os.urandom(8000)

async def main():
    store = SQLiteCheckpointer(path)
    await append(store, "thread", frame)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    acknowledged = 1
    try:
        while True:
            await append(store, "thread", frame, at=acknowledged)
            acknowledged += 1
    except Unavailable:
        assert acknowledged > 5, acknowledged
    assert len(await store.read("thread")) == acknowledged
    for _ in range(2):
        try:
            await put(store, bytes(1_200_000))
        except Unavailable:
            continue
        raise AssertionError("a blob larger than the disk was taken")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await append(store, "thread", frame, at=acknowledged)
    acknowledged += 1
    print(acknowledged, set(await store.read("thread")) == {frame})
    if sys.argv[2] == "close":
        await store.close()
    sys.stdout.flush()
    os._exit(0)
asyncio.run(main())
"""
    for end in ("close", "die"):
        place = path.with_name(f"{end}.db")
        acknowledged, _, same = (await run_script(code, str(place), end)).strip().partition(" ")
        assert same == "True"
        async with SQLiteCheckpointer(place) as store:
            assert len(await store.read("thread")) == int(acknowledged)


async def test_what_the_loop_leaves_to_the_writer_after_all_is_judged_anew(
    store: SQLiteCheckpointer, writers: list[str], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    await append(store, "thread", b"0")
    transact: Any = _sqlite_engine.Engine._transact

    def busy_here(engine: Any, connection: Any, batch: Any, **how: Any) -> None:
        if threading.current_thread().name == HERE:
            connection = IsBusyAtCommit(connection)
            batch[0].error = Conflict("thread", "as it stood then")
        transact(engine, connection, batch, **how)

    monkeypatch.setattr(_sqlite_engine.Engine, "_transact", busy_here)
    clock.advance(HOUR)
    await append(store, "thread", b"1", at=1)
    assert writers == [WRITER, HERE, WRITER]
    assert await store.read("thread") == [b"0", b"1"]


# What a closed store leaves behind, and how long the WAL gets


async def test_after_close_all_is_in_the_database_whatever_was_refused_before(path: Path) -> None:
    store = SQLiteCheckpointer(path)
    await append(store, "thread", b"0")
    blob = {blake3(b"a blob").hexdigest(): b"a blob"}
    _, refused = await asyncio.gather(
        store.put_blobs(blob), append(store, "thread", b"again", at=0), return_exceptions=True
    )
    assert isinstance(refused, Conflict)
    await store.close()
    assert not path.with_name(path.name + "-wal").exists()
    assert isinstance(refused, Conflict), "and whoever keeps the error keeps no connection with it"


async def wal_of_short_lives(path: Path, lives: int) -> int:
    """The size of the WAL once so many engines have written little each, while another process has the file open."""
    holder = apsw.Connection(str(path))
    try:
        holder.execute("SELECT count(*) FROM heads").fetchone()
        for life in range(lives):
            async with SQLiteCheckpointer(path) as store:
                for at in range(8):
                    await append(store, f"thread {life}", bytes(30_000), at=at)
        return path.with_name(path.name + "-wal").stat().st_size
    finally:
        holder.close()


async def test_the_wal_of_many_short_lived_writers_does_not_grow_with_their_number(path: Path) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "first", b"frame")
    assert await wal_of_short_lives(path, 40) < 3 * schema.CHECKPOINT_AFTER * schema.PAGE_SIZE


async def test_the_wal_of_many_blobs_does_not_grow_with_their_number(store: SQLiteCheckpointer, path: Path) -> None:
    for number in range(60):
        data = number.to_bytes(4, "big") * 100_000
        await store.put_blobs({blake3(data).hexdigest(): data})
    most = 2 * CHECKPOINT_AT_MOST * schema.PAGE_SIZE
    assert path.with_name(path.name + "-wal").stat().st_size < most < 60 * 400_000


def test_a_store_that_another_process_creates_meanwhile_is_not_taken_for_half_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clew.db"
    schema.create(path)
    made = path.read_bytes()
    monkeypatch.setattr("clew._runtime.files.size", lambda _: 4096)  # the other process has written to it already
    schema.create(path)
    assert path.read_bytes() == made
    path.unlink()
    with pytest.raises(Corrupt, match="still holds a part of it"):
        schema.create(path)
