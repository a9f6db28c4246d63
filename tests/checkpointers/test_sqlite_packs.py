"""Tests `sqlite/packs.py`: frames that are joined in one row are the same frames, for whoever reads, repeats or deletes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
import pytest

from clew.checkpointers import SQLiteCheckpointer
from clew.checkpointers.sqlite import engine, packs, schema
from clew.checkpointers.sqlite.room import ThreadDeletion
from clew.errors import Conflict, Corrupt
from clew.testing.contract.builders import append
from tests.sqlite_files import database

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def frames(count: int, size: int = 1500) -> list[bytes]:
    """Frames that are all different, of about this many bytes."""
    return [hashlib.shake_128(b"%d" % number).digest(size + number % 7) for number in range(count)]


async def fill(path: Path, made: list[bytes], thread: str = "t") -> None:
    async with SQLiteCheckpointer(path) as store:
        for number, frame in enumerate(made):
            await append(store, thread, frame, at=number)


def rows(path: Path) -> tuple[int, list[int]]:
    """The number of frames in rows of their own, and the number of frames in each pack."""
    with database(path) as db:
        alone = int(db.execute("SELECT count(*) FROM frames").get)
        return alone, [count for (count,) in db.execute("SELECT count FROM packs ORDER BY thread, number")]


async def test_every_part_of_a_packed_log_is_read_as_it_was_written(path: Path) -> None:
    made = frames(300)
    await fill(path, made)
    alone, packed = rows(path)
    assert alone < 30
    assert len(packed) >= 3
    assert alone + sum(packed) == 300
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("t") == made
        for start in (0, 1, packed[0] - 1, packed[0], packed[0] + 1, 150, 299, 300, 400):
            assert await store.read("t", start=start) == made[start:]
            for stop in (start, start + 1, packed[0], 200, 300, 999):
                assert await store.read("t", start=start, stop=stop) == made[start:stop]


async def test_frames_are_packed_while_the_store_is_in_use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CHECKPOINT_AFTER", 32)
    made = frames(300)
    async with SQLiteCheckpointer(path) as store:
        for number, frame in enumerate(made):
            await append(store, "t", frame, at=number)
        assert await store.read("t") == made
        with database(path) as db:
            assert db.execute("SELECT count(*) FROM packs").get >= 2


async def test_short_logs_and_large_frames_are_not_packed(path: Path) -> None:
    await fill(path, frames(10), "short")
    large = [bytes([number]) * 40_000 for number in range(6)]
    mixed = [*frames(30), *large, *frames(30)]
    await fill(path, mixed, "mixed")
    alone, packed = rows(path)
    assert (alone, packed) == (16, [30, 30])
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("mixed") == mixed
        assert await store.read("mixed", start=29, stop=37) == mixed[29:37]
        assert await store.read("short") == frames(10)


async def test_an_append_of_packed_frames_again_is_no_conflict_and_of_others_is(path: Path) -> None:
    made = frames(100)
    await fill(path, made)
    async with SQLiteCheckpointer(path) as store:
        await append(store, "t", made[40], at=40)
        await append(store, "t", *made[10:60], at=10)
        with pytest.raises(Conflict):
            await append(store, "t", b"other", at=40)
        await append(store, "t", b"more", at=100)
        assert await store.read("t") == [*made, b"more"]


async def test_a_deleted_thread_leaves_no_packs(path: Path) -> None:
    await fill(path, frames(100))
    await fill(path, frames(60), "other")
    async with SQLiteCheckpointer(path) as store:
        await store.delete("t")
        assert await store.read("t") == []
        assert await store.read("other") == frames(60)
    assert sum(rows(path)[1]) + rows(path)[0] == 60


async def test_packs_that_an_older_clew_left_behind_are_not_given_to_a_new_thread(path: Path) -> None:
    await fill(path, frames(60))
    with database(path) as db:
        db.execute("DELETE FROM heads; DELETE FROM refs; DELETE FROM frames")
    async with SQLiteCheckpointer(path) as store:
        await append(store, "new", b"frame")
        assert await store.read("new") == [b"frame"]


async def test_a_packed_thread_is_deleted_in_parts(path: Path) -> None:
    await fill(path, frames(400))
    deletion = ThreadDeletion("", "t", str(path))
    with database(path) as db:
        parts = 0
        while True:
            with db:
                if deletion.delete_part(db.cursor()):
                    break
            parts += 1
    assert parts > len(frames(400)) * 1500 // packs.FULL
    assert rows(path) == (0, [])


async def test_the_frames_of_a_store_of_version_3_are_packed_when_its_logs_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = frames(200)
    with monkeypatch.context() as before:
        before.setattr(schema, "PAGE_SIZE", 8192)
        before.setattr(engine, "LEAST", 2**60)
        before.setattr(engine, "PACK_AFTER", 2**60)
        await fill(path, made)
    assert rows(path) == (200, [])
    with database(path) as db:
        db.execute("DROP TABLE packs; DROP INDEX heads_by_due; ALTER TABLE heads DROP COLUMN due")
        db.execute("PRAGMA user_version = 3")
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("t") == made
        for number, frame in enumerate(frames(40), 200):
            await append(store, "t", frame, at=number)
        assert await store.read("t") == [*made, *frames(40)]
    alone, packed = rows(path)
    assert alone < 30
    assert alone + sum(packed) == 240
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("t") == [*made, *frames(40)]


async def test_packing_that_fails_leaves_the_frames_where_they_are(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = packs.pack_frames

    def fail(db: apsw.Cursor, log: int, least: int) -> int:
        sound(db, log, least)
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(packs, "pack_frames", fail)
    await fill(path, frames(100))
    assert rows(path) == (100, [])
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("t") == frames(100)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM packs",
        "UPDATE packs SET count = count - 1",
        "UPDATE packs SET count = 'many'",
        "UPDATE packs SET count = 2000000000",
        "UPDATE packs SET number = number + 1",
        "UPDATE packs SET data = substr(data, 2)",
        "UPDATE packs SET data = 'text'",
        "UPDATE packs SET data = x''",
        "UPDATE heads SET frames = frames - 1",
        "INSERT INTO frames (thread, number, data) SELECT thread, number + 1, data FROM packs",
    ],
)
async def test_a_damaged_pack_is_corrupt(path: Path, damage: str) -> None:
    await fill(path, frames(60))
    assert rows(path)[0] == 0
    with database(path) as db:
        db.execute(damage)
    async with SQLiteCheckpointer(path) as store:
        with pytest.raises(Corrupt):
            await store.read("t")
