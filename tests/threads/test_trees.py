"""Files that a thread names: kept as long as it does, wherever it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.errors import Corrupt, InvalidInput, MissingBlob, Unavailable
from clew.log import WorkspaceSnapshot
from clew.log.blobs import pack_blob, pack_tree
from clew.threads.ops.gc import below, gc
from clew.threads.trees import TreeMover, note_fresh
from tests.stores import STORES, make_store
from tests.threads.keeping import turn
from tests.threads.moving import files_of, some_files

pytestmark = pytest.mark.anyio

NOW = timedelta(0)


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpointer:
    return make_store(request.param, tmp_path)


async def test_files_that_a_thread_names_outlive_gc_and_go_with_the_thread(store: Checkpointer) -> None:
    async with store:
        files = await some_files(store, b"one")
        async with Thread.open(store, "t") as thread:
            await thread.append(*turn(1), files)
        assert (await gc(store, grace=NOW)).deleted == 0
        assert (await Thread.verify(store, "t")).sound
        await store.delete("t")
        assert (await gc(store, grace=NOW)).deleted == 4


async def test_a_fork_keeps_the_files_of_every_turn_it_can_go_back_to(store: Checkpointer) -> None:
    async with store:
        first, second = await some_files(store, b"one"), await some_files(store, b"two")
        async with Thread.open(store, "t") as thread:
            await thread.append(*turn(1), first)
            await thread.append(*turn(2), second)
            await thread.fork("f")
            await thread.fork("early", at_turn=1)
            await thread.delete()
        await gc(store, grace=NOW)
        assert (await Thread.load(store, "f")).workspace == second
        assert (await Thread.load(store, "f", at_turn=1)).workspace == first
        for snapshot in (first, second):
            await files_of(store, snapshot.digest)
        await store.delete("f")
        await gc(store, grace=NOW)
        await files_of(store, first.digest)
        assert not await store.get_blobs([second.digest])
        assert (await Thread.verify(store, "early")).sound


async def test_what_is_rewritten_keeps_its_files_and_what_was_rewound_goes(store: Checkpointer) -> None:
    async with store:
        first, gone = await some_files(store, b"one"), await some_files(store, b"two")
        async with Thread.open(store, "t") as thread:
            await thread.append(*turn(1), first)
            await thread.append(*turn(2), gone)
            await thread.rewind(to_turn=1)
        await Thread.purge_rewound(store, "t")
        await files_of(store, first.digest)
        assert not await store.get_blobs([gone.digest])
        assert (await Thread.verify(store, "t")).sound
        await Thread.repair(store, "t", "saved")
        await Thread.purge(store, "t")
        await gc(store, grace=NOW)
        await files_of(store, first.digest)
        assert (await Thread.verify(store, "saved")).sound


async def test_a_snapshot_that_is_not_in_the_store_is_refused_and_the_thread_goes_on(store: Checkpointer) -> None:
    async with store, Thread.open(store, "t") as thread:
        with pytest.raises(MissingBlob):
            await thread.append(WorkspaceSnapshot("ab" * 32))
        with pytest.raises(InvalidInput, match="not a digest"):
            await thread.append(WorkspaceSnapshot("my files"))
        assert thread.checkpoint.workspace is None
        await thread.append(*turn(1))


async def test_a_missing_chunk_is_named_by_verify_and_stops_a_copy(store: Checkpointer, tmp_path: Path) -> None:
    async with store, make_store("memory", tmp_path) as target:
        files = await some_files(store, b"one")
        async with Thread.open(store, "t") as thread:
            await thread.append(*turn(1), files)
        lost = (await below(store, [files.digest]))[-1]
        await store.delete_blobs([lost], untouched_for=NOW)
        assert lost in {problem.blob for problem in (await Thread.verify(store, "t")).problems}
        with pytest.raises(MissingBlob, match=lost[:8]):
            await Thread.copy(store, target, "t")
        assert await target.head("t") is None


async def test_a_tree_that_is_touched_during_a_purge_keeps_all_below_it(
    store: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store:
        files = await some_files(store, b"one")
        async with Thread.open(store, "t") as thread:
            await thread.append(*turn(1), files)
        pause = asyncio.sleep

        async def touching(seconds: float) -> None:
            await pause(seconds / 2)
            assert not await store.missing_blobs([files.digest])
            await pause(seconds / 2)

        monkeypatch.setattr("clew.threads.ops.purge.asyncio.sleep", touching)
        await Thread.purge(store, "t")
        monkeypatch.undo()
        assert (await files_of(store, files.digest))[0] == b"outer"


@pytest.mark.parametrize("left", range(4))
async def test_a_tree_that_is_left_by_an_interrupted_gc_is_whole(left: int) -> None:
    class Dying(MemoryCheckpointer):
        async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
            nonlocal left
            if left == 0:
                raise Unavailable("gone")
            left -= 1
            await super().delete_blobs(digests, untouched_for=untouched_for)

    store = Dying()
    trees = [await some_files(store, b"%d" % number) for number in range(3)]
    with suppress(Unavailable):
        await gc(store, grace=NOW)
    for tree in trees:
        if await store.get_blobs([tree.digest]):
            await files_of(store, tree.digest)


async def test_an_old_snapshot_is_named_only_if_all_of_it_is_there(store: Checkpointer) -> None:
    async with store, Thread.open(store, "t") as thread:
        files = await some_files(store, b"one")
        await store.delete_blobs([(await below(store, [files.digest]))[-1]], untouched_for=NOW)
        with pytest.raises(MissingBlob):
            await thread.append(files)
        note_fresh(store, files.digest)
        await thread.append(files)


async def test_a_tree_among_the_leaves_of_another_is_corrupt(tmp_path: Path) -> None:
    async with make_store("memory", tmp_path) as store, make_store("memory", tmp_path) as target:
        inner = pack_tree(b"inner", leaves=[pack_blob(b"chunk")[0]])
        outer = pack_tree(b"outer", leaves=[inner[0]])
        await store.put_blobs(dict([pack_blob(b"chunk"), inner, outer]))
        async with Thread.open(store, "t") as thread:
            await thread.append(*turn(1), WorkspaceSnapshot(outer[0]))
        with pytest.raises(Corrupt, match="tree"):
            await Thread.copy(store, target, "t")


async def test_folders_nested_deeper_than_the_stack_are_moved(tmp_path: Path) -> None:
    async with make_store("memory", tmp_path) as store:
        digest, packed = pack_tree(b"")
        await store.put_blobs({digest: packed})
        for _ in range(3_000):
            digest, packed = pack_tree(b"", [digest])
            await store.put_blobs({digest: packed})
        moved: dict[str, bytes] = {}

        async def put(blobs: dict[str, bytes]) -> None:
            moved.update(blobs)

        assert await TreeMover(store, None, put, "t").move([digest]) == {digest: digest}
        assert len(moved) == 3_001
