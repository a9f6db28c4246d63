"""Tests that every store has to pass for blobs and refs (a thread's references to blobs). Blobs are stored under their
digest, which the store checks. A blob is deleted only if it was not stored or used for some time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clew.errors import InvalidInput, MissingBlob
from clew.testing.contract.builders import OpenStore, Stopwatch, all_blobs, append, digest_of, put, state

_ABSENT = digest_of(b"absent")


class BlobContract:
    """Tests of a checkpointer's methods for blobs (`put_blobs`, `get_blobs`, `missing_blobs`, `blobs`, `delete_blobs`),
    and of the references to blobs (refs) that an append records."""

    # Keeping

    async def test_blobs_come_back_byte_for_byte_through_another_opener(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        kept = [b"", b"\0", bytes(range(256)), b"text", b"\xff" * 3_000_000]
        digests = await put(store, *kept)
        assert await other.get_blobs(digests) == dict(zip(digests, kept, strict=True))
        assert sorted(await all_blobs(other)) == sorted(digests)

    async def test_a_blob_larger_than_a_frame_may_be_is_kept(self, open_store: OpenStore) -> None:
        store = open_store()
        large = bytes(range(256)) * 2**15 * 3  # 24 MiB: more than an append may hold
        [digest] = await put(store, large)
        assert (await store.get_blobs([digest]))[digest] == large

    async def test_a_blob_with_a_wrong_digest_is_invalid_and_none_is_kept(self, open_store: OpenStore) -> None:
        store = open_store()
        good, wrong = digest_of(b"good"), digest_of(b"something else")
        for blobs in ({good: b"good", wrong: b"wrong"}, {wrong: b"wrong", good: b"good"}):
            with pytest.raises(InvalidInput):
                await store.put_blobs(blobs)
        assert await store.get_blobs([good, wrong]) == {}
        assert await store.missing_blobs([good, wrong]) == {good, wrong}
        assert await all_blobs(store) == []

    async def test_a_blob_put_twice_is_kept_once(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        [digest] = await put(store, b"blob")
        await put(store, b"blob")
        await put(other, b"blob", b"another")
        assert await store.get_blobs([digest]) == {digest: b"blob"}
        assert sorted(await all_blobs(store)) == sorted([digest, digest_of(b"another")])

    async def test_a_blob_put_by_many_at_once_is_kept_once(self, open_store: OpenStore) -> None:
        stores = [open_store() for _ in range(3)]
        await asyncio.gather(*(put(stores[n % 3], b"common", b"%d" % n) for n in range(12)))
        assert len(await all_blobs(stores[0])) == 13
        digest = digest_of(b"common")
        assert await stores[0].get_blobs([digest]) == {digest: b"common"}

    async def test_absent_blobs_are_left_out(self, open_store: OpenStore) -> None:
        store = open_store()
        [digest] = await put(store, b"blob")
        assert await store.get_blobs([_ABSENT]) == {}
        assert await store.get_blobs([_ABSENT, digest]) == {digest: b"blob"}

    async def test_missing_blobs_names_those_that_are_absent(self, open_store: OpenStore) -> None:
        store = open_store()
        first, second = await put(store, b"first", b"second")
        assert await store.missing_blobs([first, second]) == set()
        assert await store.missing_blobs({first, _ABSENT}) == {_ABSENT}
        assert await store.missing_blobs((_ABSENT, _ABSENT)) == {_ABSENT}

    async def test_calls_about_no_blobs_are_no_error(self, open_store: OpenStore) -> None:
        store = open_store()
        await store.put_blobs({})
        assert await store.get_blobs([]) == {}
        assert await store.missing_blobs([]) == set()
        await store.delete_blobs([], untouched_for=timedelta(0))
        assert await all_blobs(store) == []

    async def test_many_blobs_in_one_call_are_all_kept(self, open_store: OpenStore) -> None:
        store = open_store()
        digests = await put(store, *(b"%d" % number for number in range(1200)))
        assert await store.missing_blobs([*digests, _ABSENT]) == {_ABSENT}
        assert len(await store.get_blobs(digests)) == 1200
        await append(store, "thread", b"frame", refs=digests)
        assert await store.refs("thread") == set(digests)
        await store.delete_blobs(digests, untouched_for=timedelta(0))
        assert await all_blobs(store) == []

    # Refs

    async def test_refs_are_the_union_over_all_appends(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        a, b, c, d = await put(store, b"a", b"b", b"c", b"d")
        await append(store, "thread", b"one", refs=[a])
        await append(store, "thread", b"two", at=1)
        await append(store, "thread", b"three", at=2, refs={b, c})
        await append(store, "thread", b"four", at=3, refs=[b])
        await append(store, "another", b"one", refs=(d, d))
        assert await other.refs("thread") == {a, b, c}
        assert await other.refs("another") == {d}

    async def test_a_ref_to_an_absent_blob_is_a_missing_blob_and_nothing_is_written(
        self, open_store: OpenStore
    ) -> None:
        store = open_store()
        [blob] = await put(store, b"blob")
        with pytest.raises(MissingBlob) as caught:
            await append(store, "new", b"frame", refs=[blob, _ABSENT])
        assert caught.value.digests == {_ABSENT}
        assert await state(store, "new") == ([], None, set())
        await append(store, "thread", b"one")
        before = await state(store, "thread")
        with pytest.raises(MissingBlob):
            await append(store, "thread", b"two", at=1, refs=[_ABSENT], title="new")
        assert await state(store, "thread") == before
        await put(store, b"absent")
        await append(store, "thread", b"two", at=1, refs=[_ABSENT])
        assert await store.refs("thread") == {_ABSENT}

    async def test_refs_go_with_their_thread(self, open_store: OpenStore) -> None:
        store = open_store()
        a, b = await put(store, b"a", b"b")
        await append(store, "thread", b"one", refs=[a], log_id="old")
        await append(store, "another", b"one", refs=[a, b])
        await store.delete("thread")
        assert await store.refs("thread") == set()
        await append(store, "thread", b"one", refs=[b], log_id="new")
        assert await store.refs("thread") == {b}
        assert await store.refs("another") == {a, b}

    async def test_blobs_outlive_the_thread_that_named_them(self, open_store: OpenStore) -> None:
        store = open_store()
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"one", refs=[blob])
        await store.delete("thread")
        assert await store.get_blobs([blob]) == {blob: b"blob"}
        assert await all_blobs(store) == [blob]

    # Touching and removing

    async def test_a_blob_put_named_or_asked_for_is_touched(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        names = [b"untouched", b"put again", b"named", b"asked for", b"named in a refused append"]
        untouched, again, named, asked, refused = await put(store, *names)
        await asyncio.sleep(Stopwatch.APART)
        watch = Stopwatch()
        await put(other, b"put again", b"new")
        await append(other, "thread", b"frame", refs=[named])
        assert await other.missing_blobs([asked, _ABSENT]) == {_ABSENT}
        for _ in range(Stopwatch.TRIES):
            found = set(await all_blobs(store, watch.before_start()))
            if watch.was_in_time():
                break
        assert untouched in found
        assert not found & {again, named, asked, digest_of(b"new")}, "a touched blob was listed as untouched"
        assert found <= {untouched, refused}

    async def test_a_blob_touched_since_it_was_listed_is_not_deleted(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        for number in range(Stopwatch.TRIES):
            old, put_again, named, asked = await put(store, b"old", b"put again", b"named", b"asked for")
            await asyncio.sleep(Stopwatch.APART)
            watch = Stopwatch()
            listed = set(await all_blobs(store, timedelta(seconds=Stopwatch.APART * 0.9)))
            assert listed == {old, put_again, named, asked}
            await put(other, b"put again")
            await append(other, f"thread {number}", b"frame", refs=[named])
            assert await other.missing_blobs([asked]) == set()
            await store.delete_blobs(listed, untouched_for=watch.before_start())
            if watch.was_in_time():
                break
        assert set(await store.get_blobs(listed)) == {put_again, named, asked}

    async def test_a_fresh_blob_is_not_listed_or_deleted_within_its_grace(self, open_store: OpenStore) -> None:
        store = open_store()
        [digest] = await put(store, b"fresh")
        for grace in (timedelta(hours=1), timedelta(days=36_500), timedelta.max):
            assert await all_blobs(store, grace) == []
            await store.delete_blobs([digest], untouched_for=grace)
        assert await store.get_blobs([digest]) == {digest: b"fresh"}

    async def test_a_deleted_blob_is_absent_for_all(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        gone, kept = await put(store, b"gone", b"kept")
        await store.delete_blobs([gone, _ABSENT], untouched_for=timedelta(0))
        assert await other.get_blobs([gone, kept]) == {kept: b"kept"}
        assert await other.missing_blobs([gone, kept]) == {gone}
        assert await all_blobs(other) == [kept]
        with pytest.raises(MissingBlob):
            await append(other, "thread", b"frame", refs=[gone])
        await put(other, b"gone")
        assert await store.get_blobs([gone]) == {gone: b"gone"}
