"""A cache of timelines: the turns and events that were read from a thread's log. With it, showing more of a long
thread, or the changes of one that is running, does not read the whole log again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from clew._runtime.aio import settle
from clew.checkpointers import Checkpointer, Head
from clew.errors import ThreadNotFound
from clew.log import FIRST, Frame, Logged, MessageAdded, ToolOutcome
from clew.messages import Block, Text, Thinking, ToolResult
from clew.threads.heads import is_part
from clew.threads.reader import decoded_frames
from clew.threads.views.timeline import TimelineReader, Window

__all__ = ["Readers", "Reading"]

T = TypeVar("T")

_MOST = 8
"""The most threads whose timelines are kept in memory."""
_NEWEST = 2_000
"""How many of a thread's newest turns are kept in memory. At most as many older turns, around those that were looked at
last, are kept too. A page that shows other turns reads the log again."""

_LONGEST = 190_000
"""The most characters of a text that are kept in memory, a little less than a page shows of a text."""


class Reading(NamedTuple):
    """A timeline reader that has read the whole log of a thread, and the thread's head at that moment. A timeline
    reader turns a log into turns, and marks for events such as a crash."""

    reader: TimelineReader
    head: Head
    lock: asyncio.Lock
    """Held while the reader reads, and while another OS thread uses it."""

    async def show(self, make: Callable[[TimelineReader], T]) -> T:
        """Run `make` with the reader on another OS thread, so that a large page does not keep other requests waiting.
        Return its result. A cancelled caller still waits until `make` has ended, so that only one OS thread at a time
        uses the reader."""
        async with self.lock:
            return await settle(asyncio.to_thread(make, self.reader))


class _Kept:
    __slots__ = ("lock", "log_id", "older", "reader")

    def __init__(self, log_id: str, thread_id: str) -> None:
        self.log_id = log_id
        self.reader = TimelineReader(thread_id, Window(newest=_NEWEST))
        self.older: TimelineReader | None = None
        """A reader of the log that keeps older turns than `reader`, which keeps the newest. None if no older turns were
        looked at."""
        self.lock = asyncio.Lock()


class Readers:
    """Keeps timeline readers in memory for the threads that were looked at last, at most `_MOST`. A timeline reader
    turns a thread's log into turns, and marks for events such as a crash. Of a long thread, it keeps only some turns."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    async def read(self, store: Checkpointer, namespace: str, thread_id: str) -> Reading:
        """Return a reader that has read the whole log of a thread, and the thread's head at that moment. It has the
        thread's newest turns. `namespace` is the part of the store to which `store` gives access: two of these parts
        may have threads with the same id.

        If the thread is in the cache, only the frames that are new since the last call are read. Raises
        `ThreadNotFound` if there is no such thread. An error while reading, such as `Corrupt`, is raised too, and
        removes the thread from the cache.
        """
        head = await store.head(thread_id)
        if head is None or is_part(head):
            raise ThreadNotFound(thread_id)
        name = namespace, thread_id
        kept = self._kept.get(name)
        if kept is None or kept.log_id != head.log_id:
            kept = self._kept[name] = _Kept(head.log_id, thread_id)
        self._kept.move_to_end(name)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        async with kept.lock:
            if kept.reader.frames < head.frames:
                try:
                    await _read_on(store, head, kept.reader)
                except BaseException:
                    self._kept.pop(name, None)
                    raise
        return Reading(kept.reader, head, kept.lock)

    async def read_at(self, store: Checkpointer, namespace: str, thread_id: str, start: int, stop: int) -> Reading:
        """Return a `Reading`: a timeline reader that has read the whole log of a thread, and the thread's head at that
        moment. The reader has the turns at the positions from `start` up to, not including, `stop`, counted from 0. Of
        more than 2,000 (`_NEWEST`) turns it has only the middle ones. `namespace` is the part of the store to which
        `store` gives access: two of these parts may have threads with the same id.

        If no reader in memory has these turns, the whole log is read again, by a reader that keeps turns around these
        too and then stays in memory. Raises `ThreadNotFound` if there is no such thread, and any error of reading its
        log, such as `Corrupt`.
        """
        reading = await self.read(store, namespace, thread_id)
        reader, head, _ = reading
        stop = min(stop, reader.total)
        kept = self._kept.get((namespace, thread_id))
        if kept is None or reader.turns.holds(start, stop):
            return reading
        async with kept.lock:
            older = kept.older
            if older is None or not older.turns.holds(start, stop):
                first = max(0, (start + stop - _NEWEST) // 2)
                older = TimelineReader(thread_id, Window(positions=range(first, first + _NEWEST)))
            if older.frames < head.frames:
                kept.older = None
                await _read_on(store, head, older)
            kept.older = older
        return Reading(older, head, kept.lock)


async def _read_on(store: Checkpointer, head: Head, reader: TimelineReader) -> None:
    """Let `reader` read the frames of a log that it has not read yet, up to the head. Long texts are cut before
    `reader` gets them, because a page shows only their beginnings and some threads have gigabytes of them."""
    previous = reader.digest if reader.frames else FIRST
    async for _, frame in decoded_frames(store, head, start=reader.frames, previous=previous):
        reader.take(_shortened(frame))


def _shortened(frame: Frame) -> Frame:
    entries = [_shortened_entry(entry) for entry in frame.entries]
    return msgspec.structs.replace(frame, entries=entries)


def _shortened_entry(entry: Logged) -> Logged:
    if isinstance(entry, MessageAdded) and any(map(_is_long, entry.message.content)):
        content = tuple(map(_shortened_block, entry.message.content))
        return msgspec.structs.replace(entry, message=msgspec.structs.replace(entry.message, content=content))
    if isinstance(entry, ToolOutcome) and _is_long(entry.result):
        return msgspec.structs.replace(entry, result=_shortened_block(entry.result))
    return entry


def _is_long(block: Block) -> bool:
    if isinstance(block, ToolResult):
        return any(map(_is_long, block.content))
    return isinstance(block, Text | Thinking) and len(block.text) > _LONGEST


def _shortened_block(block: Block) -> Block:
    if not _is_long(block):
        return block
    if isinstance(block, ToolResult):
        return msgspec.structs.replace(block, content=tuple(map(_shortened_block, block.content)))
    assert isinstance(block, Text | Thinking)  # noqa: S101 - no other block is long
    more = len(block.text) - _LONGEST
    note = f"{block.text[:_LONGEST]}\n… {more:,} more characters; export the thread to see all"
    return msgspec.structs.replace(block, text=note)
