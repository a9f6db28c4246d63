from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from clew.checkpointers import open_checkpointer
from clew.checkpointers.heads import thread_key
from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.bucket import Refused, _ahead
from clew.checkpointers.objects.clouds import open_obstore
from clew.checkpointers.objects.format import BLOB_HEADER, DEAD_SIZE, dead_record
from clew.checkpointers.objects.store import ObjectCheckpointer
from clew.checkpointers.objects.threads import TAIL
from clew.checkpointers.packed.clock import Clock
from clew.checkpointers.packed.packs import LARGEST, merged_with
from clew.errors import Conflict, Corrupt, InvalidInput, MissingExtra, NewerFormat, Unavailable
from clew.testing.contract.builders import all_blobs, append, digest_of, heads, listed, minute, put, state
from tests.limits import PATIENCE
from tests.servers.buckets import WatchedBucket
from tests.servers.proxy import Proxy
from tests.servers.rclone import rclone
from tests.servers.seaweedfs import BUCKET, SECRET, SeaweedFS, seaweedfs

pytestmark = pytest.mark.anyio

_DAY = 86_400_000_000
_LARGE = random.Random(1).randbytes(100_000)
_numbers = count()


# One object is the commit


async def test_an_append_is_one_put_and_nothing_else() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", b"one")
    bucket.forget()
    for number in range(1, 20):
        await append(store, "thread", b"frame", at=number)
    assert bucket.asked == {"put": 19}


async def test_whoever_has_read_a_thread_appends_to_it_with_one_put() -> None:
    bucket = WatchedBucket()
    await append(bucket.store(), "thread", b"one")
    other = bucket.store()
    assert await other.read("thread") == [b"one"]
    bucket.forget()
    await append(other, "thread", b"two", at=1)
    assert bucket.asked == {"put": 1}


async def test_a_thousand_turns_are_a_handful_of_objects_and_a_small_multiple_of_bytes() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    dice = random.Random(7)
    frames: list[bytes] = []
    for _ in range(1000):
        turn = [dice.randbytes(dice.randrange(500, 3000)) for _ in range(3)]
        await append(store, "thread", *turn, at=len(frames))
        frames += turn
    size = sum(map(len, frames))
    print(len(await bucket.keys()), bucket.bytes_put / size, size)
    assert len(await bucket.keys()) <= 8
    assert bucket.bytes_put < 16 * size
    assert await bucket.store().read("thread") == frames
    assert await bucket.store().read("thread", start=1234, stop=1240) == frames[1234:1240]


@given(st.lists(st.integers(1, 16 * 2**20), max_size=300))
def test_packs_stay_few_and_each_byte_is_written_a_few_times(spilled: list[int]) -> None:
    sizes: list[int] = []
    written = 0
    for new in spilled:
        taken = merged_with(sizes, new)
        merged = new + sum(sizes[len(sizes) - taken :])
        assert merged <= max(LARGEST, new)
        sizes[len(sizes) - taken :] = [merged]
        written += merged
    total = sum(spilled)
    levels = math.log(max(total, 4), 4) + 1
    assert len(sizes) <= 3 * levels + 8 * total // LARGEST
    assert written <= (levels + 1) * total


async def test_a_few_frames_of_a_large_pack_are_read_without_the_rest() -> None:
    bucket = WatchedBucket()
    frames = [random.Random(number).randbytes(20_000) for number in range(400)]
    await append(bucket.store(), "thread", *frames)
    store = bucket.store()
    await store.head("thread")
    bucket.forget()
    assert await store.read("thread", start=200, stop=203) == frames[200:203]
    assert bucket.bytes_got < 100_000


async def test_a_head_of_any_size_is_read_and_listed() -> None:
    bucket = WatchedBucket()
    head = await append(bucket.store(), "thread", b"frame", tags={f"tag {number}": "x" * 50 for number in range(300)})
    assert await bucket.store().head("thread") == head
    assert await heads(bucket.store()) == [head]


@pytest.mark.parametrize("kind", ["absent", "unchanged"])
async def test_a_store_that_ignores_one_kind_of_condition_is_refused_before_anything_is_kept(kind: str) -> None:
    bucket = WatchedBucket()
    bucket.ignores = kind
    with pytest.raises(InvalidInput, match=kind):
        await append(bucket.store(), "thread", b"frame")
    assert await bucket.keys() == []


