"""Copies between stores: equal, hidden until they are whole, resumable, and in nobody's way."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer, SQLiteCheckpointer
from clew.errors import Conflict, Corrupt, MissingBlob, ThreadBusy, ThreadNotFound, Unavailable, WrongKey
from clew.log import FoldedState, Frame, MessageAdded, encode_entries, sealed_with
from clew.log.blobs import blob_key
from clew.log.trees import rename_trees
from clew.messages import assistant, user
from clew.threads.heads import PART, is_part
from clew.threads.ops import copy as copying
from clew.threads.ops.copy import copy, copy_all
from clew.threads.ops.gc import below
from clew.threads.reader import load
from tests.threads.keeping import read_frames
from tests.threads.moving import (
    KEY,
    OTHER,
    UNKNOWN,
    described,
    files_of,
    log_of,
    store_of,
    stores,
    with_key,
    write_long,
    write_rich,
)

pytestmark = pytest.mark.anyio


class Dying(MemoryCheckpointer):
    """A store that stops answering after some appends."""

    left = 10**9

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        if self.left == 0:
            raise Unavailable("gone")
        self.left -= 1
        await super().append(thread_id, frames, at=at, head=head, refs=refs)


async def assert_equal(one: Checkpointer, other: Checkpointer, thread_id: str, other_id: str = "") -> None:
    other_id = other_id or thread_id
    assert await log_of(one, thread_id) == await log_of(other, other_id)
    assert await _state_of(one, thread_id) == await _state_of(other, other_id)
    renamed = msgspec.structs.replace(described(await other.head(other_id)), thread_id=thread_id)
    assert described(await one.head(thread_id)) == renamed


async def _state_of(store: Checkpointer, thread_id: str) -> tuple[bytes, list[Any]]:
    """The state, and apart from it all files that it names: their digests depend on the key."""
    entry = FoldedState((await load(store, thread_id)).state)
    trees = [fact.value[0] for fact in entry.state.facts if fact.kind == "workspace"]
    assert await store.refs(thread_id) >= set(trees)
    (without,) = rename_trees([entry], dict.fromkeys(trees, ""))
    return encode_entries([without]).entries, [await files_of(store, digest) for digest in trees]


@pytest.mark.parametrize("keys", [(None, None, None, None), (KEY, KEY, KEY, KEY), (KEY, None, OTHER, KEY)])
async def test_a_thread_that_went_through_every_store_is_equal(keys: list[str | None], tmp_path: Path) -> None:
    first, second, third, fourth = (
        store_of(kind, tmp_path / str(number), key)
        for number, (kind, key) in enumerate(zip(["sqlite", "files", "memory", "sqlite"], keys, strict=True))
    )
    async with stores(first, second, third, fourth):
        await write_rich(first)
        for one, other in itertools.pairwise([first, second, third, fourth]):
            for thread_id in ("t", "t-fork"):
                await copy(one, other, thread_id)
        await assert_equal(first, fourth, "t")
        await assert_equal(first, fourth, "t-fork")
        assert any(UNKNOWN in frame.entries for frame in (await frames_of(fourth, "t")))
        assert (await fourth.head("t")).title == ("" if keys[3] else "A trip")  # type: ignore[union-attr]
        if keys[0] == keys[3]:
            assert await fourth.refs("t") == await first.refs("t")
        async with Thread.open(fourth, "t") as thread:
            await thread.append(MessageAdded(user("It goes on.")))


async def frames_of(store: Checkpointer, thread_id: str) -> list[Frame]:
    head = await store.head(thread_id)
    assert head is not None
    return await read_frames(store, head)


async def test_a_copy_for_a_key_holds_nothing_plain_and_nothing_of_the_old_key() -> None:
    for old in (None, OTHER):
        source, target = store_of("memory", Path(), old), store_of("memory", Path(), KEY)
        await write_rich(source)
        await copy(source, target, "t")
        assert target.keys is not None
        assert {sealed_with(frame) for frame in await target.read("t")} == {target.keys.current}
        blobs = await target.get_blobs(await below(target, await target.refs("t")))
        assert blobs
        assert {blob_key(blob) for blob in blobs.values()} == {target.keys.current}
        await assert_equal(source, target, "t")


async def test_after_a_rotation_a_copy_needs_only_the_new_key() -> None:
    source, target = store_of("memory", Path(), KEY), store_of("memory", Path(), OTHER)
    await write_rich(source)
    source = with_key(source, [OTHER, KEY])
    async with Thread.open(source, "t") as thread:
        await thread.append(MessageAdded(user("under the new key")))
    await copy(source, target, "t")
    await assert_equal(source, target, "t")


async def test_a_sealed_thread_is_not_copied_without_its_key() -> None:
    source, target = store_of("memory", Path(), KEY), MemoryCheckpointer()
    await write_rich(source)
    for key in (None, OTHER):
        with pytest.raises(WrongKey):
            await copy(with_key(source, key), target, "t")
        assert await target.head("t") is None


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_copy_may_have_another_name_also_in_the_same_store(key: str | None) -> None:
    store = store_of("memory", Path(), key)
    await write_rich(store)
    head = await copy(store, store, "t", new_id="t2")
    assert head.thread_id == "t2"
    await assert_equal(store, store, "t", "t2")


async def test_a_copy_to_another_namespace_brings_its_blobs(tmp_path: Path) -> None:
    one, other = SQLiteCheckpointer(tmp_path / "c.db", "a"), SQLiteCheckpointer(tmp_path / "c.db", "b")
    async with stores(one, other):
        await write_rich(one)
        await copy(one, other, "t")
        await assert_equal(one, other, "t")


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_long_copy_is_hidden_until_its_last_part(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PART_SIZE", 100_000)
    source, dying = MemoryCheckpointer(), Dying()
    target = with_key(dying, key)
    await write_long(source, "t", 30, 20_000)
    seen: list[Head] = []
    steps: list[tuple[int, int | None]] = []

    def told(done: int, total: int | None) -> None:
        steps.append((done, total))

    dying.left = 4
    with pytest.raises(Unavailable):
        await copy(source, target, "t", progress=told)
    part = await target.head("t")
    assert part is not None
    seen.append(part)
    assert is_part(part)
    assert part.tags[PART] == "long"
    assert (part.title, part.status, part.lease) == ("", "interrupted", None)
    assert 0 < part.frames < 30
    dying.left = 10**9
    head = await copy(source, target, "t", progress=told)
    assert not is_part(head)
    assert head.log_id == part.log_id, "it went on, and did not begin again"
    assert steps[-1] == (30, 30)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    await assert_equal(source, target, "t")


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_part_of_another_thread_or_with_another_beginning_is_started_over(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PART_SIZE", 100_000)
    for log_id in ("long", "another"):
        source, other, dying = MemoryCheckpointer(), MemoryCheckpointer(), Dying()
        target = with_key(dying, key)
        await write_long(source, "t", 20, 20_000)
        await write_long(other, "t", 20, 20_000)
        dying.left = 2
        with pytest.raises(Unavailable):
            await copy(other, target, "t")
        dying.left = 10**9
        if log_id == "another":
            part = await target.head("t")
            assert part is not None
            marked = msgspec.structs.replace(part, tags={PART: log_id})
            await target.append("t", [], at=part.frames, head=marked)
        await copy(source, target, "t")
        await assert_equal(source, target, "t")


class Halting(MemoryCheckpointer):
    """A store that shares the threads of another one, and that halts before one of its calls until it is told to go on."""

    def __init__(self, other: MemoryCheckpointer, before: int) -> None:
        super().__init__()
        self.other = other
        self.left = before
        self.halted, self.go_on = asyncio.Event(), asyncio.Event()

    async def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.halted.set()
            await self.go_on.wait()

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        await self._step()
        await self.other.append(thread_id, frames, at=at, head=head, refs=refs)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        await self._step()
        return await self.other.read(thread_id, start=start, stop=stop)

    async def head(self, thread_id: str) -> Head | None:
        await self._step()
        return await self.other.head(thread_id)

    async def delete(self, thread_id: str) -> None:
        await self._step()
        await self.other.delete(thread_id)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        await self.other.put_blobs(blobs)

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        return await self.other.missing_blobs(digests)

    async def refs(self, thread_id: str) -> set[str]:
        return await self.other.refs(thread_id)


@pytest.mark.parametrize("frames", [1, 2, 6])
async def test_two_copies_at_once_never_delete_what_the_other_has_completed(
    frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first halts before each of its calls to the store, the second comes and halts before each of its own, then the
    first ends, and then the second."""
    monkeypatch.setattr(copying, "PART_SIZE", 5_000)
    sources = MemoryCheckpointer(), MemoryCheckpointer()
    for number, source in enumerate(sources):
        async with Thread.open(source, "t") as thread:
            await thread.append(MessageAdded(user(f"I am {number}.")))
            for _ in range(frames - 1):
                await thread.append(MessageAdded(assistant(os.urandom(2_000).hex())))
                await thread.flush()
    ended: set[tuple[bool, bool]] = set()
    for halts in itertools.product(range(1, 12), range(1, 16)):
        store = MemoryCheckpointer()
        targets = [Halting(store, halt) for halt in halts]
        tasks = []
        for source, target in zip(sources, targets, strict=True):
            task = asyncio.ensure_future(copy(source, target, "t"))
            halted = asyncio.ensure_future(target.halted.wait())
            await asyncio.wait([task, halted], return_when=asyncio.FIRST_COMPLETED)
            halted.cancel()
            tasks.append(task)
        for task, target in zip(tasks, targets, strict=True):
            target.go_on.set()
            await asyncio.wait([task])
        errors = [task.exception() for task in tasks]
        assert all(isinstance(error, Conflict | ThreadBusy | None) for error in errors), (halts, errors)
        ended.add((errors[0] is None, errors[1] is None))
        for source, error in zip(sources, errors, strict=True):
            if error is None:
                assert (await store.head("t")) is not None, halts
                assert await log_of(store, "t") == await log_of(source, "t"), halts
        if None not in errors:
            await copy(sources[0], store, "t")
            await assert_equal(sources[0], store, "t")
    assert ended >= {(True, False), (False, True)}
    assert (True, True) not in ended


