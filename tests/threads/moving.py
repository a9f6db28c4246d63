"""Threads worth moving: with everything in them that a copy could lose."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from clew import Thread
from clew.checkpointers import Checkpointer, FileCheckpointer, Head, MemoryCheckpointer, SQLiteCheckpointer
from clew.log import (
    Described,
    FoldedState,
    MessageAdded,
    Spend,
    StateSet,
    ThreadStarted,
    ToolIntent,
    UnknownEntry,
    Usage,
    encode_entries,
    encode_frame,
)
from clew.log.keys import Keyring
from clew.messages import Image, Text, ToolCall, ToolResult, assistant, tool, user
from clew.threads.loading import read_frames

KEY, OTHER = "00" * 32, "11" * 32
UNKNOWN = UnknownEntry(msgspec.msgpack.encode(["from-the-future", 1, {"a": b"b"}]))


def store_of(kind: str, folder: Path, key: str | list[str] | None = None) -> Checkpointer:
    store: Checkpointer
    if kind == "memory":
        store = MemoryCheckpointer()
    elif kind == "sqlite":
        store = SQLiteCheckpointer(folder / "c.db")
    else:
        store = FileCheckpointer(folder / "threads")
    store.keys = None if key is None else Keyring(key)
    return store


@asynccontextmanager
async def stores(*opened: Checkpointer) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for store in opened:
            await store.close()


async def write_rich(store: Checkpointer, thread_id: str = "t") -> Head:
    """Large blobs, a folded state, an entry of a kind not known here, a rewind, an open call, a NaN; and a fork."""
    async with Thread.open(store, thread_id) as thread:
        await thread.append(ThreadStarted("trip", "m-1", "Be brief.", {"look": "d1"}, {"turns": 5}))
        await thread.append(MessageAdded(user("Plan a trip.", Image("image/png", os.urandom(100_000)))))
        call = ToolCall("c1", "look", {"city": "Paris"})
        await thread.append(MessageAdded(assistant("Gladly. " * 20_000, call), Usage(100, 10), 0.01))
        await thread.append(MessageAdded(tool(ToolResult("c1", (Text("row\n```\n" * 10),)))))
        await thread.append(UNKNOWN)
        await thread.append(MessageAdded(user("And Rome?")), MessageAdded(assistant("No."), Usage(9, 9), 0.5))
        await thread.append(StateSet("x", float("nan")), StateSet("data", os.urandom(70_000)))
        await thread.rewind(to_turn=1)
        await thread.append(FoldedState(thread.checkpoint))
        await thread.append(Described("A trip", {"team": "a"}), Spend(Usage(1, 1), 0.25))
        await thread.append(MessageAdded(assistant("Looking.", ToolCall("c2", "look", {}))))
        await thread.append(ToolIntent(len(thread.checkpoint.history) - 1, 0, "key-1"))
        await thread.fork(f"{thread_id}-fork", at_turn=1)
    head = await store.head(thread_id)
    assert head is not None
    return head


async def write_long(store: Checkpointer, thread_id: str, count: int, size: int) -> None:
    """Many frames of random bytes, which no compression makes small, as one log."""
    frames, refs, previous = [], set[str](), bytes(16)
    for number in range(count):
        entries = encode_entries(
            [StateSet(f"k{number % 7}", os.urandom(size)), MessageAdded(user(f"message {number}"))]
        )
        frame = encode_frame([entries], previous=previous, thread_id=thread_id, number=number, keys=store.keys)
        frames.append(frame.data)
        previous = frame.digest
        if frame.blobs:
            await store.put_blobs(frame.blobs)
            refs.update(frame.blobs)
    await _append_all(store, thread_id, frames, refs)


async def _append_all(store: Checkpointer, thread_id: str, frames: list[bytes], refs: set[str]) -> None:
    now = datetime.now(UTC)
    for at in range(0, len(frames), 20):
        part = frames[at : at + 20]
        head = Head(
            thread_id=thread_id,
            frames=at + len(part),
            log_id="long",
            status="interrupted",
            digest=part[-1][-16:].hex(),
            title="message 0" if store.keys is None else "",
            created_at=now,
            updated_at=now,
        )
        await store.append(thread_id, part, at=at, head=head, refs=refs)


async def log_of(store: Checkpointer, thread_id: str) -> list[tuple[int, bytes]]:
    """Times and entries, as bytes, so that a NaN is equal to itself."""
    head = await store.head(thread_id)
    assert head is not None
    return [(frame.time, encode_entries(frame.entries).data) for frame in await read_frames(store, head)]


def described(head: Head | None) -> Head:
    """A head without what is another one in every copy."""
    assert head is not None
    return msgspec.structs.replace(head, log_id="", digest="", title="", lease=None)
