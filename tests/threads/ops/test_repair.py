"""repair saves what can be saved into a new thread, and touches nothing of the old one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, Head, MemoryCheckpointer, SQLiteCheckpointer
from clew.errors import Conflict, Corrupt, NewerFormat, ThreadNotFound, Unavailable, WrongKey
from clew.log import MessageAdded, decode_frame
from clew.messages import assistant, user
from clew.threads.heads import PART
from clew.threads.ops.repair import repair
from clew.threads.ops.verify import verify
from tests.sqlite_files import database
from tests.stores import store_fixture
from tests.threads.keeping import turn, with_folded_state, with_turns

pytestmark = pytest.mark.anyio

KEY = "00" * 32


store = store_fixture()


async def times(store: Checkpointer, thread_id: str) -> list[int]:
    frames = await store.read(thread_id)
    return [decode_frame(data, thread_id, number, keys=store.keys).time for number, data in enumerate(frames)]


def damage(store: MemoryCheckpointer, thread_id: str, number: int) -> None:
    frame = bytearray(store._space.logs[thread_id].frames[number])
    frame[-20] ^= 1
    store._space.logs[thread_id].frames[number] = bytes(frame)


async def test_a_sound_thread_is_copied_whole(store: Checkpointer) -> None:
    await with_turns(store, "t", 3, MessageAdded(user("large " * 20_000)), MessageAdded(assistant("read")))
    old = await store.head("t")
    assert old is not None
    head = await repair(store, "t", "new")
    assert head == await store.head("new")
    assert (head.created_at, head.turns, head.tags, head.lease) == (old.created_at, 4, {"team": "x"}, None)
    assert await Thread.load(store, "new") == await Thread.load(store, "t")
    assert await times(store, "new") == await times(store, "t")
    assert (await verify(store, "new")).problems == ()
    assert await store.head("t") == old
    async with Thread.open(store, "new") as thread:
        await thread.append(*turn(5))


async def test_what_comes_before_the_damage_is_saved() -> None:
    store = MemoryCheckpointer()
    await with_turns(store, "t", 4)
    damage(store, "t", 4)
    before = list(store._space.logs["t"].frames)
    with pytest.raises(Corrupt):
        await Thread.load(store, "t")
    head = await repair(store, "t", "new")
    assert (head.frames, head.turns) == (4, 2)
    assert (await verify(store, "new")).problems == ()
    assert (await Thread.load(store, "new")).messages[-2] == turn(2)[1].message  # type: ignore[union-attr]
    assert store._space.logs["t"].frames == before


async def test_behind_the_damage_a_folded_state_saves_everything() -> None:
    store = MemoryCheckpointer()
    snapshot = await with_folded_state(store, "t")
    right = await Thread.load(store, "t")
    damage(store, "t", 1)
    head = await repair(store, "t", "new")
    old = await store.head("t")
    assert old is not None
    assert (head.frames, head.snapshot) == (old.frames - snapshot, 0)
    assert await Thread.load(store, "new") == right
    assert (await verify(store, "new")).problems == ()


async def test_a_frame_whose_blob_is_gone_ends_what_is_saved() -> None:
    store = MemoryCheckpointer()
    await with_turns(store, "t", 1, MessageAdded(user("large " * 20_000)))
    store._space.blobs.clear()
    store._space.touched.clear()
    assert (await repair(store, "t", "new")).frames == 3


async def test_a_damaged_head_is_made_anew(tmp_path: Path) -> None:
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        await with_turns(store, "t", 2)
        right = await Thread.load(store, "t")
    with database(tmp_path / "c.db") as db:
        db.execute("UPDATE heads SET head = zeroblob(10)")
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        assert {problem.frame for problem in (await verify(store, "t")).problems} == {None}
        await repair(store, "t", "new")
        assert await Thread.load(store, "new") == right
        assert (await verify(store, "new")).problems == ()


async def test_an_encrypted_thread_is_sealed_for_its_new_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url, key=KEY) as store:
        await with_turns(store, "t", 2)
        head = await repair(store, "t", "new")
        assert head.title == ""
        assert await Thread.load(store, "new") == await Thread.load(store, "t")
        assert (await verify(store, "new")).problems == ()
    async with open_checkpointer(url) as store:
        with pytest.raises(WrongKey):
            await repair(store, "t", "another")
        assert await store.head("another") is None


async def test_what_a_newer_version_wrote_is_not_taken_for_damage() -> None:
    from blake3 import blake3

    store = MemoryCheckpointer()
    await with_turns(store, "t", 1)
    frames = store._space.logs["t"].frames
    newer = b"\2" + frames[2][1:-16]
    frames[2] = newer + blake3(newer).digest(16)
    with pytest.raises(NewerFormat):
        await repair(store, "t", "new")
    assert 2 in {problem.frame for problem in (await verify(store, "t")).problems}


async def test_nothing_to_save_is_said_and_nothing_is_written() -> None:
    store = MemoryCheckpointer()
    await with_turns(store, "t", 1)
    damage(store, "t", 0)
    with pytest.raises(Corrupt, match="nothing can be saved"):
        await repair(store, "t", "new")
    assert await store.head("new") is None


async def test_a_thread_that_exists_is_never_overwritten(store: Checkpointer) -> None:
    await with_turns(store, "t", 1)
    await with_turns(store, "taken", 2)
    with pytest.raises(Conflict, match="this thread exists"):
        await repair(store, "t", "taken")
    with pytest.raises(Conflict):
        await repair(store, "t", "t")
    with pytest.raises(ThreadNotFound):
        await repair(store, "absent", "new")
    assert (await Thread.load(store, "taken")).turns == 2


class Failing(MemoryCheckpointer):
    """Stores so many appends to a thread, and then none."""

    left = -1

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        if thread_id == "new":
            if self.left == 0:
                raise Unavailable("no answer")
            self.left -= 1
        await super().append(thread_id, frames, at=at, head=head, refs=refs)


async def test_a_long_thread_goes_over_in_parts_that_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.threads.ops.repair.MAX_APPEND", 500)
    store = Failing()
    await with_turns(store, "t", 8)
    store.left = 2
    with pytest.raises(Unavailable):
        await repair(store, "t", "new")
    head = await store.head("new")
    assert head is not None
    assert head.tags[PART] == "1"
    store.left = -1
    await repair(store, "t", "new")
    head = await store.head("new")
    assert head is not None
    assert PART not in head.tags
    assert await Thread.load(store, "new") == await Thread.load(store, "t")
    assert (await verify(store, "new")).problems == ()
