"""Small builders that the parts of the contract share."""

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
    """Opens another checkpointer on the same underlying store each time it is called."""

    def __call__(self, namespace: str = "") -> Checkpointer: ...


def minute(number: int) -> datetime:
    """A moment: this many minutes after a fixed one."""
    return EPOCH + timedelta(minutes=number)


def a_head(thread_id: str, frames: int = 1, **fields: Any) -> Head:
    """A head with something in every field it must have."""
    given = {"log_id": "log-1", "status": "running", "created_at": EPOCH, "updated_at": EPOCH, **fields}
    return Head(thread_id=thread_id, frames=frames, **given)


async def append(
    store: Checkpointer, thread_id: str, *frames: bytes, at: int = 0, refs: Collection[str] = (), **fields: Any
) -> Head:
    """Append these frames with a head that fits them, and return it."""
    head = a_head(thread_id, at + len(frames), **fields)
    await store.append(thread_id, frames, at=at, head=head, refs=refs)
    return head


async def state(store: Checkpointer, thread_id: str) -> tuple[list[bytes], Head | None, set[str]]:
    """All that a store holds of a thread."""
    return await store.read(thread_id), await store.head(thread_id), await store.refs(thread_id)


async def heads(store: Checkpointer, query: HeadQuery | None = None) -> list[Head]:
    return [head async for head in (store.heads() if query is None else store.heads(query))]


async def listed(store: Checkpointer, **conditions: Any) -> list[str]:
    """The ids of the threads that meet these conditions, as listed."""
    return [head.thread_id for head in await heads(store, HeadQuery(**conditions))]


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


async def put(store: Checkpointer, *blobs: bytes) -> list[str]:
    """Keep these blobs, and return their digests in order."""
    await store.put_blobs({digest_of(data): data for data in blobs})
    return [digest_of(data) for data in blobs]


async def all_blobs(store: Checkpointer, untouched_for: timedelta = timedelta(0)) -> list[str]:
    return [digest async for digest in store.blobs(untouched_for=untouched_for)]


class Stopwatch:
    """Tells what was touched before it started from what was touched since, with room for slow calls."""

    APART = 0.5
    """Seconds to let pass between the old touches and the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def before_start(self) -> timedelta:
        """Untouched for this long: not touched since the start."""
        return timedelta(seconds=time.monotonic() - self._start + self.APART / 2)


def every_call(store: Checkpointer) -> dict[str, Callable[[], Awaitable[object]]]:
    """One sound call of every method that reaches for the store, by name."""
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
