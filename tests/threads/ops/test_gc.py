"""gc deletes what no thread reaches, and nothing else, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, FileCheckpointer, MemoryCheckpointer
from clew.errors import Corrupt, MissingBlob
from clew.log import MessageAdded
from clew.log.blobs import pack_blob, pack_tree
from clew.messages import assistant, user
from clew.threads.heads import PART
from clew.threads.ops.gc import below, gc
from clew.threads.ops.verify import verify
from tests.clock import Clock
from tests.stores import store_fixture
from tests.threads.keeping import turn, with_turns, write_log

pytestmark = pytest.mark.anyio

NOW = timedelta(0)


store = store_fixture()


async def with_large(store: Checkpointer, thread_id: str, *texts: str) -> None:
    async with Thread.open(store, thread_id) as thread:
        for text in texts:
            await thread.append(MessageAdded(user(text * 30_000)), MessageAdded(assistant("read")))


async def everything(store: Checkpointer) -> set[str]:
    return {digest async for digest in store.blobs(untouched_for=NOW)}


async def refer(store: Checkpointer, thread_id: str, digest: str) -> None:
    """Let a thread point at this blob."""
    await with_turns(store, thread_id, 1)
    head = await store.head(thread_id)
    assert head is not None
    await store.append(thread_id, [], at=head.frames, head=head, refs=[digest])


async def test_what_no_thread_reaches_goes_and_all_else_stays(store: Checkpointer) -> None:
    await with_large(store, "a", "shared ", "only a ")
    await with_large(store, "b", "shared ", "only b ")
    await store.delete("a")
    (doomed,) = await everything(store) - await store.refs("b")
    size = len((await store.get_blobs([doomed]))[doomed])
    steps: list[tuple[int, int | None]] = []
    told = await gc(store, grace=NOW, dry_run=True)
    assert (told.deleted, told.freed, told.dry_run) == (1, size, True)
    assert doomed in await everything(store)
    done = await gc(store, grace=NOW, progress=lambda *step: steps.append(step))
    assert (done.examined, done.reachable, done.deleted, done.freed) == (3, 2, 1, size)
    assert await everything(store) == await store.refs("b")
    assert (await verify(store, "b")).problems == ()
    assert steps[0] == (1, None)
    assert (await gc(store, grace=NOW)).deleted == 0


async def test_what_was_touched_during_the_grace_stays(store: Checkpointer) -> None:
    await with_large(store, "a", "text ")
    await store.delete("a")
    collected = await gc(store)
    assert (collected.examined, collected.deleted) == (0, 0)
    assert len(await everything(store)) == 1


async def test_a_tree_keeps_what_is_below_it_and_lets_it_go_with_itself(store: Checkpointer) -> None:
    leaf, other = pack_blob(b"a file"), pack_blob(b"nobody's file")
    inner = pack_tree(b"a folder", leaves=[leaf[0]])
    outer = pack_tree(b"the workspace", [inner[0]])
    await store.put_blobs(dict([leaf, other, inner, outer]))
    await refer(store, "t", outer[0])
    assert await below(store, [outer[0]]) == [outer[0], inner[0], leaf[0]]
    assert (await gc(store, grace=NOW)).deleted == 1
    assert await everything(store) == {leaf[0], inner[0], outer[0]}
    await store.delete("t")
    assert (await gc(store, grace=NOW)).deleted == 3


async def test_threads_that_are_hidden_keep_their_blobs(store: Checkpointer) -> None:
    await write_log(store, "part", [turn(1, "large " * 20_000)], tags={PART: "1"})
    assert (await gc(store, grace=NOW)).deleted == 0


GRACE = timedelta(hours=1)


class Eventful(MemoryCheckpointer):
    """A store on which something happens between two steps of a gc."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.happens: str = ""
        self.slow = 0.0

    async def refs(self, thread_id: str) -> set[str]:
        found = await super().refs(thread_id)
        if self.happens == "a thread appears" and thread_id == "other":
            self.happens = ""
            await with_large(self, "late", "text ")
        return found

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        if self.happens == "a thread appears while the deletion waits":
            self.happens = ""
            await with_large(self, "late", "text ")
            self.clock.advance(self.slow)
        await super().delete_blobs(digests, untouched_for=untouched_for)


@pytest.mark.parametrize("happens", ["a thread appears", "a thread appears while the deletion waits"])
@pytest.mark.parametrize("slow", [0.0, 2 * GRACE.total_seconds()])
async def test_a_blob_that_is_used_again_while_gc_runs_stays(happens: str, slow: float, clock: Clock) -> None:
    store = Eventful(clock)
    await with_turns(store, "other", 1)
    await with_large(store, "gone", "text ")
    await store.delete("gone")
    clock.advance(1.2 * GRACE.total_seconds())
    store.happens, store.slow = happens, slow
    assert (await gc(store, grace=GRACE)).deleted == 0
    assert store.happens == ""
    assert (await verify(store, "late")).problems == ()


async def test_a_gc_that_takes_longer_than_its_grace_deletes_nothing_that_is_used(clock: Clock) -> None:
    class Slow(Eventful):
        async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
            clock.advance(2 * GRACE.total_seconds())  # longer than the grace, after the refs were read
            return await super().get_blobs(digests)

    store = Slow(clock)
    await with_turns(store, "other", 1)
    await with_large(store, "gone", "text ")
    await store.delete("gone")
    clock.advance(1.2 * GRACE.total_seconds())
    store.happens = "a thread appears"
    assert (await gc(store, grace=GRACE)).deleted == 0
    assert (await verify(store, "late")).problems == ()


async def test_an_append_later_than_the_grace_is_refused_and_made_again_by_a_put(store: Checkpointer) -> None:
    digest, packed = pack_blob(b"put long ago")
    await store.put_blobs({digest: packed})
    assert (await gc(store, grace=NOW)).deleted == 1
    with pytest.raises(MissingBlob):
        await refer(store, "t", digest)
    await store.put_blobs({digest: packed})
    await refer(store, "u", digest)


async def test_if_it_is_not_known_what_a_thread_reaches_nothing_is_deleted(tmp_path: Path) -> None:
    async with FileCheckpointer(tmp_path) as store:
        await with_large(store, "good", "text ")
        await with_large(store, "gone", "other text ")
        await store.delete("gone")
        blobs = await everything(store)
        (path,) = list(tmp_path.rglob("threads/*/*"))
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    async with FileCheckpointer(tmp_path) as store:
        with pytest.raises(Corrupt):
            await gc(store, grace=NOW)
        assert await everything(store) == blobs


async def test_a_damaged_blob_that_nobody_reaches_goes_too(tmp_path: Path) -> None:
    async with FileCheckpointer(tmp_path) as store:
        await with_large(store, "gone", "text ")
        await store.delete("gone")
        (path,) = list(tmp_path.rglob("blobs/*/*"))
        path.write_bytes(b"damaged")
        collected = await gc(store, grace=NOW)
        assert (collected.deleted, collected.freed) == (1, 0)
        assert await everything(store) == set()
