"""Tests that every store has to pass for thread ids and namespaces (separate parts of a store): two different names
never share data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from clew.errors import InvalidInput, MissingBlob
from clew.testing.contract.builders import OpenStore, all_blobs, append, listed, put, state

_IDS = [
    "user/1", "user_1", "user\\1", "user:1", "user-1", "user 1", "user.1", "user%2F1",
    "../x", "..", ".", "/", "/etc/passwd", "x/../y", "~", "~root", "-rf", "--",
    "*", "%", "_", "?", "[a]", "{a}", "a'b", 'a"b', "a;b", "a--b", "$HOME", "`a`", "a|b", "a&b", "a#b", "a@b", "a+b",
    "A", "a", "AA", "aa", "aA", "ß", "ss", "SS", "ı", "i", "İ", "I", "k", "\u212a",
    "caf\u00e9", "cafe\u0301", "\ufb01", "fi", "\u00c5", "A\u030a", "\u212b",
    "x", "x ", "x  ", " x", "x.", "x..", "x\t", "x\n", "x\r\n", "\n", " ", "\x01", "\x7f", "\u200b", "\ufeff", "\ufeffx",
    "con", "CON", "nul", "aux.txt", "COM1", "lpt1", "index", "head", "refs", "None", "null", "0", "00", "1", "1.0", "true",
    "\U0001f9f5", "\U0001f9f5\ufe0f", "\U0001f469\u200d\U0001f680", "日本", "日本 ", "\U00010000", "\uffff", "\ue000",
    "l" * 1024, "l" * 1023, "l" * 1023 + "L", "é" * 512, "\U0001f9f5" * 256, "/" * 1024, "\n" * 1024,
]  # fmt: skip
"""Thread ids that are hard for some stores: a file system, a database or a Unicode normalization could treat several of
them as the same id, or refuse them."""

_BAD_IDS: list[Any] = [
    "",
    "x" * 1025,
    "é" * 513,
    "\U0001f9f5" * 257,
    "a\0b",
    "\0",
    "\ud800",
    "a\udfff",
    7,
    None,
    b"a",
    (),
]


class IdContract:
    """Tests that any text can name a thread, and that two different texts name two threads."""

    async def test_no_two_different_ids_are_the_same_thread(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        made = {}
        for number, thread_id in enumerate(_IDS):
            made[thread_id] = await append(store, thread_id, b"%d" % number, log_id=f"log-{number}")
        for number, thread_id in enumerate(_IDS):
            frames, head, _ = await state(other, thread_id)
            assert (frames, head) == ([b"%d" % number], made[thread_id]), (
                f"{thread_id!r} is not the thread that was made"
            )
        assert sorted(await listed(other)) == sorted(_IDS)
        for number, thread_id in enumerate(_IDS):
            if number % 2:
                await store.delete(thread_id)
        assert sorted(await listed(other)) == sorted(_IDS[::2])

    async def test_an_id_that_no_store_could_keep_is_invalid_for_every_method(self, open_store: OpenStore) -> None:
        store = open_store()
        for bad in _BAD_IDS:
            calls: dict[str, Callable[[Any], Awaitable[object]]] = {
                "append": lambda bad: append(store, bad, b"frame"),
                "append of a head": lambda bad: append(store, bad),
                "read": lambda bad: store.read(bad),
                "head": lambda bad: store.head(bad),
                "refs": lambda bad: store.refs(bad),
                "delete": lambda bad: store.delete(bad),
            }
            for name, call in calls.items():
                with pytest.raises(InvalidInput):
                    pytest.fail(f"{name} took the id {bad!r} and returned {await call(bad)!r}")
        assert await listed(store) == []

    # Namespaces

    async def test_namespaces_share_no_threads(self, open_store: OpenStore) -> None:
        spaces = [open_store(namespace) for namespace in _NAMESPACES]
        made = []
        for number, store in enumerate(spaces):
            made.append(await append(store, "thread", b"%d" % number, log_id=f"log-{number}"))
            await append(store, f"only {number}", b"frame")
        for number, store in enumerate(spaces):
            assert await state(store, "thread") == ([b"%d" % number], made[number], set())
            assert sorted(await listed(store)) == sorted(["thread", f"only {number}"])
            assert await listed(store, prefix="only") == [f"only {number}"]
        await spaces[0].delete("thread")
        assert await spaces[0].head("thread") is None
        for number, store in enumerate(spaces[1:], start=1):
            assert await store.head("thread") == made[number]

    async def test_namespaces_share_no_blobs(self, open_store: OpenStore) -> None:
        mine, theirs = open_store("mine"), open_store("theirs")
        [blob] = await put(mine, b"a secret")
        assert await theirs.get_blobs([blob]) == {}
        assert await theirs.missing_blobs([blob]) == {blob}
        assert await all_blobs(theirs) == []
        assert await all_blobs(mine) == [blob]

    async def test_namespaces_share_no_refs(self, open_store: OpenStore) -> None:
        mine, theirs = open_store("mine"), open_store("theirs")
        [blob] = await put(mine, b"a secret")
        await append(mine, "thread", b"frame", refs=[blob])
        with pytest.raises(MissingBlob):
            await append(theirs, "thread", b"frame", refs=[blob])
        assert await state(theirs, "thread") == ([], None, set())
        await append(theirs, "thread", b"frame")
        assert await theirs.refs("thread") == set()
        assert await mine.refs("thread") == {blob}

    async def test_deleting_a_blob_in_one_namespace_leaves_it_in_the_others(self, open_store: OpenStore) -> None:
        mine, theirs = open_store("mine"), open_store("theirs")
        [blob] = await put(mine, b"common")
        await put(theirs, b"common")
        await mine.delete_blobs([blob], untouched_for=timedelta(0))
        assert await mine.get_blobs([blob]) == {}
        assert await theirs.get_blobs([blob]) == {blob: b"common"}

    async def test_a_namespace_opened_twice_is_one(self, open_store: OpenStore) -> None:
        for namespace in _NAMESPACES:
            head = await append(open_store(namespace), "thread", b"frame", title=f"in {namespace[:20]!r}")
            assert await open_store(namespace).head("thread") == head

    async def test_a_namespace_that_no_store_could_keep_is_invalid(self, open_store: OpenStore) -> None:
        for bad in [bad for bad in _BAD_IDS if bad != ""]:
            with pytest.raises(InvalidInput):
                pytest.fail(f"the namespace {bad!r} was taken: {open_store(bad)!r}")


_NAMESPACES = [
    "",
    "a",
    "A",
    "a/b",
    "a_b",
    "..",
    "../a",
    "*",
    "%",
    "a ",
    "a.",
    "caf\u00e9",
    "cafe\u0301",
    "con",
    "n" * 1024,
]
