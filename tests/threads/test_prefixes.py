"""What a thread was after so many frames, whatever came since."""

from __future__ import annotations

import pytest

from clew import Thread
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, ThreadNotFound
from clew.threads.ops.fork import fork
from clew.threads.reader import state_after
from tests.threads.keeping import turn, with_folded_state

pytestmark = pytest.mark.anyio


async def test_it_is_the_state_that_every_append_left() -> None:
    async with MemoryCheckpointer() as store:
        left = {}
        async with Thread.open(store, "trip") as thread:
            for number in range(1, 4):
                await thread.append(*turn(number))
                left[thread.head.frames] = thread.checkpoint
            await thread.rewind(1)
            await thread.append(*turn(9))
            left[thread.head.frames] = thread.checkpoint
        for frames, state in left.items():
            assert await state_after(store, "trip", frames) == state


async def test_it_is_the_same_before_and_behind_a_folded_state() -> None:
    async with MemoryCheckpointer() as store:
        folded = await with_folded_state(store, "long")
        head = await store.head("long")
        assert head is not None
        assert (await state_after(store, "long", folded)).turns == 1
        assert await state_after(store, "long", folded + 1) == await state_after(store, "long", folded)
        assert (await state_after(store, "long", head.frames)).turns == 2


async def test_a_fork_of_it_undoes_a_rewind() -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "trip") as thread:
            await thread.append(*turn(1), *turn(2))
            was, frames = thread.checkpoint, thread.head.frames
            await thread.rewind(0)
        await fork(store, "trip", await state_after(store, "trip", frames), "undone")
        assert (await Thread.load(store, "undone")).messages == was.messages


@pytest.mark.parametrize("frames", [-1, 0, 99])
async def test_a_number_of_frames_that_it_never_had_is_refused(frames: int) -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "trip") as thread:
            await thread.append(*turn(1))
        with pytest.raises(InvalidInput, match=f"no frame {frames}"):
            await state_after(store, "trip", frames)
        with pytest.raises(ThreadNotFound):
            await state_after(store, "nobody", 1)
