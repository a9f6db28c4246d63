"""A holder that may have been replaced finds out before it does anything, and a holder that was replaced stops at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

import msgspec
import pytest

from clew.checkpointers import Head, MemoryCheckpointer
from clew.errors import Conflict, LeaseLost
from clew.log import StateSet
from clew.threads import Thread
from clew.threads.leases import LEASE_TIME, RENEW_AFTER
from clew.threads.takeover import until_cut_off, until_lost
from clew.threads.views.timeline import reader_of
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio

LASTS = LEASE_TIME.total_seconds()


class Slow(MemoryCheckpointer):
    """A store whose next append takes this many seconds, by the test's clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.takes = 0.0

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        takes, self.takes = self.takes, 0.0
        await super().append(thread_id, frames, at=at, head=head, refs=refs)
        self._clock.advance(takes)


async def take_over(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t", takeover=True, label="other"):
        pass


async def test_a_lease_renewed_in_time_leaves_the_log_as_it_is(clock: Clock) -> None:
    async with MemoryCheckpointer() as store, Thread.open(store, "t") as thread:
        frames = thread.head.frames
        clock.advance(LASTS - 1)
        assert not thread.has_run_out
        await thread.renew()
        assert (thread.head.frames, thread.has_run_out) == (frames, False)


async def test_a_lease_renewed_too_late_is_taken_again_so_that_of_two_takers_one_is_refused(clock: Clock) -> None:
    async with MemoryCheckpointer() as store, Thread.open(store, "t") as thread:
        seen = await store.head("t")  # by another process, which is about to take the thread
        assert seen is not None
        clock.advance(LASTS)
        assert thread.has_run_out
        await thread.renew()
        assert not thread.has_run_out
        with pytest.raises(Conflict):
            await store.append(
                "t", [b"taken"], at=seen.frames, head=msgspec.structs.replace(seen, frames=seen.frames + 1)
            )
        await thread.append(StateSet("a", 1))


async def test_a_renewal_that_takes_until_after_the_end_of_the_lease_is_no_proof(clock: Clock) -> None:
    async with Slow(clock) as store, Thread.open(store, "t") as thread:
        frames = thread.head.frames
        clock.advance(LASTS - 10)
        store.takes = 20
        await thread.renew()
        assert (thread.head.frames, thread.has_run_out) == (frames + 1, False)


async def test_a_clock_that_was_set_back_makes_a_holder_renew(clock: Clock) -> None:
    async with MemoryCheckpointer() as store, Thread.open(store, "t") as thread:
        clock.advance(-5)
        assert thread.has_run_out
        await thread.renew()
        assert not thread.has_run_out


async def test_taking_its_own_lease_again_is_no_event_of_the_thread(clock: Clock) -> None:
    async with MemoryCheckpointer() as store, Thread.open(store, "t") as thread:
        clock.advance(LASTS)
        await thread.renew()
        reader, _ = await reader_of(store, "t")
        assert [mark.kind for mark in reader.timeline().marks] == ["started"]


async def test_a_fence_is_passed_by_the_holder_alone() -> None:
    async with MemoryCheckpointer() as store:
        thread = await Thread.open(store, "t").__aenter__()
        await thread.fence()
        await take_over(store)
        with pytest.raises(LeaseLost):
            await thread.fence()
        thread.abandon()


async def test_a_fence_is_not_passed_by_an_append_that_was_begun_before() -> None:
    class Held(MemoryCheckpointer):
        going_on: asyncio.Event | None = None
        written = asyncio.Event()

        async def append(
            self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
        ) -> None:
            await super().append(thread_id, frames, at=at, head=head, refs=refs)
            if going_on := self.going_on:
                self.going_on = None
                self.written.set()
                await going_on.wait()

    async with Held() as store:
        thread = await Thread.open(store, "t").__aenter__()
        store.going_on = going_on = asyncio.Event()
        writing = asyncio.ensure_future(thread.append(StateSet("a", 1)))
        await store.written.wait()
        await take_over(store)  # the append is on record, and its writer does not know it yet
        fencing = asyncio.ensure_future(thread.fence())
        await asyncio.sleep(0)
        going_on.set()
        await writing
        with pytest.raises(LeaseLost):
            await fencing
        thread.abandon()


async def test_a_block_is_left_as_soon_as_the_lease_is_known_to_be_lost(clock: Clock) -> None:
    left: list[str] = []

    async def work(thread: Thread) -> None:
        async with until_lost(thread):
            try:
                await asyncio.Event().wait()
            finally:
                left.append("left")

    async with MemoryCheckpointer() as store:
        thread = await Thread.open(store, "t").__aenter__()
        working = asyncio.ensure_future(work(thread))
        await asyncio.sleep(0.001)
        await take_over(store)
        clock.advance(RENEW_AFTER.total_seconds())
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(working, PATIENCE)
        assert left == ["left"]
        thread.abandon()


async def test_a_block_that_learns_it_itself_raises_it_once_and_its_task_goes_on() -> None:
    async with MemoryCheckpointer() as store:
        thread = await Thread.open(store, "t").__aenter__()
        await take_over(store)

        async def work() -> None:
            async with until_lost(thread):
                await thread.append(StateSet("a", 1))

        with pytest.raises(LeaseLost):
            await work()
        for _ in range(3):
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        thread.abandon()


async def test_a_block_that_is_cancelled_otherwise_is_cancelled() -> None:
    async with MemoryCheckpointer() as store, Thread.open(store, "t") as thread:

        async def work() -> None:
            async with until_lost(thread):
                await asyncio.Event().wait()

        working = asyncio.ensure_future(work())
        await asyncio.sleep(0.001)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


async def test_a_lease_that_is_about_to_end_is_not_looked_at_all_the_time() -> None:
    """The rest of a lease can be less than what the clock of an event loop can tell."""

    class AboutToEnd:
        thread_id, has_run_out, unreachable_since = "t", False, None
        looks = 0

        @property
        def lease_left(self) -> float:
            self.looks += 1
            return 1e-12

    held = AboutToEnd()
    async with until_cut_off(held):
        for _ in range(1000):
            await asyncio.sleep(0)
    assert 1 <= held.looks < 100


async def test_who_took_over_from_a_live_holder_can_wait_for_the_end_of_its_lease(clock: Clock) -> None:
    async with MemoryCheckpointer() as store:
        first = await Thread.open(store, "t").__aenter__()
        async with Thread.open(store, "t", takeover=True) as second:
            began = time.monotonic()
            waiting = asyncio.ensure_future(second.outwait_predecessor())
            while not waiting.done():
                await asyncio.sleep(0.001)
                clock.advance(1)
            assert await waiting
            assert LASTS <= time.monotonic() - began < LASTS + 5
            assert not await second.outwait_predecessor()
        first.abandon()
        async with Thread.open(store, "t", takeover=True) as third:
            assert not await third.outwait_predecessor()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_who_goes_on_after_a_takeover_can_wait_for_the_end_of_the_lease_that_was_taken(
    is_killed: bool, clock: Clock
) -> None:
    """The process that took over was stopped at once. The process from which it took the thread may still be at work."""
    async with MemoryCheckpointer() as store:
        await Thread.open(store, "t").__aenter__()
        second = await Thread.open(store, "t", takeover=True).__aenter__()
        if is_killed:
            second.abandon()
        else:
            await second.__aexit__(None, None, None)
        async with Thread.open(store, "t") as third:
            began = time.monotonic()
            waiting = asyncio.ensure_future(third.outwait_predecessor())
            while not waiting.done():
                await asyncio.sleep(0.001)
                clock.advance(1)
            assert await waiting
            assert LASTS <= time.monotonic() - began < LASTS + 5
        async with Thread.open(store, "t") as fourth:
            assert not await fourth.outwait_predecessor()
            assert fourth.checkpoint.state == {"clew:replaced": None}