# Answers that do not come


async def test_a_put_that_was_done_although_no_answer_came_is_a_success_and_done_once() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", b"one")
    bucket.lose_answers = 1
    await append(store, "thread", b"two", at=1)
    bucket.lose_answers = 1
    await append(store, "thread", b"x" * 300_000, at=2)
    bucket.lose_answers = 1
    head = await append(store, "thread", at=3, title="new")
    assert await state(bucket.store(), "thread") == ([b"one", b"two", b"x" * 300_000], head, set())
    bucket.lose_answers = 1
    [blob] = await put(store, b"blob")
    bucket.lose_answers = 1
    assert await store.missing_blobs([blob]) == set()
    assert await store.get_blobs([blob]) == {blob: b"blob"}


@pytest.mark.parametrize("lost", range(1, 7))
async def test_a_bucket_whose_answer_was_lost_while_it_was_tested_is_not_called_unfit(lost: int) -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    for _ in range(2):
        bucket.lose_answer_at = lost
        with contextlib.suppress(Unavailable):  # before the first answer nothing is tried again
            await store.head("thread")
    await append(store, "thread", b"one")
    assert await store.read("thread") == [b"one"]


async def test_what_is_left_of_a_test_of_the_bucket_is_swept_after_a_day() -> None:
    bucket = WatchedBucket()
    bucket.lose_answer_at = 1
    with pytest.raises(Unavailable):
        await bucket.store().head("thread")
    assert len(await bucket.keys("probe/")) == 1
    other = bucket.store()
    await _set_ahead(other, 2 * _DAY)
    await other.delete_blobs([], untouched_for=timedelta(0))
    assert await bucket.keys() == []


@pytest.mark.parametrize(
    ("modified", "began", "ended", "ahead"),
    [
        (0, 0, 0, 0),
        (0, 0, 30_000_000, 0),  # a slow request says nothing of the clock
        (2_000_000, 0, 100_000, 0),
        (500_000_000, 0, 1_000_000, 500_000_000),
        (0, 500_000_000, 501_000_000, -500_000_000),
    ],
)
def test_a_slow_answer_is_not_taken_for_a_clock_that_is_behind(
    modified: int, began: int, ended: int, ahead: int
) -> None:
    assert _ahead(modified, began, ended) == ahead


async def test_a_writer_that_knows_an_old_state_gets_a_conflict() -> None:
    bucket = WatchedBucket()
    store, other = bucket.store(), bucket.store()
    await append(store, "thread", b"one")
    assert await other.read("thread") == [b"one"]
    await append(store, "thread", b"two", at=1)
    with pytest.raises(Conflict):
        await append(other, "thread", b"mine", at=1)
    assert await other.read("thread") == [b"one", b"two"]


async def test_a_head_replaced_by_another_is_no_conflict_for_frames_at_the_same_position() -> None:
    bucket = WatchedBucket()
    store, other = bucket.store(), bucket.store()
    await append(store, "thread", b"one")
    assert await other.read("thread") == [b"one"]
    await append(store, "thread", at=1, title="renewed")
    await append(other, "thread", b"two", at=1)
    assert await store.read("thread") == [b"one", b"two"]


# Packs


async def test_a_pack_deleted_behind_our_back_is_corrupt_and_the_message_names_it_and_the_likely_cause() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    [blob] = await put(store, b"blob")
    await append(store, "thread", _LARGE * 3, refs=[blob])
    await append(store, "thread", b"two", at=1)
    [pack] = await bucket.keys("packs/")
    await bucket.remove(pack)
    for call in (store.read, store.refs):
        with pytest.raises(Corrupt) as caught:
            await call("thread")
        assert pack in str(caught.value)
        assert "lifecycle rule" in str(caught.value)
    with pytest.raises(Corrupt, match="lifecycle rule"):
        await append(store, "thread", b"other", at=0)
    assert await store.read("thread", start=1) == [b"two"]