async def test_a_copy_that_is_there_is_left_alone_and_another_thread_is_a_conflict() -> None:
    source = MemoryCheckpointer()
    await write_rich(source)
    for key in (None, KEY):
        target = store_of("memory", Path(), key)
        first = await copy(source, target, "t")
        assert await copy(source, target, "t") == first
        async with Thread.open(target, "t") as thread:
            await thread.append(MessageAdded(user("worked on")))
        with pytest.raises(Conflict, match="another thread with this id, or another version of this thread"):
            await copy(source, target, "t")
        async with Thread.open(target, "t-fork") as thread:
            await thread.append(MessageAdded(user("something else")))
        with pytest.raises(Conflict, match="another thread"):
            await copy(source, target, "t-fork")


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_copy_made_again_later_is_brought_up_to_date(key: str | None) -> None:
    source, target = MemoryCheckpointer(), store_of("memory", Path(), key)
    await write_rich(source)
    first = await copy(source, target, "t")
    async with Thread.open(source, "t") as thread:
        await thread.append(MessageAdded(user("more")), MessageAdded(assistant("x" * 100_000)))
    second = await copy(source, target, "t")
    assert second.log_id == first.log_id
    await assert_equal(source, target, "t")


async def test_a_thread_that_is_being_worked_on_is_copied_as_it_was_and_its_lease_is_not() -> None:
    source, target = MemoryCheckpointer(), MemoryCheckpointer()

    class Moving(MemoryCheckpointer):
        """Reads go to a thread that moves on after each."""

        async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
            await thread.append(MessageAdded(user("meanwhile")))
            return await super().read(thread_id, start=start, stop=stop)

    async with Thread.open(source, "t") as thread:
        await thread.append(MessageAdded(user("Hello")), MessageAdded(assistant("Hi")))
        before = thread.checkpoint
        head = await copy(Moving(beside=source), target, "t")
        assert thread.head.lease is not None
    assert head.lease is None
    assert head.status == "interrupted"
    assert (await load(target, "t")).state == before


