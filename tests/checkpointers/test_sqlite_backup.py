"""A backup of a store that others are writing to: one state of it, whole, private and on the disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, SQLiteCheckpointer
from clew.checkpointers.sqlite.backup import backup
from clew.checkpointers.sqlite.schema import PAGE_SIZE
from clew.errors import Corrupt, InvalidInput, NewerFormat
from clew.log import MessageAdded
from clew.messages import user
from tests.crash.processes import Speaker
from tests.sqlite_files import database
from tests.threads.keeping import read_frames

pytestmark = pytest.mark.anyio


async def every_thread(store: Checkpointer) -> dict[str, int]:
    """How many frames each thread has, each frame of it checked."""
    found = {}
    async for head in store.heads():
        found[head.thread_id] = len(await read_frames(store, head))
    return found


async def write(path: Path, count: int = 20) -> None:
    async with SQLiteCheckpointer(path) as store, Thread.open(store, "t") as thread:
        for number in range(count):
            await thread.append(MessageAdded(user(os.urandom(40_000).hex() + str(number))))


async def test_a_backup_taken_while_another_process_writes_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    await write(path)
    with Speaker("tests.crash.appender", str(path)) as appender:
        acknowledged = 0
        for number in range(5):
            while acknowledged < (number + 1) * 20:
                acknowledged = int(appender.hear())
            done = backup(path, tmp_path / f"{number}.db")
            async with SQLiteCheckpointer(done.path) as copy:
                frames = await every_thread(copy)
            assert frames["busy"] > acknowledged, "all that was acknowledged before it began"
            assert frames["t"] >= 20
        last = acknowledged
        while acknowledged <= last:
            acknowledged = int(appender.hear())


async def test_a_backup_is_private_alone_and_goes_on_as_a_store(tmp_path: Path) -> None:
    path, target = tmp_path / "live.db", tmp_path / "new" / "copy of it #1?.db"
    await write(path)
    steps: list[tuple[int, int | None]] = []
    async with SQLiteCheckpointer(path) as store:
        await store.head("t")
        done = backup(path, target, lambda pages, total: steps.append((pages, total)))
        assert await store.head("t") is not None
    assert (done.path, done.bytes) == (target, target.stat().st_size)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(target.parent) == [target.name]
    assert steps[-1][0] == steps[-1][1] == done.bytes // PAGE_SIZE
    await write(target, 3)
    async with SQLiteCheckpointer(target) as copy:
        assert (await every_thread(copy))["t"] > (20 + 3)


async def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    path, target = tmp_path / "live.db", tmp_path / "copy.db"
    await write(path, 1)
    target.write_text("mine")
    for name in (target, path, tmp_path):
        with pytest.raises(InvalidInput, match="exists and is left alone"):
            backup(path, name)
    assert target.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "live.db"]


async def test_what_is_no_store_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        backup(tmp_path / "none.db", tmp_path / "copy.db")
    (tmp_path / "text.db").write_text("this is no database " * 100)
    with pytest.raises(Corrupt):
        backup(tmp_path / "text.db", tmp_path / "copy.db")
    with database(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(InvalidInput, match="another program"):
        backup(tmp_path / "other.db", tmp_path / "copy.db")
    await write(tmp_path / "newer.db", 1)
    with database(tmp_path / "newer.db") as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(NewerFormat):
        backup(tmp_path / "newer.db", tmp_path / "copy.db")
    assert sorted(name for name in os.listdir(tmp_path) if "copy" in name) == []