async def test_a_reader_is_not_disturbed_by_packs_being_merged() -> None:
    bucket = WatchedBucket()
    store, reader = bucket.store(), bucket.store()
    frames: list[bytes] = []
    writing = True

    async def write() -> None:
        nonlocal writing
        for number in range(60):
            frame = random.Random(number).randbytes(280_000)
            await append(store, "thread", frame, at=number)
            frames.append(frame)
        writing = False

    async def read() -> None:
        while writing:
            known = len(frames)
            assert (await reader.read("thread"))[:known] == frames[:known]

    await asyncio.gather(write(), read(), read())
    assert await reader.read("thread") == frames
    assert len(await bucket.keys("packs/")) <= 12


async def test_the_loser_of_a_race_leaves_no_pack() -> None:
    bucket = WatchedBucket()
    store, other = bucket.store(), bucket.store()
    await append(store, "thread", b"one")
    assert await other.read("thread") == [b"one"]
    await append(store, "thread", b"two", at=1)
    with pytest.raises(Conflict):
        await append(other, "thread", _LARGE * 3, at=1)
    assert await bucket.keys("packs/") == []


async def test_a_deleted_thread_leaves_one_small_object_which_is_swept_after_a_day() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", _LARGE * 3)
    await append(store, "thread", b"two", at=1)
    await store.delete("thread")
    [left] = await bucket.keys()
    assert len(await bucket.read(left)) == DEAD_SIZE
    assert await state(bucket.store(), "thread") == ([], None, set())
    assert await heads(bucket.store()) == []
    await store.delete_blobs([], untouched_for=timedelta(0))
    assert await bucket.keys() == [left]
    other = bucket.store()
    await _set_ahead(other, 2 * _DAY)
    await other.delete_blobs([], untouched_for=timedelta(days=100))
    assert await bucket.keys() == []


async def test_a_deleted_thread_can_be_made_again_at_once() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", b"one")
    await store.delete("thread")
    head = await append(bucket.store(), "thread", b"new")
    assert await state(store, "thread") == ([b"new"], head, set())


async def test_a_thread_is_not_made_while_a_cleanup_deletes_what_is_left_of_the_one_before() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", b"one")
    await store.delete("thread")
    [left] = await bucket.keys()
    await bucket.replace(left, dead_record(Clock().now()))
    bucket.forget()
    making = asyncio.create_task(append(bucket.store(), "thread", b"new"))
    while bucket.asked["get"] < 3:  # it looks again and again
        await asyncio.sleep(0.01)
    assert not making.done()
    await bucket.remove(left)
    await making
    assert await store.read("thread") == [b"new"]


async def test_a_create_that_arrives_after_the_deletion_does_not_bring_the_thread_back() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", b"one")
    [name] = await bucket.keys("threads/")
    first = await bucket.read(name)
    await store.delete("thread")
    with pytest.raises(Refused):
        await bucket.put(name, first, "absent")
    assert await bucket.store().head("thread") is None


async def test_an_append_between_the_look_and_the_deletion_is_deleted_too_and_a_new_log_is_not() -> None:
    bucket = WatchedBucket()
    store, other = bucket.store(), bucket.store()
    head = await append(store, "thread", b"one")

    async def go_on(key: str) -> None:
        await append(other, "thread", b"two", at=1, log_id=head.log_id)

    bucket.before_put = go_on
    await store.delete("thread")
    assert await store.head("thread") is None
    await append(store, "thread", b"three")

    async def make_anew(key: str) -> None:
        await other.delete("thread")
        await append(other, "thread", b"four", log_id="another")

    bucket.before_put = make_anew
    await store.delete("thread")
    assert await store.read("thread") == [b"four"]


async def test_packs_that_nothing_names_are_swept_after_a_day_and_no_others() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    frames = [_LARGE * 3, b"two"]
    await append(store, "thread", *frames)
    [large] = await put(store, _LARGE)
    [pack] = await bucket.keys("packs/")
    [data] = await bucket.keys("data/")
    folder = pack.rpartition("/")[0]
    left = [f"{folder}/{'0' * 32}", f"{folder[:-64]}{'1' * 64}/{'0' * 32}", f"{data.rpartition('/')[0]}/{'0' * 32}"]
    for key in left:
        await bucket.replace(key, b"left by a crash")
    await store.delete_blobs([], untouched_for=timedelta(0))
    assert set(left) <= set(await bucket.keys())
    other = bucket.store()
    await _set_ahead(other, 2 * _DAY)
    await other.delete_blobs([], untouched_for=timedelta(days=100))
    assert not set(left) & set(await bucket.keys())
    assert await other.read("thread") == frames
    assert await other.get_blobs([large]) == {large: _LARGE}


