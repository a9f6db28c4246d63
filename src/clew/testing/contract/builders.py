"""Functions that the tests of stores share. They make heads and times, append frames, store blobs and read what a store
has."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from blake3 import blake3

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import Head, HeadQuery

__all__ = [
    "EPOCH",
    "OpenStore",
    "Stopwatch",
    "a_head",
    "all_blobs",
    "append",
    "digest_of",
    "every_call",
    "heads",
    "listed",
    "minute",
    "put",
    "state",
]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class OpenStore(Protocol):
    """The type of a function that opens another checkpointer each time it is called, always on the same underlying
    store. `namespace` is the part of the store in which the checkpointer works; threads in different namespaces are
    apart."""

    def __call__(self, namespace: str = "") -> Checkpointer: ...


def minute(number: int) -> datetime:
    """Return the time that is `number` minutes after a fixed moment, for use in heads in tests."""
    return EPOCH + timedelta(minutes=number)


def a_head(thread_id: str, frames: int = 1, **fields: Any) -> Head:
    """Make the head of a thread that has `frames` frames. Its required fields have fixed values, such as the status
    "running"; `fields` replaces some of them or adds others."""
    given = {"log_id": "log-1", "status": "running", "created_at": EPOCH, "updated_at": EPOCH, **fields}
    return Head(thread_id=thread_id, frames=frames, **given)


async def append(
    store: Checkpointer, thread_id: str, *frames: bytes, at: int = 0, refs: Collection[str] = (), **fields: Any
) -> Head:
    """Append these frames to a thread. `at` is the position of the first one: how many frames come before it. `refs`
    are the digests of the blobs that the frames refer to. The head that is written counts all frames and has these
    `fields`. Return the head."""
    head = a_head(thread_id, at + len(frames), **fields)
    await store.append(thread_id, frames, at=at, head=head, refs=refs)
    return head


async def state(store: Checkpointer, thread_id: str) -> tuple[list[bytes], Head | None, set[str]]:
    """Return everything that a store holds of a thread: its frames, its head, and the digests of the blobs that it
    refers to."""
    return await store.read(thread_id), await store.head(thread_id), await store.refs(thread_id)


async def heads(store: Checkpointer, query: HeadQuery | None = None) -> list[Head]:
    return [head async for head in (store.heads() if query is None else store.heads(query))]


async def listed(store: Checkpointer, **conditions: Any) -> list[str]:
    """List the heads that a `HeadQuery` with these conditions selects, and return the ids of their threads in the order
    of the listing."""
    return [head.thread_id for head in await heads(store, HeadQuery(**conditions))]


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


async def put(store: Checkpointer, *blobs: bytes) -> list[str]:
    """Store these blobs, and return the digest of each, in order."""
    await store.put_blobs({digest_of(data): data for data in blobs})
    return [digest_of(data) for data in blobs]


async def all_blobs(store: Checkpointer, untouched_for: timedelta = timedelta(0)) -> list[str]:
    return [digest async for digest in store.blobs(untouched_for=untouched_for)]


class Stopwatch:
    """Remembers when it was made. So a test can list only the blobs that were last stored or used before that moment."""

    APART = 0.5
    """Seconds that a test waits before it makes a `Stopwatch`, so that blobs stored before and after can be told apart
    even if calls are slow."""

    TRIES = 20
    """How many times a test asks the store, at most, if its answer comes too late to prove anything."""

    def __init__(self) -> None:
        self._start = self._asked = time.monotonic()

    def before_start(self) -> timedelta:
        """Return the age to give as `untouched_for` when blobs are listed or deleted, so that only those are meant
        which were last stored or used before this object was made. The age is counted back from now."""
        self._asked = time.monotonic()
        return timedelta(seconds=self._asked - self._start + self.APART / 2)

    def was_in_time(self) -> bool:
        """Return whether less than a quarter of a second has passed since `before_start` was called. A test calls this
        after the store has listed or deleted blobs of that age. If the result is False, blobs that were stored after
        this object was made may have counted as old enough by then. So the store's answer proves nothing, and the test
        asks again."""
        return time.monotonic() - self._asked < self.APART / 2


def every_call(store: Checkpointer) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return a valid call of each method of a checkpointer that uses the store: a dict from the method's name to a
    function without arguments that makes the call."""
    digest = digest_of(b"blob")
    return {
        "append": lambda: append(store, "thread", b"frame"),
        "read": lambda: store.read("thread"),
        "head": lambda: store.head("thread"),
        "heads": lambda: heads(store),
        "refs": lambda: store.refs("thread"),
        "delete": lambda: store.delete("thread"),
        "put_blobs": lambda: put(store, b"blob"),
        "get_blobs": lambda: store.get_blobs([digest]),
        "missing_blobs": lambda: store.missing_blobs([digest]),
        "blobs": lambda: all_blobs(store),
        "delete_blobs": lambda: store.delete_blobs([digest], untouched_for=timedelta(0)),
    }
