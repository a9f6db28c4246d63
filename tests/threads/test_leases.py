"""Leases: a crashed thread is recognised by its head, and a live holder is never replaced, whatever its clock says."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from clew._runtime.clock import now
from clew.agent import Agent, job
from clew.agent.outcomes import run_recorded
from clew.checkpointers import Checkpointer, Head, Lease, MemoryCheckpointer, Owner
from clew.errors import ThreadBusy
from clew.log import FIRST, StateSet, ThreadStarted, encode_entries, encode_frame
from clew.testing import ScriptedModel
from clew.threads import Thread
from clew.threads.heads import new_head, without_lease
from clew.threads.leases import LEASE_TIME, is_crashed, new_lease, shown_status
from tests.clock import Clock
from tests.limits import PATIENCE

DAY = timedelta(days=1)
LIVE = msgspec.structs.replace(new_lease(), expires_at=datetime.now(UTC) + DAY)
EXPIRED = msgspec.structs.replace(new_lease(), expires_at=datetime.now(UTC) - DAY)
HELD = msgspec.structs.replace(new_head("door", "running"), lease=LIVE)


def test_a_thread_that_a_live_process_runs_has_not_crashed() -> None:
    assert not is_crashed(HELD)
    assert shown_status(HELD) == "running"


def test_a_running_thread_without_a_live_lease_has_crashed_and_is_shown_as_interrupted() -> None:
    for lease in (None, EXPIRED):
        head = msgspec.structs.replace(HELD, lease=lease)
        assert is_crashed(head)
        assert shown_status(head) == "interrupted"


def test_a_thread_that_waits_without_a_lease_has_not_crashed() -> None:
    head = msgspec.structs.replace(HELD, status="waiting", lease=None)
    assert not is_crashed(head)
    assert shown_status(head) == "waiting"


def test_a_copy_has_no_lease_and_is_not_running() -> None:
    copied = without_lease(HELD)
    assert (copied.lease, copied.status) == (None, "interrupted")
    assert without_lease(msgspec.structs.replace(HELD, status="done")).status == "done"


ELSEWHERE = Owner(host="elsewhere", boot="of another machine", pid=7, started="then", label="")
LASTS = LEASE_TIME.total_seconds()


class Holder:
    """A process on another machine, whose clock is apart from this one's. It holds the thread "t"."""

    def __init__(self, store: Checkpointer, apart: float) -> None:
        self._store = store
        self._apart = timedelta(seconds=apart)

    async def renew(self) -> None:
        head = await self._store.head("t") or new_head("t", "running")
        moment = now() + self._apart
        lease = Lease(owner=ELSEWHERE, token="secret", expires_at=moment + LEASE_TIME)
        frames = [] if head.frames else [await a_frame()]
        head = msgspec.structs.replace(
            head, lease=lease, updated_at=moment, frames=head.frames or 1, status="running", digest=DIGEST
        )
        await self._store.append("t", frames, at=head.frames - len(frames), head=head)


FRAME = encode_frame([encode_entries([StateSet("a", 1)])], previous=FIRST, thread_id="t")
DIGEST = FRAME.digest.hex()


async def a_frame() -> bytes:
    return FRAME.data


async def open_and_close(store: Checkpointer) -> None:
    async with Thread.open(store, "t"):
        pass


async def until_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(PATIENCE):
        while "may still hold it. Waiting up to" not in caplog.text:
            await asyncio.sleep(0.001)


@pytest.mark.anyio
@pytest.mark.parametrize("apart", [0.0, -120.0, -3600.0, 120.0, 3600.0])
async def test_a_live_holder_is_never_replaced_however_far_its_clock_is_off(apart: float, clock: Clock) -> None:
    async with MemoryCheckpointer() as store:
        holder = Holder(store, apart)
        await holder.renew()
        for _ in range(8):
            taking = asyncio.ensure_future(open_and_close(store))
            await asyncio.sleep(0.01)
            clock.advance(LASTS / 3)
            await holder.renew()
            with pytest.raises(ThreadBusy, match="process 7 on elsewhere") as busy:
                await taking
            assert 0 < busy.value.expires_in <= LASTS


