"""Tests `sqlite/room.py`: a deletion in parts, and the file that holds room in reserve. The full disk itself is in
`tests/crash/test_full_disk.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.checkpointers import SQLiteCheckpointer
from clew.checkpointers.sqlite import room
from clew.checkpointers.sqlite.room import ThreadDeletion
from clew.testing.contract.builders import append, listed
from tests.sqlite_files import database

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def begin_deletion(path: Path, parts: int) -> None:
    """Make two threads of 40 frames, and delete the second in as many parts as given, as a process that dies then."""
    async with SQLiteCheckpointer(path) as store:
        for number in range(40):
            await append(store, "first", b"%d" % number, at=number)
            await append(store, "second", b"%d" % number, at=number)
    deletion = ThreadDeletion("", "second", str(path))
    with database(path) as db:
        for _ in range(parts):
            with db:
                assert not deletion.delete_part(db.cursor())


def left(path: Path) -> list[int]:
    with database(path) as db:
        return [int(db.execute(f"SELECT count(*) FROM {table}").get) for table in ("heads", "frames")]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
async def test_a_deletion_that_was_broken_off_is_seen_as_done_and_finished_by_the_next_writer(
    path: Path, parts: int
) -> None:
    await begin_deletion(path, parts)
    async with SQLiteCheckpointer(path) as store:
        assert await listed(store) == ["first"]
        assert await store.head("second") is None
        assert await store.read("second") == []
        await append(store, "second", b"new")
        assert await store.read("second") == [b"new"]
        assert len(await store.read("first")) == 40
    assert left(path) == [2, 41]


async def test_a_thread_made_anew_does_not_get_the_frames_of_one_whose_deletion_was_broken_off(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin_deletion(path, 2)
    monkeypatch.setattr("clew.checkpointers.sqlite.engine.finish_deletions", lambda _: None)
    async with SQLiteCheckpointer(path) as store:
        await append(store, "third", b"a frame of the third")
        assert await store.read("third") == [b"a frame of the third"]


async def test_room_is_held_in_reserve_only_while_a_store_is_written_to(path: Path) -> None:
    reserve = path.with_name("store.db-reserve")
    async with SQLiteCheckpointer(path) as store:
        assert await store.head("thread") is None
        assert not reserve.exists()
        await append(store, "thread", b"frame")
        assert reserve.stat().st_size == reserve.stat().st_blocks * 512 == room.RESERVE
        assert reserve in store.own_files
    assert not reserve.exists()
    assert left(path) == [1, 1]


async def test_deleting_on_a_disk_that_is_short_of_room_makes_the_file_smaller(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew._runtime.files.Reserve.is_short", lambda _: True)
    async with SQLiteCheckpointer(path) as store:
        for number in range(100):
            await append(store, "thread", bytes(20_000), at=number)
        await store.delete("thread")
        assert path.stat().st_size < 200_000
        assert Path(f"{path}-wal").stat().st_size == 0
