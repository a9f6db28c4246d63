"""Reads single parts of a thread, such as the messages of one turn, in memory that does not grow with the thread.

First a sketch of the thread's state is made, in which an empty message of the same role stands for each message. The
sketch says which messages of the history a turn or the model sees. Only these are then read from the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from itertools import chain

import msgspec

from clew.checkpointers import Head
from clew.errors import ThreadNotFound
from clew.log import Checkpoint, Fold, MessageRoles, Rewound, fold
from clew.log.checkpoint import Ranges
from clew.messages import Message
from clew.threads.frames import Source
from clew.threads.heads import is_part
from clew.threads.reader import decoded_frames, from_folded

__all__ = ["messages_at", "sketch_at", "sketch_of", "state_up_to", "without"]


async def sketch_of(source: Source, thread_id: str) -> tuple[Checkpoint, Head]:
    """Return a thread's state with empty messages in place of the real ones, so that it takes little memory, and the
    thread's head. Takes no lease and changes nothing.

    Raises `ThreadNotFound` if there is no such thread.
    """
    head = await source.head(thread_id)
    if head is None or is_part(head):
        raise ThreadNotFound(thread_id)
    return await sketch_at(source, head), head


async def state_up_to(source: Source, head: Head, sketch: Checkpoint, turn: int) -> Checkpoint:
    """Return the state of the thread with this head, with the messages in its history up to the last one that the model
    saw by the end of turn `turn`. The messages after that one are replaced by empty ones, so that an early turn of a
    long thread takes little memory. `sketch` is the state of the thread with all messages empty, as `sketch_at` returns
    it."""
    at = fold([Rewound(turn=turn)], sketch)
    reached = max((stop for ranges in (at.view, *at.marks) for _, stop in ranges), default=0)
    found = [message async for _, message in messages_at(source, head, ((0, reached),))]
    return msgspec.structs.replace(sketch, history=(*found, *sketch.history[reached:]))


async def sketch_at(source: Source, head: Head) -> Checkpoint:
    """Return the state that the entries of the log with this head add up to, but with empty messages in place of the
    real ones, so that it takes little memory."""
    fold = Fold(outline=MessageRoles)
    async for _, frame in decoded_frames(source, head, **from_folded(head)):
        fold.push(frame.entries)
    return fold.sketch(all_facts=True)


async def messages_at(source: Source, head: Head, ranges: Ranges) -> AsyncIterator[tuple[int, Message]]:
    """Yield the messages in these ranges of indices in the thread's history, each with its index, in the order of the
    ranges.

    Keeps a few messages in memory at a time. Reads the log once if each range begins where the one before it ends, or
    later, and once more for each range that does not.
    """
    for ascending in _ascending(ranges):
        found: list[tuple[int, Message]] = []
        fold = Fold(outline=partial(_Places, found=found))
        wanted = chain.from_iterable(range(start, stop) for start, stop in ascending)
        next_place = next(wanted, None)
        async for _, frame in decoded_frames(source, head, **from_folded(head)):
            fold.push(frame.entries)
            for place, message in found:
                if place == next_place:  # a folded state repeats older messages
                    yield place, message
                    next_place = next(wanted, None)
            found.clear()
            if next_place is None:
                break


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the indices that are in `ranges` and not in `others`, as ranges, in the order of `ranges`."""
    found = []
    for start, stop in ranges:
        for other_start, other_stop in sorted(others):
            if other_start < stop and other_stop > start:
                if other_start > start:
                    found.append((start, other_start))
                start = other_stop
        if start < stop:
            found.append((start, stop))
    return tuple(found)


def _ascending(ranges: Ranges) -> list[list[tuple[int, int]]]:
    """Split these ranges (start, stop) of message indices into groups, without changing their order. A new group begins
    at each range that starts before the end of the range in front of it."""
    groups: list[list[tuple[int, int]]] = []
    for one in ranges:
        if groups and one[0] >= groups[-1][-1][1]:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


class _Places(MessageRoles):
    """A list of a thread's messages that saves memory: it keeps only the role of each. Each message that is added is
    also put, whole and with its index, into the list `found`, from which the caller takes those that it needs."""

    __slots__ = ("_found",)

    def __init__(self, messages: Iterable[Message], found: list[tuple[int, Message]]) -> None:
        self._found = found
        super().__init__(messages)

    def append(self, message: Message) -> None:
        self._found.append((len(self), message))
        super().append(message)