async def test_what_is_not_there_or_hidden_is_not_found() -> None:
    source, target = Dying(), MemoryCheckpointer()
    with pytest.raises(ThreadNotFound):
        await copy(source, target, "t")
    await write_long(target, "t", 3, 10)
    source.left = 1
    with pytest.raises(Unavailable):
        await copy(target, source, "t")
    with pytest.raises(ThreadNotFound):
        await copy(source, MemoryCheckpointer(), "t")


async def test_damage_in_the_source_is_named_and_leaves_nothing_behind() -> None:
    for key in (None, KEY):
        source, target = MemoryCheckpointer(), store_of("memory", Path(), key)
        await write_rich(source)
        frames = source._space.logs["t"].frames
        whole = frames[3]
        frames[3] = whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]
        with pytest.raises(Corrupt, match="thread 't', frame 3"):
            await copy(source, target, "t")
        frames[3] = whole
        blob = max(source._space.blobs, key=lambda digest: len(source._space.blobs[digest]))
        del source._space.blobs[blob]
        with pytest.raises(MissingBlob):
            await copy(source, target, "t")
        assert [head async for head in target.heads()] == []


async def test_a_whole_store_is_copied_and_copied_again() -> None:
    source, target = MemoryCheckpointer(), store_of("memory", Path(), KEY)
    for name in ("a", "b", "c"):
        await write_rich(source, name)
    async with Thread.open(target, "b") as thread:
        await thread.append(MessageAdded(user("mine")))
    steps: list[tuple[int, int | None]] = []
    copied = await copy_all(source, target, progress=lambda done, total: steps.append((done, total)))
    assert set(copied.ids) == {"a", "a-fork", "b-fork", "c", "c-fork"}
    assert copied.skipped == ()
    assert list(copied.failed) == ["b"]
    assert "another thread" in copied.failed["b"]
    assert copied.bytes > 100_000
    assert steps == [(count, 6) for count in range(1, 7)]
    again = await copy_all(source, target, HeadQuery(prefix="a"))
    assert (again.ids, set(again.skipped), again.bytes) == ((), {"a", "a-fork"}, 0)


async def test_a_store_that_stops_answering_ends_a_copy_of_all_and_the_next_one_finishes_it() -> None:
    source, target = MemoryCheckpointer(), Dying()
    for name in ("a", "b", "c"):
        await write_rich(source, name)
    target.left = 4
    with pytest.raises(Unavailable):
        await copy_all(source, target)
    assert any([is_part(head) async for head in target.heads()])
    parts = await copy_all(target, MemoryCheckpointer())
    assert len(parts.ids) == 2, "parts are no threads"
    target.left = 10**9
    copied = await copy_all(source, target)
    assert len(copied.ids) == 4
    assert len(copied.skipped) == 2
    for name in ("a", "b", "c"):
        await assert_equal(source, target, name)
