"""Read the parts of a thread that are needed, in memory that does not grow with the thread.

A sketch of a thread's state has a stand-in for each message. It says where in the history the messages are that a turn
or the model sees, and these are then read from the log.
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
from clew.threads.heads import is_part
from clew.threads.reader import Source, decoded_frames, from_folded

__all__ = ["messages_at", "sketch_at", "sketch_of", "state_up_to", "without"]


async def sketch_of(source: Source, thread_id: str) -> tuple[Checkpoint, Head]:
    """Return a thread's state with stand-ins for the messages, and its head. Takes no lease and changes nothing.

    Raises `ThreadNotFound` if there is no such thread.
    """
    head = await source.head(thread_id)
    if head is None or is_part(head):
        raise ThreadNotFound(thread_id)
    return await sketch_at(source, head), head


async def state_up_to(source: Source, head: Head, sketch: Checkpoint, turn: int) -> Checkpoint:
    """Return a thread's state with all messages up to those that the model saw at the end of this turn. Stand-ins are in
    place of later ones. `sketch` is the state that the log with this head folds to, with stand-ins for all messages."""
    at = fold([Rewound(turn=turn)], sketch)
    reached = max((stop for ranges in (at.view, *at.marks) for _, stop in ranges), default=0)
    found = [message async for _, message in messages_at(source, head, ((0, reached),))]
    return msgspec.structs.replace(sketch, history=(*found, *sketch.history[reached:]))


async def sketch_at(source: Source, head: Head) -> Checkpoint:
    """Return the state that the log with this head folds to, with stand-ins for the messages: see `Fold.sketch`."""
    fold = Fold(outline=MessageRoles)
    async for _, frame in decoded_frames(source, head, **from_folded(head)):
        fold.push(frame.entries)
    return fold.sketch(all_facts=True)


async def messages_at(source: Source, head: Head, ranges: Ranges) -> AsyncIterator[tuple[int, Message]]:
    """Yield the messages in these ranges of the history, each with its index, in the order of the ranges.

    Reads the log once for ranges that ascend, and once more for each range that lies before the one before it. Keeps a
    few messages at a time.
    """
    for ascending in _ascending(ranges):
        found: list[tuple[int, Message]] = []
        fold = Fold(outline=partial(_Places, found=found))
        wanted = chain.from_iterable(range(start, stop) for start, stop in ascending)
        next_place = next(wanted, None)
        async for _, frame in decoded_frames(source, head, **from_folded(head)):
            fold.push(frame.entries)
            for place, message in found:
                if place == next_place:  # a folded state brings older messages once more
                    yield place, message
                    next_place = next(wanted, None)
            found.clear()
            if next_place is None:
                break


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the messages that are in `ranges` and not in `others`, as ranges, in the order of `ranges`."""
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
    """Return the ranges in groups, within which each begins where the one before it ends, or later."""
    groups: list[list[tuple[int, int]]] = []
    for one in ranges:
        if groups and one[0] >= groups[-1][-1][1]:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


class _Places(MessageRoles):
    """A history that keeps no messages, and puts each that is added into the list `found`, with its index."""

    __slots__ = ("_found",)

    def __init__(self, messages: Iterable[Message], found: list[tuple[int, Message]]) -> None:
        self._found = found
        super().__init__(messages)

    def append(self, message: Message) -> None:
        self._found.append((len(self), message))
        super().append(message)