# Damage


async def test_damaged_objects_are_corrupt_and_never_absent() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    small, large = await put(store, b"small", _LARGE)
    await append(store, "thread", _LARGE * 3, refs=[small])
    await append(store, "thread", b"tail", at=1)
    for key in await bucket.keys():
        sound = await bucket.read(key)
        for damaged in (
            b"",
            sound[: len(sound) // 2],
            bytes([sound[0] ^ 1]) + sound[1:],
            sound[:-1] + bytes([sound[-1] ^ 1]),
        ):
            await bucket.replace(key, damaged)
            fresh = bucket.store()
            with pytest.raises(Corrupt):
                await _everything(fresh, [small, large])
        await bucket.replace(key, sound)
    await _everything(bucket.store(), [small, large])


@pytest.mark.parametrize("title", ["short", "long " * 2000], ids=["short", "long"])
async def test_a_thread_object_cut_at_any_byte_is_corrupt_and_never_absent(title: str) -> None:
    bucket = WatchedBucket()
    made = await append(bucket.store(), "thread", b"frame", title=title)
    [key] = await bucket.keys("threads")
    whole = await bucket.read(key)
    inside_its_head = 24 + len(msgspec.msgpack.encode(made)) - 1
    for size in {*range(1, len(whole), 1 + len(whole) // 50), 4096, inside_its_head, len(whole) - 1}:
        if size < len(whole):
            await bucket.replace(key, whole[:size])
            for call in ("read", "refs", "head")[: 3 if size <= inside_its_head else 2]:
                with pytest.raises(Corrupt):
                    await getattr(bucket.store(), call)("thread")
            with pytest.raises(Corrupt):
                await append(bucket.store(), "thread", b"more", at=1)


async def test_an_object_of_a_later_format_is_refused_and_left_alone() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"frame")
    for key in await bucket.keys():
        await bucket.replace(key, _with_version(await bucket.read(key), 9, 24 if "threads/" in key else BLOB_HEADER))
    before = {key: await bucket.read(key) for key in await bucket.keys()}
    for call in (
        lambda: store.read("thread"),
        lambda: store.delete("thread"),
        lambda: append(bucket.store(), "thread", b"two", at=1),
        lambda: store.get_blobs([blob]),
        lambda: put(bucket.store(), b"blob"),
    ):
        with pytest.raises(NewerFormat):
            await call()
    assert {key: await bucket.read(key) for key in await bucket.keys()} == before


async def test_damaged_threads_do_not_hide_the_others_in_a_listing() -> None:
    bucket = WatchedBucket()
    for number in range(3):
        await append(bucket.store(), f"thread {number}", b"frame")
    await bucket.replace((await bucket.keys("threads/"))[0], b"rubbish")
    listing = aiter(bucket.store().heads())
    assert {(await anext(listing)).frames, (await anext(listing)).frames} == {1}
    with pytest.raises(Corrupt):
        await anext(listing)


async def test_a_large_blob_whose_bytes_were_deleted_is_corrupt_and_putting_it_again_mends_it() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    [digest] = await put(store, _LARGE)
    [data] = await bucket.keys("data/")
    await bucket.remove(data)
    with pytest.raises(Corrupt, match="lifecycle rule"):
        await bucket.store().get_blobs([digest])
    await put(bucket.store(), _LARGE)
    assert await store.get_blobs([digest]) == {digest: _LARGE}


# Removing blobs


async def test_a_blob_touched_between_the_look_and_the_removal_stays() -> None:
    bucket = WatchedBucket()
    store, other = bucket.store(), bucket.store()
    for data in (b"small", _LARGE):
        [digest] = await put(store, data)

        async def touch(key: str, digest: str = digest) -> None:
            assert await other.missing_blobs([digest]) == set()

        await other.missing_blobs([])
        bucket.before_put = touch
        await store.delete_blobs([digest], untouched_for=timedelta(0))
        assert await store.get_blobs([digest]) == {digest: data}


@pytest.mark.parametrize("data", [b"small", _LARGE], ids=["small", "large"])
async def test_a_blob_put_after_a_deletion_whose_answer_was_lost_stays(data: bytes) -> None:
    bucket = WatchedBucket()
    store, other = bucket.store(), bucket.store()
    [digest] = await put(store, data)

    async def put_again() -> None:
        await put(other, data)

    await other.missing_blobs([])
    bucket.after_delete = put_again
    await store.delete_blobs([digest], untouched_for=timedelta(0))
    assert await store.get_blobs([digest]) == {digest: data}


async def test_a_blob_whose_removal_was_cut_short_is_absent_can_be_put_again_and_is_swept() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    first, second = await put(store, b"first", b"second")
    keys = await bucket.keys("blobs/")
    for key in keys:
        await bucket.replace(key, dead_record(Clock().now() - 61_000_000))
    assert await store.get_blobs([first, second]) == {}
    assert await bucket.store().missing_blobs([first]) == {first}
    assert await all_blobs(store) == []
    await put(bucket.store(), b"first")
    assert await store.get_blobs([first, second]) == {first: b"first"}
    other = bucket.store()
    await _set_ahead(other, 120_000_000)
    await other.delete_blobs([], untouched_for=timedelta(0))
    assert await bucket.keys("blobs/") == [key for key in keys if key.endswith(first)]


# The queue


async def test_the_queue_is_listed_without_a_look_at_other_threads() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    for number in range(100):
        await append(store, f"done {number}", b"frame", status="done")
    for number in range(3):
        await append(store, f"queued {number}", b"frame", due=minute(number))
    reader = bucket.store()
    await reader.head("done 0")
    bucket.forget()
    assert await listed(reader, order="due", limit=50) == ["queued 0", "queued 1", "queued 2"]
    assert bucket.asked == {"list": 1, "get": 3}


async def test_only_an_append_that_enters_or_leaves_the_queue_makes_requests_for_it() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", b"frame")
    asked: list[dict[str, int]] = []
    for at, due in enumerate([minute(1), minute(2), minute(3), None, None], start=1):
        bucket.forget()
        await append(store, "thread", b"frame", at=at, due=due)
        asked.append(dict(bucket.asked))
    assert asked == [{"put": 2}, {"put": 1}, {"put": 1}, {"put": 1, "delete": 1}, {"put": 1}]
    assert await bucket.keys("due/") == []


async def test_a_thread_is_marked_before_the_put_that_queues_it() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "thread", b"frame")
    put_before: list[list[str]] = []

    async def look(key: str) -> None:
        put_before.append(await bucket.keys("due/"))
        bucket.before_put = look

    bucket.before_put = look
    await append(store, "thread", b"frame", at=1, due=minute(0))
    assert [len(there) for there in put_before] == [0, 1]


async def test_a_deletion_and_a_lost_race_leave_no_marker() -> None:
    bucket = WatchedBucket()
    store, other = bucket.store(), bucket.store()
    await append(store, "thread", b"frame")
    assert await other.read("thread") == [b"frame"]
    await append(store, "thread", b"won", at=1, due=minute(0))
    with pytest.raises(Conflict):
        await append(other, "thread", b"lost", at=1, due=minute(0))
    assert len(await bucket.keys("due/")) == 1
    await store.delete("thread")
    assert await bucket.keys("due/") == []
    await append(other, "thread", b"anew", due=minute(0))
    assert await listed(store, order="due") == ["thread"]


async def test_a_marker_that_a_crash_left_behind_is_deleted_by_a_listing_after_a_day() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    await append(store, "done", b"frame", status="done")
    await append(store, "queued", b"frame", due=minute(0))
    [marker] = await bucket.keys("due/")
    folder = marker.rpartition("/")[0].rpartition("/")[0]
    left = [f"{folder}/{thread_key(name)}/{'0' * 32}" for name in ("done", "never made")]
    for key in left:
        await bucket.replace(key, b"")
    assert await listed(store, order="due") == ["queued"]
    assert sorted(await bucket.keys("due/")) == sorted([marker, *left])
    other = bucket.store()
    await _set_ahead(other, 2 * _DAY)
    assert await listed(other, order="due") == ["queued"]
    assert await bucket.keys("due/") == [marker]


async def test_an_older_clew_refuses_the_object_of_a_queued_thread_and_no_other() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"frame", refs=[blob])
    versions = []
    for at, due in enumerate([minute(0), minute(1), None], start=1):
        await append(store, "thread", b"frame", at=at, due=due)
        [key] = await bucket.keys("threads/")
        versions.append((await bucket.read(key))[3])
    assert versions == [2, 2, 1]
    [key] = await bucket.keys("blobs/")
    assert (await bucket.read(key))[3] == 1


