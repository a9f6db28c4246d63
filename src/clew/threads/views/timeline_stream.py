"""Reads the timeline of a thread (its turns, and events such as a crash) turn by turn, in memory that does not grow
with the length of the thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from clew.checkpointers import Head
from clew.threads.frames import Source
from clew.threads.leases import is_crashed
from clew.threads.reader import decoded_frames
from clew.threads.views.timeline import TimelineReader, Window, reader_of
from clew.threads.views.timeline_parts import Mark, TimelineTurn

__all__ = ["turns_in_order"]


async def turns_in_order(
    store: Source, head: Head, known: TimelineReader, *, start: int = 0, stop: int | None = None
) -> AsyncIterator[TimelineTurn | Mark]:
    """Yield the turns at the positions from `start` up to, but not including, `stop`, and the marks between them (such
    as a crash or a rewind), in the order of a timeline.

    `known` is a reader that has read the log up to `head`, and so knows which turns a later rewind took back. The log
    is read again here, and one turn at a time is in memory. Turns that change after a newer turn has begun, because of
    a rewind to them, are read before all others and kept, so that they too are yielded as they are in the end.
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
