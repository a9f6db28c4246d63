"""Tests that every store has to pass for arguments with invalid sizes, positions or values: each store raises the same
error for them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from clew.checkpointers.base import MAX_APPEND, MAX_FRAME, MAX_HEAD, Checkpointer
from clew.checkpointers.heads import HeadQuery, Lease, Owner
from clew.errors import InvalidInput, Unavailable
from clew.testing.contract.builders import OpenStore, a_head, append, digest_of, heads, listed, state

_NAIVE = datetime(2026, 1, 1)
_DIGEST = "0" * 64
_BAD_DIGESTS = [
    "",
    "abc",
    _DIGEST[1:],
    _DIGEST + "0",
    "A" * 64,
    "g" * 64,
    " " + _DIGEST[1:],
    "\u0661" * 64,
    "../" + "a" * 61,
]


class LimitContract:
    """Tests that a call with invalid arguments raises `InvalidInput` and writes nothing, and that a call for which
    there is not enough memory raises `Unavailable`."""

    async def test_a_call_without_memory_is_unavailable(self, open_store: OpenStore) -> None:
        """Test that a call raises `Unavailable`, and never `MemoryError`, if memory runs out while the store reads the
        call's arguments. A call that needs no memory to read them may succeed."""
        store = open_store()
        await append(store, "thread", b"one")
        raw = []
        for name, call in _calls_without_memory(store).items():
            try:
                await call()
            except Unavailable:
                continue
            except MemoryError:
                raw.append(name)
        assert raw == [], "a call for which there is no memory raises Unavailable"
        assert await store.read("thread") == [b"one"]

    async def test_a_frame_of_the_largest_size_is_kept_and_a_larger_one_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        largest = _noise(MAX_FRAME)
        await append(store, "thread", largest)
        with pytest.raises(InvalidInput):
            await append(store, "thread", b"small", largest + b"x", at=1)
        assert await store.read("thread") == [largest]

    async def test_an_append_of_the_largest_size_is_kept_and_a_larger_one_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        frames = [_noise(MAX_FRAME)] * (MAX_APPEND // MAX_FRAME)
        with pytest.raises(InvalidInput):
            await append(store, "thread", *frames, b"x")
        assert await state(store, "thread") == ([], None, set())
        await append(store, "thread", *frames)
        assert await store.read("thread") == frames

    async def test_a_head_of_the_largest_size_is_kept_and_a_larger_one_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        tags = {"name": "y" * 1000}
        most = 40_000 + MAX_HEAD - len(msgspec.msgpack.encode(a_head("thread", title="x" * 40_000, tags=tags)))
        with pytest.raises(InvalidInput):
            await append(store, "thread", b"frame", title="x" * (most + 1), tags=tags)
        largest = await append(store, "thread", b"frame", title="x" * most, tags=tags)
        assert (await listed(store), await store.head("thread")) == (["thread"], largest)
        too_large: list[dict[str, Any]] = [{"tags": {"name": "y" * MAX_HEAD}}, {"agent": "z" * 15 * 2**20}]
        for changes in too_large:
            with pytest.raises(InvalidInput):
                await append(store, "thread", b"another", at=1, **changes)
        assert await state(store, "thread") == ([b"frame"], largest, set())

    async def test_an_append_of_many_small_frames_is_one(self, open_store: OpenStore) -> None:
        store = open_store()
        frames = [b"%d" % number for number in range(3000)]
        await append(store, "thread", *frames)
        assert await store.read("thread") == frames
        assert await store.read("thread", start=2990, stop=2992) == frames[2990:2992]

    async def test_a_position_below_zero_is_invalid(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one", b"two")
        with pytest.raises(InvalidInput):
            await append(store, "thread", b"new", at=-1)
        for start, stop in [(-1, None), (0, -1), (-2, -1), (-2, 1)]:
            with pytest.raises(InvalidInput):
                await store.read("thread", start=start, stop=stop)
        assert await store.read("thread") == [b"one", b"two"]

    async def test_a_head_of_another_thread_is_invalid(self, open_store: OpenStore) -> None:
        store = open_store()
        with pytest.raises(InvalidInput):
            await store.append("thread", [b"frame"], at=0, head=a_head("Thread"))
        assert await listed(store) == []

    async def test_a_head_that_miscounts_the_frames_is_invalid(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"one")
        for frames in (0, 1, 3, -1):
            with pytest.raises(InvalidInput):
                await store.append("thread", [b"two"], at=1, head=a_head("thread", frames))
        with pytest.raises(InvalidInput):
            await store.append("thread", [], at=1, head=a_head("thread", 2))
        assert await store.read("thread") == [b"one"]

    async def test_values_that_a_head_cannot_have_are_invalid(self, open_store: OpenStore) -> None:
        store = open_store()
        owner = Owner(host="host", boot="boot", pid=1, started="1")
        bad: dict[str, Any] = {
            "created_at": _NAIVE,
            "updated_at": _NAIVE,
            "lease": Lease(owner=owner, token="t", expires_at=_NAIVE),  # noqa: S106 - made up
            "status": "sleeping",
            "title": "lone \ud800",
            "agent": "lone \ud800",
            "log_id": "lone \ud800",
            "tags": {"lone \ud800": ""},
            "parent": ("lone \ud800", 1),
            "input_tokens": 2**70,
        }
        for name, value in bad.items():
            with pytest.raises(InvalidInput):
                pytest.fail(f"{name} was taken: {await append(store, 'thread', b'frame', **{name: value})!r}")
        assert await state(store, "thread") == ([], None, set())

    async def test_values_that_a_query_cannot_have_are_invalid(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"frame")
        bad: list[dict[str, Any]] = [
            {"updated_after": _NAIVE},
            {"updated_before": _NAIVE},
            {"status": "sleeping"},
            {"status": ("done", "sleeping")},
            {"limit": -1},
            {"prefix": "lone \ud800"},
            {"agent": "lone \ud800"},
            {"parent": "lone \ud800"},
            {"title": "lone \ud800"},
            {"tags": {"lone": "\ud800"}},
            {"title": "x" * (MAX_HEAD + 1)},
            {"tags": {"name": "y" * MAX_HEAD}},
            {"tags": {str(number): "" for number in range(2000)}},
        ]
        cursors = [
            "",
            ":",
            "x",
            "12",
            f"12:{_DIGEST}0",
            f"x:{_DIGEST}",
            f"--1:{_DIGEST}",
            "1:" + "z" * 64,
            f"²:{_DIGEST}",
        ]
        cursors += [f"{2**70}:{_DIGEST}", f"1:{_DIGEST}\n"]
        bad += [{"cursor": cursor} for cursor in cursors]
        for conditions in bad:
            with pytest.raises(InvalidInput):
                pytest.fail(f"{conditions} was taken: {await heads(store, HeadQuery(**conditions))!r}")

    async def test_a_malformed_digest_is_invalid_for_every_method(self, open_store: OpenStore) -> None:
        store = open_store()
        for bad in _BAD_DIGESTS:
            for name, call in _calls_with(store, bad).items():
                with pytest.raises(InvalidInput):
                    pytest.fail(f"{name} took the digest {bad!r}: {await call()!r}")
        assert await listed(store) == []

    async def test_a_time_below_zero_is_invalid(self, open_store: OpenStore) -> None:
        store = open_store()
        with pytest.raises(InvalidInput):
            _ = [digest async for digest in store.blobs(untouched_for=timedelta(seconds=-1))]
        with pytest.raises(InvalidInput):
            await store.delete_blobs([digest_of(b"blob")], untouched_for=timedelta(seconds=-1))


def _calls_with(store: Checkpointer, digest: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return a call with this digest as an argument, for each method of a checkpointer that takes digests: a dict from
    the method's name to a function without arguments that makes the call."""
    return {
        "append": lambda: append(store, "thread", b"frame", refs=[digest_of(b"blob"), digest]),
        "put_blobs": lambda: store.put_blobs({digest: b"blob"}),
        "get_blobs": lambda: store.get_blobs([digest]),
        "missing_blobs": lambda: store.missing_blobs([digest]),
        "delete_blobs": lambda: store.delete_blobs([digest], untouched_for=timedelta(0)),
    }


class _TextWithoutMemory(str):
    """A text whose `encode` raises `MemoryError`, as if there were no memory left for its bytes. Used as an argument in
    tests."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise MemoryError


class _ListWithoutMemory(list[Any]):
    """A list that raises `MemoryError` when it is iterated, as if there were no memory left. Used as an argument in
    tests."""

    def __iter__(self) -> Iterator[Any]:
        raise MemoryError


class _BlobsWithoutMemory(dict[str, bytes]):
    """A dict of blobs by digest that raises `MemoryError` when its digests are iterated, as if there were no memory
    left. Used as an argument in tests."""

    def __iter__(self) -> Iterator[str]:
        raise MemoryError


def _calls_without_memory(store: Checkpointer) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return a call of each method of a checkpointer that takes texts, digests or blobs: a dict from the method's name
    to a function without arguments that makes the call. One argument of each call raises `MemoryError` when the store
    reads it."""
    name, digests = _TextWithoutMemory("without memory"), _ListWithoutMemory([_DIGEST])
    blobs = _BlobsWithoutMemory({digest_of(b"blob"): b"blob"})
    return {
        "append": lambda: append(store, name, b"frame"),
        "read": lambda: store.read(name),
        "head": lambda: store.head(name),
        "heads": lambda: listed(store, prefix=name),
        "refs": lambda: store.refs(name),
        "delete": lambda: store.delete(name),
        "put_blobs": lambda: store.put_blobs(blobs),
        "get_blobs": lambda: store.get_blobs(digests),
        "missing_blobs": lambda: store.missing_blobs(digests),
        "delete_blobs": lambda: store.delete_blobs(digests, untouched_for=timedelta(0)),
    }


def _noise(size: int) -> bytes:
    """Return exactly `size` bytes that cannot be compressed. They are the same bytes each time."""
    return random.Random(size).randbytes(size)  # noqa: S311 - not for secrets
