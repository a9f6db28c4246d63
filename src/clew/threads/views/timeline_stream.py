"""Read a thread of any length turn by turn, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from itertools import chain

import msgspec

from clew.checkpointers import Head
from clew.log import Checkpoint, Fold, MessageRoles
from clew.log.checkpoint import Ranges
from clew.messages import Message
from clew.threads.leases import is_crashed
from clew.threads.reader import Source, decoded_frames, from_folded
from clew.threads.views.timeline import TimelineReader, Window, reader_of
from clew.threads.views.timeline_parts import Mark, TimelineTurn

__all__ = ["messages_at", "sketch_at", "turns_in_order"]


async def turns_in_order(
    store: Source, head: Head, known: TimelineReader, *, start: int = 0, stop: int | None = None
) -> AsyncIterator[TimelineTurn | Mark]:
    """Yield the turns at the positions from `start` up to, but not including, `stop`, and the marks between them: what
    a timeline of them has, in the same order.

    `known` has read the log up to `head` with a window; it knows which turns were rewound. Reads the log again, and keeps
    one turn at a time. Turns that were changed after a rewind to them are read before, and kept.
    """
    stop = known.total if stop is None else stop
    late = {position for position in known.turns.changed_late if start <= position < stop}
    changed: dict[int, TimelineTurn] = {}
    if late:
        again = TimelineReader(known.thread_id, Window(positions=late))
        await reader_of(store, known.thread_id, head=head, reader=again)
        found = again.timeline(start, stop, abandoned=is_crashed(head)).turns
        changed = {turn.position: turn for turn in found if turn.position in late}
    ready: list[TimelineTurn | Mark] = []

    def settled(turn: TimelineTurn, marks: Sequence[Mark]) -> None:
        if start <= turn.position < stop:
            final = changed.get(turn.position, turn)
            ready.append(msgspec.structs.replace(final, rewound=known.turns.is_rewound(turn.position)))
            ready.extend(marks)

    reader = TimelineReader(known.thread_id, Window(), on_settled=settled)
    is_first = start == 0
    async for _, frame in decoded_frames(store, head):
        reader.take(frame)
        if is_first and reader.total:
            is_first = False
            for mark in reader.turns.marks_at(0):
                yield mark
        for what in ready:
            yield what
        ready.clear()
        if reader.total > stop:
            return
    end = reader.timeline(max(start, reader.total - 1), stop, abandoned=is_crashed(head))
    for turn in end.turns:
        yield turn
    for mark in end.marks:
        if is_first or mark.position:
            yield mark


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
