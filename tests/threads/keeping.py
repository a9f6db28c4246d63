"""Threads and stores for the tests of what is kept: verified, repaired, pruned, collected, purged."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from clew import Thread
from clew.checkpointers import Checkpointer, Head
from clew.log import (
    FIRST,
    Described,
    Frame,
    Logged,
    MessageAdded,
    ThreadStarted,
    ToolIntent,
    Usage,
    encode_entries,
    encode_frame,
)
from clew.messages import Text, ToolCall, ToolResult, assistant, tool, user
from clew.threads.frames import decoded
from clew.threads.reader import frames

__all__ = ["read_frames", "turn", "with_folded_state", "with_turns", "write_log"]


async def read_frames(store: Checkpointer, head: Head) -> list[Frame]:
    """Every frame of the log that this head describes, checked."""
    return [await decoded(store, head.thread_id, number, data) async for number, data in frames(store, head)]


def turn(number: int, text: str = "") -> list[Logged]:
    call = ToolCall(f"c{number}", "look", {"n": number})
    return [
        MessageAdded(user(text or f"question {number}")),
        MessageAdded(assistant(f"answer {number}", call), Usage(100, 10), 0.01),
        MessageAdded(tool(ToolResult(f"c{number}", (Text(f"row {number}"),)))),
    ]


async def with_turns(store: Checkpointer, thread_id: str, count: int, *more: Logged) -> None:
    async with Thread.open(store, thread_id) as thread:
        await thread.append(ThreadStarted("ada", "m-1"), Described(tags={"team": "x"}))
        for number in range(1, count + 1):
            await thread.append(*turn(number))
        if more:
            await thread.append(*more)


async def with_folded_state(store: Checkpointer, thread_id: str) -> int:
    """A thread with a folded state in the middle of its log; returns the number of that frame."""
    async with Thread.open(store, thread_id) as thread:
        await thread.append(*turn(1))
        while thread.head.snapshot < 0:
            noise = thread.head.frames
            await thread.append(*(ToolIntent(n, 0, f"no such call {noise} {n * 7919}") for n in range(200, 400)))
        await thread.append(*turn(2))
        return thread.head.snapshot


async def write_log(store: Checkpointer, thread_id: str, groups: Iterable[list[Logged]], **head: object) -> None:
    """A log of exactly these frames, under a head that says no more than it must."""
    now = datetime.now(UTC)
    frames, previous, blobs = [], FIRST, dict[str, bytes]()
    for number, entries in enumerate(groups):
        frame = encode_frame(
            [encode_entries(entries)], previous=previous, thread_id=thread_id, number=number, keys=store.keys
        )
        frames.append(frame.data)
        previous = frame.digest
        blobs |= frame.blobs
    await store.put_blobs(blobs)
    stated = {"status": "interrupted", "digest": previous.hex(), "created_at": now, "updated_at": now, **head}
    made = Head(thread_id=thread_id, frames=len(frames), log_id="1", **stated)  # type: ignore[arg-type]
    await store.append(thread_id, frames, at=0, head=made, refs=blobs)