# Listing


async def test_a_listing_reads_only_the_heads_that_changed_since_the_last() -> None:
    bucket = WatchedBucket()
    store = bucket.store()
    for number in range(100):
        await append(store, f"thread {number}", b"frame")
    assert len(await listed(store)) == 100
    await append(store, "thread 7", b"more", at=1)
    bucket.forget()
    assert len(await listed(store)) == 100
    assert bucket.asked == {"list": 1, "get": 1}
    newcomer = bucket.store()
    await newcomer.head("thread 0")
    bucket.forget()
    assert sorted(await listed(newcomer)) == sorted(f"thread {number}" for number in range(100))
    assert bucket.asked == {"list": 1, "get": 2}


async def test_a_cache_of_heads_that_is_damaged_is_made_anew() -> None:
    bucket = WatchedBucket()
    for number in range(70):
        await append(bucket.store(), f"thread {number}", b"frame")
    assert len(await listed(bucket.store())) == 70
    [cache] = [key for key in await bucket.keys() if key.endswith("/heads")]
    sound = await bucket.read(cache)
    for damaged in (b"", b"rubbish", sound[:-1], sound[:-1] + bytes([sound[-1] ^ 1])):
        await bucket.replace(cache, damaged)
        assert len(await listed(bucket.store())) == 70
    assert await bucket.read(cache) != damaged


