"""A thread held for a moment stands afterwards as it stood before."""

from __future__ import annotations

import pytest

from clew import Thread
from clew.checkpointers import MemoryCheckpointer
from clew.checkpointers.heads import Status
from clew.errors import LeaseLost, ThreadBusy, ThreadNotFound
from clew.log import StatusChanged
from clew.threads.maintenance import unlock, upkeep
from tests.threads.keeping import turn

pytestmark = pytest.mark.anyio


async def _with_status(store: MemoryCheckpointer, status: Status) -> None:
    async with Thread.open(store, "trip") as thread:
        await thread.append(*turn(1), StatusChanged(status, "because"))


@pytest.mark.parametrize("status", ["waiting", "failed", "done", "interrupted"])
async def test_its_status_and_the_reason_for_it_stay(status: Status) -> None:
    async with MemoryCheckpointer() as store:
        await _with_status(store, status)
        before = await Thread.load(store, "trip")
        async with upkeep(store, "trip", "test") as thread:
            assert thread.head.lease is not None
        assert await Thread.load(store, "trip") == before


async def test_a_status_that_is_set_meanwhile_is_the_last_word() -> None:
    async with MemoryCheckpointer() as store:
        await _with_status(store, "done")
        async with upkeep(store, "trip", "test") as thread:
            await thread.append(StatusChanged("failed", "on purpose"))
        assert (await Thread.load(store, "trip")).status == "failed"


async def test_a_thread_that_is_not_there_is_not_made() -> None:
    async with MemoryCheckpointer() as store:
        with pytest.raises(ThreadNotFound):
            await unlock(store, "nobody")
        with pytest.raises(ThreadNotFound):
            async with upkeep(store, "nobody", "test"):
                pass
        assert await store.head("nobody") is None


async def test_a_thread_that_nobody_holds_is_not_written_to() -> None:
    async with MemoryCheckpointer() as store:
        await _with_status(store, "waiting")
        before = await store.head("trip")
        assert await unlock(store, "trip") is None
        assert await store.head("trip") == before


async def test_a_live_holder_loses_its_thread_only_to_a_takeover() -> None:
    async with MemoryCheckpointer() as store:
        thread = await Thread.open(store, "trip", label="holder").__aenter__()
        await thread.append(*turn(1))
        with pytest.raises(ThreadBusy):
            await unlock(store, "trip")
        taken = await unlock(store, "trip", takeover=True)
        assert taken is not None
        assert taken.owner.label == "holder"
        with pytest.raises(LeaseLost):
            await thread.append(*turn(2))
        thread.abandon()
        head = await store.head("trip")
        assert head is not None
        assert (head.lease, head.status) == (None, "interrupted")
