"""A thread of any length is read turn by turn: what is shown of it is what the whole timeline has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.checkpointers import Checkpointer, Head, MemoryCheckpointer
from clew.log import LeaseTaken, Logged, MessageAdded, Rewound, StatusChanged, fold
from clew.messages import assistant, user
from clew.threads.reader import state_at
from clew.threads.sketch import messages_at, sketch_at
from clew.threads.views.timeline import Mark, TimelineReader, TimelineTurn, Window, reader_of
from clew.threads.views.timeline_stream import turns_in_order
from tests.sampling import examples
from tests.strategies import entries
from tests.threads.keeping import write_log

rewinds = st.builds(Rewound, turn=st.integers(0, 3))
asked = st.builds(lambda n: MessageAdded(user(f"question {n}")), st.integers(0, 9))
answered = st.builds(lambda n: MessageAdded(assistant(f"answer {n}")), st.integers(0, 9))
taken = st.builds(LeaseTaken, st.sampled_from(["process 1 on alpha", "process 2 on beta"]), st.text("ab", max_size=2))
ended = st.builds(StatusChanged, st.sampled_from(["done", "waiting", "running"]))
frames = st.lists(st.lists(entries | rewinds | asked | answered | taken | ended, min_size=1, max_size=4), max_size=12)


def place(what: TimelineTurn | Mark) -> tuple[int, int]:
    return (what.position, 1) if isinstance(what, Mark) else (what.position + 1, 0)


def encoded(found: Sequence[object]) -> list[bytes]:
    return [msgspec.msgpack.encode(what, enc_hook=repr) for what in found]


async def written(store: Checkpointer, log: list[list[Logged]]) -> Head:
    await write_log(store, "t", [[MessageAdded(user("first"))], *log])
    head = await store.head("t")
    assert head is not None
    return head


@settings(max_examples=examples(300))
@given(frames, st.integers(0, 6), st.integers(1, 6))
def test_turns_that_are_read_one_by_one_are_those_of_the_whole_timeline(
    log: list[list[Logged]], start: int, count: int
) -> None:
    async def work() -> None:
        store = MemoryCheckpointer()
        head = await written(store, log)
        whole, _ = await reader_of(store, "t", head=head)
        known, _ = await reader_of(store, "t", head=head, reader=TimelineReader("t", Window()))
        assert (known.total, len(known.turns)) == (whole.total, whole.checkpoint.turns)
        for stop in (None, min(start + count, whole.total)):
            if stop is not None and start >= stop:
                continue
            expected = whole.timeline(start, stop)
            if expected.start != start:
                continue
            both: list[TimelineTurn | Mark] = [*expected.turns, *expected.marks]
            in_order = sorted(both, key=place)
            found = [what async for what in turns_in_order(store, head, known, start=start, stop=stop)]
            assert encoded(found) == encoded(in_order)

    asyncio.run(work())


@settings(max_examples=examples(300))
@given(frames, st.integers(1, 4))
def test_a_window_has_the_turns_that_are_asked_for(log: list[list[Logged]], number: int) -> None:
    async def work() -> None:
        store = MemoryCheckpointer()
        head = await written(store, log)
        whole, _ = await reader_of(store, "t", head=head)
        for window in (Window(numbers={number}), Window(newest=2), Window(positions=range(number, number + 2))):
            reader, _ = await reader_of(store, "t", head=head, reader=TimelineReader("t", window))
            position = whole.turns.position_of(number)
            assert reader.turns.position_of(number) == position
            spans = [(max(0, whole.total - 1), whole.total)]
            spans += [(position, position + 1)] if window.numbers and position is not None else []
            spans += [(max(0, whole.total - 2), whole.total)] if window.newest == 2 else []
            spans += [(number, min(number + 2, whole.total))] if window.positions and number < whole.total else []
            for start, stop in spans:
                mine, theirs = reader.timeline(start, stop), whole.timeline(start, stop)
                assert encoded(mine.turns) == encoded(theirs.turns)
                assert [mark.kind for mark in mine.marks] == [mark.kind for mark in theirs.marks]
                assert encoded(mine.pending) == encoded(theirs.pending)

    asyncio.run(work())


@settings(max_examples=examples(300))
@given(frames)
def test_messages_are_found_by_their_place_without_the_others(log: list[list[Logged]]) -> None:
    async def work() -> None:
        store = MemoryCheckpointer()
        head = await written(store, log)
        state, sketch = await state_at(store, head), await sketch_at(store, head)
        assert (sketch.turns, sketch.view, [*sketch.marks]) == (state.turns, state.view, [*state.marks])
        assert encoded(sketch.facts) == encoded(state.facts)
        for turn in range(state.turns + 1):
            then = fold([Rewound(turn=turn)], state)
            found = [message async for _, message in messages_at(store, head, sketch.marks[turn])]
            assert encoded(found) == encoded(then.messages)
        found = [message async for _, message in messages_at(store, head, sketch.view)]
        assert encoded(found) == encoded(state.messages)

    asyncio.run(work())