@pytest.mark.attack
async def test_a_cache_of_heads_that_would_unpack_to_gigabytes_is_not_unpacked() -> None:
    bucket = WatchedBucket()
    for number in range(70):
        await append(bucket.store(), f"thread {number}", b"frame")
    assert len(await listed(bucket.store())) == 70
    [cache] = [key for key in await bucket.keys() if key.endswith("/heads")]
    bomb = zstandard.compress(bytes(256 * 2**20))
    await bucket.replace(cache, bomb + blake3(bomb).digest(16))
    tracemalloc.start()
    try:
        assert len(await listed(bucket.store())) == 70
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


# URLs and options


@pytest.mark.parametrize(
    "url",
    [
        "s3:",
        "s3://",
        "s3:///prefix",
        "s3:bucket",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "s3://bucket/a%20b",
        "s3://bucket/" + "x" * 600,
        "s3://bucket?region=",
        "s3://bucket?colour=blue",
        "s3://bucket?virtual_hosted=maybe",
        "s3://bucket#fragment",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=http://storage.example.com",
        "gs://bucket?region=europe",
        "s3://bucket?account=name",
        "s3://key:hunter2@bucket/prefix",
        "s3://bucket?secret_access_key=hunter2",
        "s3://bucket?endpoint=http://key:hunter2@127.0.0.1",
    ],
)
def test_a_url_that_names_no_bucket_is_invalid_and_keys_in_it_are_not_shown(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_checkpointer(url)
    assert "hunter2" not in str(caught.value)


async def test_a_url_opens_the_store_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "name")
    for url, place in {
        "s3://bucket": "s3://bucket#",
        "s3://bucket/a/b/": "s3://bucket/a/b#",
        "gs://bucket/a": "gs://bucket/a#",
        "az://container/a?account=name": "az://container of name/a#",
        "s3://bucket/a?endpoint=http://localhost:1&region=us-east-1&virtual_hosted=false": (
            "s3://bucket at http://localhost:1/a#"
        ),
    }.items():
        async with open_checkpointer(url) as store:
            assert (type(store), store.place) == (ObjectCheckpointer, place)


def test_plain_http_to_another_machine_has_to_be_asked_for() -> None:
    with pytest.raises(InvalidInput, match="allow_http"):
        ObjectCheckpointer("s3://bucket", endpoint="http://storage.example.com")
    ObjectCheckpointer("s3://bucket", endpoint="http://storage.example.com", allow_http=True)
    ObjectCheckpointer("s3://bucket", endpoint="http://[::1]:9000")


def test_options_that_obstore_does_not_know_are_invalid_and_their_values_not_shown() -> None:
    with pytest.raises(InvalidInput) as caught:
        ObjectCheckpointer("s3://bucket", options={"colour": "hunter2"})
    assert "colour" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_without_obstore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"clew\[s3\]"):
        open_checkpointer("s3://bucket")


