"""Threads worth moving: with everything in them that a copy could lose."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from clew import Thread
from clew.checkpointers import (
    Checkpointer,
    FileCheckpointer,
    Head,
    MemoryCheckpointer,
    SealedCheckpointer,
    SQLiteCheckpointer,
)
from clew.log import (
    Described,
    FoldedState,
    Logged,
    MessageAdded,
    Spend,
    StateSet,
    ThreadStarted,
    ToolIntent,
    UnknownEntry,
    Usage,
    WorkspaceSnapshot,
    encode_entries,
    encode_frame,
)
from clew.log.blobs import pack_blob, pack_tree, tree_refs, unpack_blob
from clew.log.keys import Keyring
from clew.log.trees import named_trees, rename_trees
from clew.messages import Image, Text, ToolCall, ToolResult, assistant, tool, user
from tests.threads.keeping import read_frames

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
    return with_key(store, key)


def with_key(store: Checkpointer, key: str | list[str] | None) -> Checkpointer:
    """Return the same store, opened with this key instead of the one that it was opened with."""
    inner = store.store if isinstance(store, SealedCheckpointer) else store
    return inner if key is None else SealedCheckpointer(inner, Keyring(key))


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
        await thread.append(UNKNOWN, await some_files(store, b"files of turn 1"))
        await thread.append(MessageAdded(user("And Rome?")), MessageAdded(assistant("No."), Usage(9, 9), 0.5))
        await thread.append(StateSet("x", float("nan")), StateSet("data", os.urandom(70_000)))
        await thread.append(await some_files(store, b"files that were rewound"))
        await thread.rewind(to_turn=1)
        await thread.append(FoldedState(thread.checkpoint))
        await thread.append(Described("A trip", {"team": "a"}), Spend(Usage(1, 1), 0.25))
        await thread.append(MessageAdded(assistant("Looking.", ToolCall("c2", "look", {}))))
        await thread.append(ToolIntent(len(thread.checkpoint.history) - 1, 0, "key-1"))
        await thread.fork(f"{thread_id}-fork", at_turn=1)
    head = await store.head(thread_id)
    assert head is not None
    return head


async def some_files(store: Checkpointer, text: bytes) -> WorkspaceSnapshot:
    """A snapshot as a workspace makes one: folders in folders, a chunk that is in two of them."""
    chunks = [pack_blob(text, store.keys), pack_blob(b"the same in all", store.keys)]
    inner = pack_tree(b"inner", leaves=[chunks[0][0], chunks[1][0], chunks[1][0]], keys=store.keys)
    outer = pack_tree(b"outer", [inner[0]], [chunks[1][0]], store.keys)
    await store.put_blobs(dict([*chunks, inner, outer]))
    return WorkspaceSnapshot(outer[0], 4, len(text))


async def files_of(store: Checkpointer, digest: str) -> list[Any]:
    """All that a tree holds, in order and with no digests, which depend on the key."""
    packed = (await store.get_blobs([digest]))[digest]
    trees, leaves = tree_refs(packed)
    return [unpack_blob(digest, packed, store.keys), *[await files_of(store, name) for name in (*trees, *leaves)]]


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
    """Times and entries, as bytes, so that a NaN is equal to itself; without digests of files, which depend on the key."""
    head = await store.head(thread_id)
    assert head is not None
    return [(frame.time, encode_entries(_nameless(frame.entries)).entries) for frame in await read_frames(store, head)]


def _nameless(entries: list[Logged]) -> list[Logged]:
    return rename_trees(entries, dict.fromkeys(named_trees(entries), ""))


def described(head: Head | None) -> Head:
    """A head without what is another one in every copy."""
    assert head is not None
    return msgspec.structs.replace(head, log_id="", digest="", title="", lease=None)
