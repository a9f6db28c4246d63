"""A long thread that is made for measurements is one that Clew itself could have written."""

from __future__ import annotations

import pytest

from bench.long_threads import EXCHANGE, write_thread
from clew.checkpointers import MemoryCheckpointer
from clew.threads import Thread


@pytest.mark.anyio
@pytest.mark.parametrize(("turns", "compact_every"), [(1, 0), (95, 0), (95, 30), (60, 20)])
async def test_a_made_thread_is_sound_and_done(turns: int, compact_every: int) -> None:
    async with MemoryCheckpointer() as store:
        head = await write_thread(store, "long", turns, compact_every=compact_every)
        verdict = await Thread.verify(store, "long")
        state = await Thread.load(store, "long")
    assert verdict.problems == ()
    assert state.turns == head.turns == turns
    assert (state.status, state.calls, state.unaccounted) == ("done", (), 0)
    prompts, summaries = -(-turns // EXCHANGE), (turns - 1) // compact_every if compact_every else 0
    assert len(state.history) == 2 * turns + summaries  # a prompt for each answer, which has no result
    assert len([fact for fact in state.facts if fact.kind == "turn"]) >= prompts
    if summaries:
        assert len(state.messages) <= 2 * compact_every + 2 + compact_every // EXCHANGE
    else:
        assert state.messages == state.history