# Threads of obstore

_USE = """
import asyncio, os, sys, threading, time
from asyncio.selector_events import BaseSelectorEventLoop
from obstore.store import MemoryStore
from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.clouds import ObstoreBucket
from clew.errors import UsageError
from clew.testing.contract.builders import append, listed

wake = BaseSelectorEventLoop._write_to_self

def wake_slowly(loop):
    wake(loop)
    if threading.current_thread() is not threading.main_thread():
        time.sleep(float(sys.argv[1]))  # as on a busy machine: the loop goes on, the thread that woke it does not

BaseSelectorEventLoop._write_to_self = wake_slowly

async def use():
    async with BucketCheckpointer(ObstoreBucket(MemoryStore(), "a bucket"), "a bucket", "", "") as store:
        await append(store, "thread", b"frame")
        assert await listed(store) == ["thread"]

asyncio.run(use())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="its event loop wakes up in another way")
@pytest.mark.parametrize("late", ["0.01", "0.3"])
def test_a_process_that_has_used_object_storage_ends_in_order(late: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _USE, late], capture_output=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_object_storage_is_refused_in_a_forked_child_of_a_process_that_has_used_it() -> None:
    """It would wait for ever for threads that only the parent has."""
    child = """
if os.fork() == 0:
    try:
        asyncio.run(use())
    except UsageError as error:
        os._exit(17 if "forked child" in str(error) else 18)
    os._exit(19)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 17