@pytest.mark.anyio
@pytest.mark.parametrize("apart", [-120.0, -3600.0, 120.0, 3600.0])
async def test_a_holder_elsewhere_that_is_gone_is_replaced_once_its_lease_was_watched_to_its_end(
    apart: float, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with MemoryCheckpointer() as store:
        await Holder(store, apart).renew()
        began = time.monotonic()
        taking = asyncio.ensure_future(open_and_close(store))
        await until_waiting(caplog)
        assert "thread 't': process 7 on elsewhere may still hold it. Waiting up to 30 s" in caplog.text
        while not taking.done():
            await asyncio.sleep(0.001)
            clock.advance(1)
        await taking
        assert LASTS <= time.monotonic() - began < LASTS + 5


@pytest.mark.anyio
async def test_a_holder_that_renews_while_the_answer_to_the_last_look_is_on_its_way_is_not_replaced(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(MemoryCheckpointer):
        """A store one of whose answers comes late: shortly before the end of the lease it says that it is as it was."""

        async def head(self, thread_id: str) -> Head | None:
            found = await super().head(thread_id)
            if began is not None and not late and time.monotonic() - began >= LASTS * 0.85:
                late.append(True)
                await holder.renew()
                clock.advance(LASTS * 0.2)
            return found

    began: float | None = None
    late: list[bool] = []
    memory = MemoryCheckpointer()
    holder = Holder(memory, -3600)
    await holder.renew()
    taking = asyncio.ensure_future(open_and_close(Late(beside=memory)))
    await until_waiting(caplog)
    began = time.monotonic()
    while not taking.done():
        await asyncio.sleep(0.001)
        clock.advance(1)
    with pytest.raises(ThreadBusy, match="process 7 on elsewhere"):
        await taking
    assert late


@pytest.mark.anyio
async def test_who_does_not_want_to_wait_so_long_is_told_who_may_hold_the_thread() -> None:
    async with MemoryCheckpointer() as store:
        await Holder(store, -3600).renew()
        for seconds in (0.0, LASTS / 2):
            with pytest.raises(ThreadBusy, match="process 7 on elsewhere; its lease ends in"):
                await Thread.open(store, "t", wait=seconds).__aenter__()
        with pytest.raises(ThreadBusy, match="process 7 on elsewhere; its lease ends in"):
            await Agent(ScriptedModel(["Done."]), checkpointer=store).run("Go.", thread_id="t", timeout=5)


@pytest.mark.anyio
async def test_the_wait_for_a_lease_counts_as_time_of_the_run(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def note_left(*args: Any) -> Any:
        left.append(args[-1])
        return await run_recorded(*args)

    left: list[float] = []
    monkeypatch.setattr(job, "run_recorded", note_left)
    async with MemoryCheckpointer() as store:
        await Holder(store, -3600).renew()
        agent = Agent(ScriptedModel(["Done."]), checkpointer=store)
        running = asyncio.ensure_future(agent.run("Go.", thread_id="t", timeout=3600))
        while not running.done():
            await asyncio.sleep(0.001)
            clock.advance(1)
        assert (await running).output == "Done."
    assert 0 < left[0] <= 3600 - LASTS


@pytest.mark.anyio
async def test_the_threads_of_sub_agents_are_waited_for_together_with_their_parent(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with MemoryCheckpointer() as store:
        await Holder(store, -3600).renew()
        below = {"t/clerk:0a": ("t", 0), "t/clerk:0a/aid:0b": ("t/clerk:0a", 0)}
        for name, parent in below.items():
            async with Thread.open(store, name) as thread:
                await thread.append(ThreadStarted("clerk", "m", parent=parent))
            head = await store.head(name)
            assert head is not None
            held = msgspec.structs.replace(
                head, lease=lease_elsewhere(head.updated_at), updated_at=head.updated_at - timedelta(hours=1)
            )
            await store.append(name, [], at=head.frames, head=held)
        began = time.monotonic()
        taking = asyncio.ensure_future(open_and_close(store))
        await until_waiting(caplog)
        while not taking.done():
            await asyncio.sleep(0.001)
            clock.advance(1)
        for name in below:
            async with Thread.open(store, name):
                pass
        assert time.monotonic() - began < LASTS + 5


@pytest.mark.anyio
async def test_looks_at_a_thread_that_is_waited_for_are_few(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MemoryCheckpointer() as store:
        await Holder(store, -3600).renew()
        looks = []
        look = store.head
        monkeypatch.setattr(store, "head", lambda thread_id: looks.append(1) or look(thread_id))  # type: ignore[func-returns-value]
        taking = asyncio.ensure_future(open_and_close(store))
        await until_waiting(caplog)
        while not taking.done():
            await asyncio.sleep(0.001)
            clock.advance(1)
        assert len(looks) < 15


@pytest.mark.anyio
async def test_a_wait_for_a_lease_can_be_cancelled(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryCheckpointer() as store:
        await Holder(store, -3600).renew()
        before = await store.head("t")
        taking = asyncio.ensure_future(open_and_close(store))
        await until_waiting(caplog)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert await store.head("t") == before


@pytest.mark.anyio
async def test_an_attempt_that_was_refused_counts_for_the_next(clock: Clock) -> None:
    async with MemoryCheckpointer() as store:
        await Holder(store, 20).renew()  # by this clock it lasts for 50 seconds
        with pytest.raises(ThreadBusy):
            await open_and_close(store)
        clock.advance(LASTS - 1)
        with pytest.raises(ThreadBusy):
            await open_and_close(store)
        clock.advance(1)
        await open_and_close(store)


@pytest.mark.anyio
async def test_a_lease_that_this_process_has_abandoned_is_taken_again_at_once() -> None:
    async with MemoryCheckpointer() as store:
        thread = await Thread.open(store, "t").__aenter__()
        thread.abandon()
        await open_and_close(store)


@pytest.mark.anyio
async def test_prune_waits_once_for_all_holders_that_cannot_be_seen_and_spares_the_live_one(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with MemoryCheckpointer() as store:
        for name in ("a", "b", "c"):
            await open_and_close(store)
            await Thread.copy(store, store, "t", new_id=name)
            head = await store.head(name)
            assert head is not None
            await store.append(
                name, [], at=head.frames, head=msgspec.structs.replace(head, lease=lease_elsewhere(head.updated_at))
            )
        await Holder(store, -3600).renew()
        pruning = asyncio.ensure_future(Thread.prune(store, keep=0))
        await until_waiting(caplog)
        began = time.monotonic()
        while not pruning.done():
            await asyncio.sleep(0.001)
            clock.advance(1)
            if time.monotonic() - began < 20:
                await Holder(store, -3600).renew()
        done = await pruning
        assert (sorted(done.deleted), done.busy) == (["a", "b", "c"], ("t",))
        assert time.monotonic() - began < 2 * LASTS


def lease_elsewhere(renewed_at: datetime) -> Lease:
    moment = renewed_at - timedelta(hours=1)
    return Lease(owner=ELSEWHERE, token="other", expires_at=moment + LEASE_TIME)
