"""Tests that every store has to pass for leases. A process that renews its lease keeps its thread, however far the
clocks of two machines are apart. If it stops renewing, exactly one other process can take the thread over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import pytest

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import Head, HeadQuery, Lease, Owner
from clew.errors import ThreadBusy
from clew.log import LeaseTaken, StateSet
from clew.testing.contract.builders import OpenStore
from clew.threads import Thread
from clew.threads.leases import wait_until_free

_LASTS = 0.2
"""Seconds that the leases of these tests last."""
_APART = (-3600.0, 3600.0)
"""By how many seconds the clock of the process that holds the lease is ahead of the clock of the process that wants to
take it. The tests run with each of these values."""
_ELSEWHERE = Owner(host="elsewhere", boot="of another machine", pid=7, started="then", label="")


class LeaseContract:
    """Tests of leases, which `clew.threads` keeps in the threads' heads. The store itself does not judge leases, but it
    must show a new head at once, and let only one of two appends at the same position succeed."""

    async def test_a_live_thread_is_not_taken_whatever_the_clock_of_its_holder_says(
        self, open_store: OpenStore
    ) -> None:
        for number, apart in enumerate(_APART):
            holder = _Holder(open_store(), f"thread-{number}", apart)
            await holder.begin()
            taker = _Watched(open_store(), holder)
            with pytest.raises(ThreadBusy, match="process 7 on elsewhere"):
                await asyncio.wait_for(wait_until_free(cast(Checkpointer, taker), await taker.head()), 60)

    async def test_a_thread_whose_holder_fell_silent_is_taken_by_one_after_the_time_of_its_lease(
        self, open_store: OpenStore
    ) -> None:
        for number, apart in enumerate(_APART):
            holder = _Holder(open_store(), f"thread-{number}", apart)
            await holder.begin()
            began = time.monotonic()
            takers = [Thread.open(open_store(), holder.thread_id) for _ in range(2)]
            ended = await asyncio.gather(*(taker.__aenter__() for taker in takers), return_exceptions=True)
            assert time.monotonic() - began >= _LASTS
            taken = [thread for thread in ended if isinstance(thread, Thread)]
            assert len(taken) == 1
            assert [type(error) for error in ended if error not in taken] == [ThreadBusy]
            await taken[0].append(StateSet("a", 1))
            await taken[0].__aexit__(None, None, None)
            assert (await Thread.load(open_store(), holder.thread_id)).state == {"a": 1}


class _Holder:
    """A simulated process on another machine, which holds the lease of a thread. Its clock is `apart` seconds ahead of
    this machine's clock, or behind it if `apart` is negative."""

    def __init__(self, store: Checkpointer, thread_id: str, apart: float) -> None:
        self.thread_id = thread_id
        self._store = store
        self._apart = timedelta(seconds=apart)

    async def begin(self) -> None:
        async with Thread.open(self._store, self.thread_id) as thread:
            await thread.append(LeaseTaken(str(_ELSEWHERE), "secret"))
        await self.renew()

    async def renew(self) -> None:
        """Renew the lease: replace the thread's head by a head whose lease ends 0.2 seconds (`_LASTS`) after the
        present time on this simulated holder's clock. No frame is appended."""
        head = await self._store.head(self.thread_id)
        assert head is not None
        moment = datetime.now(UTC) + self._apart
        lease = Lease(owner=_ELSEWHERE, token="secret", expires_at=moment + timedelta(seconds=_LASTS))  # noqa: S106 - made up
        renewed = msgspec.structs.replace(head, status="running", lease=lease, updated_at=moment)
        await self._store.append(self.thread_id, [], at=head.frames, head=renewed)


class _Watched:
    """Takes the place of a store for a process that wants to take a thread over, with the methods `head` and `heads`
    alone. Before `head` reads the head from the real store, it lets the present holder renew the lease. So the process
    sees a renewed lease each time, and must not take the thread."""

    def __init__(self, store: Checkpointer, holder: _Holder) -> None:
        self._store = store
        self._holder = holder

    async def head(self, thread_id: str = "") -> Head:
        await self._holder.renew()
        head = await self._store.head(thread_id or self._holder.thread_id)
        assert head is not None
        return head

    def heads(self, query: HeadQuery) -> AsyncIterator[Head]:
        return self._store.heads(query)