"""
    unused = _USE.replace("asyncio.run(use())", "") + child.replace("== 17", "== 19")
    for script in (_USE + child, unused):
        ended = subprocess.run([sys.executable, "-c", script, "0"], capture_output=True, timeout=PATIENCE, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")


# Real servers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


async def test_a_thread_that_a_resent_put_makes_again_after_a_deletion_has_all_its_frames() -> None:
    """The first put took effect and no answer came. Whoever deleted the thread then deleted its pack too."""
    bucket, puts = WatchedBucket(), 0
    async with bucket.store() as store, bucket.store() as other:
        await store.head("thread")
        await other.head("thread")

        async def step(key: str) -> None:
            nonlocal puts
            puts += 1
            if puts < 3:
                bucket.before_put = step
            else:
                await other.delete("thread")

        bucket.before_put, bucket.lose_answer_at = step, 2
        frame = random.Random(1).randbytes(2 * TAIL)
        await append(store, "thread", frame)
        assert puts == 3
        assert await other.read("thread") == await store.read("thread") == [frame]


def _open(server: SeaweedFS, prefix: str, **options: Any) -> ObjectCheckpointer:
    return ObjectCheckpointer(f"s3://{BUCKET}/{prefix}", **server.options(**options))


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
async def test_a_server_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    with rclone(tmp_path) as options:
        store = ObjectCheckpointer("s3://clew/prefix", **options)
        with pytest.raises(InvalidInput, match="conditional puts"):
            await store.head("thread")
        with pytest.raises(InvalidInput, match="conditional puts"):
            await append(store, "thread", b"frame")
        await store.close()
        assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
async def test_a_listing_by_the_command_ends_in_order(server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"command/{next(_numbers)}"
    async with _open(server, prefix) as store:
        for number in range(20):
            await append(store, f"{number}", b"frame")
    given = server.keys()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", given["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given["secret_access_key"])
    url = f"s3://{BUCKET}/{prefix}?endpoint={given['endpoint']}&region={given['region']}&timeout={PATIENCE:.0f}"
    for _ in range(5):
        commands = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "clew", "ls", "--store", url, "--json"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for _ in range(4)
        ]
        for command in commands:
            told, complained = await asyncio.wait_for(command.communicate(), PATIENCE)
            assert (command.returncode, complained) == (0, b"")
            assert len(told.splitlines()) == 20


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
async def test_of_sixteen_that_race_at_each_position_one_wins(server: SeaweedFS) -> None:
    stores = [_open(server, "race") for _ in range(16)]
    won: list[bytes] = []
    for at in range(3):
        results = await asyncio.gather(
            *(append(store, "thread", b"%d by %d" % (at, n), at=at) for n, store in enumerate(stores)),
            return_exceptions=True,
        )
        winners = [n for n, result in enumerate(results) if not isinstance(result, BaseException)]
        assert len(winners) == 1
        assert {type(result) for n, result in enumerate(results) if n not in winners} == {Conflict}
        won.append(b"%d by %d" % (at, winners[0]))
    assert await stores[0].read("thread") == won
    for store in stores:
        await store.close()


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
async def test_keys_are_not_shown_when_they_are_wrong(server: SeaweedFS) -> None:
    store = _open(server, "denied", secret_access_key="hunter2-wrong")
    with pytest.raises(Unavailable) as caught:
        await store.head("thread")
    shown = f"{caught.value!r} {caught.value.__cause__!r} {store!r} {store.place}"
    assert "credentials" in shown
    assert not [secret for secret in ("hunter2", SECRET, "clew-test") if secret in shown]
    await store.close()


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
async def test_a_bucket_that_is_absent_is_unavailable_and_never_an_absent_thread(server: SeaweedFS) -> None:
    config = {**server.keys(), "virtual_hosted_style_request": False}
    bucket = open_obstore("s3", "nobody-made-this", "the bucket", config, allow_http=True)
    with pytest.raises(Unavailable, match="no such bucket"):
        await bucket.get("key")
    with pytest.raises(Unavailable, match="no such bucket"):
        await bucket.get("key", 0, 10)


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
async def test_connections_cut_at_random_bytes_lose_and_repeat_nothing(server: SeaweedFS) -> None:
    dice = random.Random(11)
    host, _, port = server.endpoint.removeprefix("http://").partition(":")
    async with Proxy(
        (host, int(port)), cut_after=lambda: dice.randrange(dice.choice((1_000, 10_000, 300_000)))
    ) as proxy:
        store = _open(server, "cut", endpoint=f"http://127.0.0.1:{proxy.port}")
        frames = [dice.randbytes(dice.randrange(10, 4000)) for _ in range(30)]
        for at, frame in enumerate(frames):
            while True:
                try:
                    [blob] = await put(store, frame)
                    await append(store, "thread", frame, at=at, refs=[blob])
                    break
                except Unavailable:
                    continue
        await store.close()
        assert proxy.cuts > 5
    direct = _open(server, "cut")
    assert await direct.read("thread") == frames
    assert await direct.refs("thread") == {digest_of(frame) for frame in frames}
    await direct.close()


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
async def test_what_was_acknowledged_before_the_server_was_killed_is_there_once(tmp_path: Path) -> None:
    with seaweedfs(tmp_path) as server:
        store = _open(server, "killed")
        acknowledged: dict[int, list[bytes]] = {number: [] for number in range(8)}
        working = True

        async def work(number: int) -> None:
            frames = acknowledged[number]
            while working:
                frame = b"%d.%d" % (number, len(frames)) + random.Random(number).randbytes(3000)
                try:
                    await append(store, f"thread {number}", frame, at=len(frames))
                except Unavailable:
                    continue
                frames.append(frame)

        tasks = [asyncio.create_task(work(number)) for number in acknowledged]
        for _ in range(2):
            before = sum(map(len, acknowledged.values()))
            while sum(map(len, acknowledged.values())) < before + 150:
                await asyncio.sleep(0.02)
            server.process.kill()
            await asyncio.to_thread(server.process.start)
        working = False
        await asyncio.gather(*tasks)
        await store.close()
        again = _open(server, "killed")
        for number, frames in acknowledged.items():
            assert await again.read(f"thread {number}") == frames
        await again.close()


async def _everything(store: BucketCheckpointer, digests: list[str]) -> None:
    """Read all that there is; a blob that is said to be there must come."""
    await store.read("thread")
    await store.refs("thread")
    assert await store.head("thread") is not None
    assert set(await store.get_blobs(digests)) == set(digests)


async def _set_ahead(store: BucketCheckpointer, ahead: int) -> None:
    """Have this checkpointer believe that it is later."""
    await store.head("thread")
    store._blobs.clock = Clock(ahead)


def _with_version(data: bytes, version: int, header: int) -> bytes:
    from zlib import crc32

    fields = data[:3] + bytes([version]) + data[4 : header - 4]
    return fields + crc32(fields).to_bytes(4, "little") + data[header:]
