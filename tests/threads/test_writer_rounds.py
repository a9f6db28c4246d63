"""Frames of many threads made in a row: each is written once and whole, whatever becomes of whoever waits for its turn."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import get_args

import pytest

from clew.checkpointers import Head, MemoryCheckpointer
from clew.errors import Unavailable, UsageError
from clew.log import MessageAdded, encode_frame
from clew.messages import plain_text, user
from clew.threads import Thread, writer
from clew.threads.thread import Durability
from clew.threads.writer import LogSize, Round, round_of
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


class Gate(MemoryCheckpointer):
    """Appends wait while it is shut. It keeps a diary of what was asked of it, and of the frames made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.diary: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.away = False

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self.diary.append(f"append {thread_id}")
        entered = asyncio.ensure_future(self.open.wait())
        try:
            await asyncio.shield(entered)
        except asyncio.CancelledError:  # it settles, then the cancellation goes on
            await entered
            await super().append(thread_id, frames, at=at, head=head, refs=refs)
            raise
        if self.away:
            raise Unavailable("it is away")
        await super().append(thread_id, frames, at=at, head=head, refs=refs)


@asynccontextmanager
async def gated(monkeypatch: pytest.MonkeyPatch, *names: str) -> AsyncIterator[tuple[Gate, list[Thread]]]:
    """Threads of a store that keeps a diary from here on."""
    store = Gate()

    def noted(*arguments: object, thread_id: str, **more: object) -> object:
        store.diary.append(f"frame {thread_id}")
        return encode_frame(*arguments, thread_id=thread_id, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "encode_frame", noted)
    async with store, AsyncExitStack() as stack:
        threads = [await stack.enter_async_context(Thread.open(store, name)) for name in names]
        store.diary.clear()
        try:
            yield store, threads
        finally:
            store.open.set()


def said(text: str) -> MessageAdded:
    return MessageAdded(user(text))


async def texts(store: Gate, name: str) -> list[str]:
    return [plain_text(message) for message in (await Thread.load(store, name)).messages]


async def one_waits(store: Gate, first: Thread, second: Thread) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    """The first has an append under way at the gate, now shut; that of the second, of the text "one", waits for its turn."""
    store.open.clear()
    held = asyncio.ensure_future(first.append(said("held")))
    await a_moment()
    waiting = asyncio.ensure_future(second.append(said("one")))
    await asyncio.sleep(0)
    return held, waiting


async def a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_frames_of_many_threads_are_made_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch, "a", "b", "c") as (store, threads):
        store.open.clear()

        async def session(thread: Thread) -> None:
            for number in range(2):
                await thread.append(said(f"{thread.thread_id}{number}"))

        working = asyncio.gather(*map(session, threads))
        await a_moment()
        assert store.diary == ["frame a", "append a", "frame b", "frame c", "append b", "append c"]
        store.diary.clear()
        store.open.set()
        await working
        assert store.diary == ["frame a", "frame b", "frame c", "append a", "append b", "append c"]
        for name in "abc":
            assert await texts(store, name) == [f"{name}0", f"{name}1"]


async def test_a_thread_that_is_alone_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch, "a") as (store, (thread,)):
        monkeypatch.setattr(Round, "join", None)
        await thread.append(said("one"))
        await thread.append(said("two"))
        assert store.diary == ["frame a", "append a"] * 2


async def test_an_append_cancelled_before_its_turn_settles_and_then_the_cancellation_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gated(monkeypatch, "a", "b") as (store, (first, second)):
        held, waiting = await one_waits(store, first, second)
        assert store.diary == ["frame a", "append a"], "it waits for its turn"
        waiting.cancel()
        await a_moment()
        assert store.diary == ["frame a", "append a", "frame b", "append b"]
        assert not waiting.done()
        store.open.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await texts(store, "b") == ["one"]
        await second.append(said("two"))
        await held
        assert await texts(store, "b") == ["one", "two"]


async def test_an_append_cancelled_behind_another_one_of_its_thread_settles_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gated(monkeypatch, "a") as (store, (thread,)):
        store.open.clear()
        first = asyncio.ensure_future(thread.append(said("one")))
        await a_moment()
        behind = asyncio.ensure_future(thread.append(said("two")))
        await a_moment()
        behind.cancel()
        await a_moment()
        behind.cancel()
        await a_moment()
        assert not behind.done()
        store.open.set()
        await first
        with pytest.raises(asyncio.CancelledError):
            await behind
        assert await texts(store, "a") == ["one", "two"]


async def test_a_cancellation_comes_first_if_the_append_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch, "a", "b") as (store, (first, second)):
        held, waiting = await one_waits(store, first, second)
        waiting.cancel()
        await a_moment()
        store.away = True
        store.open.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(Unavailable):
            await held
        store.away = False
        await second.flush()
        assert await texts(store, "b") == ["one"]
        await first.flush()


@pytest.mark.parametrize("durability", get_args(Durability))
async def test_threads_left_in_a_row_and_cancelled_are_on_record_and_free(durability: Durability) -> None:
    async with Gate() as store:

        async def session(name: str) -> None:
            async with Thread.open(store, name, durability=durability) as thread:
                await thread.append(said("one"))
                started.append(name)
                await leave.wait()

        leave, started = asyncio.Event(), list[str]()
        sessions = [asyncio.ensure_future(session(name)) for name in "abc"]
        for _ in range(10):
            await a_moment()
        assert sorted(started) == ["a", "b", "c"]
        store.open.clear()
        leave.set()
        await asyncio.sleep(0)
        for each in sessions:
            each.cancel()
        await a_moment()
        store.open.set()
        await asyncio.wait(sessions)
        for name in "abc":
            assert await texts(store, name) == ["one"]
            async with Thread.open(store, name):
                pass


async def test_what_is_dropped_before_its_turn_is_neither_written_nor_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gated(monkeypatch, "a", "b") as (store, (first, second)):
        held, waiting = await one_waits(store, first, second)
        second.abandon()
        store.open.set()
        with pytest.raises(UsageError, match="'b' was abandoned before this was written"):
            await waiting
        await held
        assert store.diary == ["frame a", "append a"]
        assert await texts(store, "b") == []


async def test_of_what_is_dropped_that_is_acknowledged_which_was_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch, "a") as (store, (thread,)):
        store.open.clear()
        sent = asyncio.ensure_future(thread.append(said("sent")))
        await a_moment()
        behind = asyncio.ensure_future(thread.append(said("behind")))
        await a_moment()
        thread.abandon()
        store.open.set()
        await sent
        with pytest.raises(UsageError, match="abandoned"):
            await behind
        assert await texts(store, "a") == ["sent"]


@pytest.mark.parametrize("part", [1, 2], ids=["frame", "folded state"])
async def test_entries_whose_frame_cannot_be_made_go_out_with_the_next(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    async with gated(monkeypatch, "a", "b") as (store, (first, second)):
        monkeypatch.setattr(LogSize, "may_pay", lambda size: True)
        store.open.clear()
        held = asyncio.ensure_future(first.append(said("held")))
        await a_moment()
        calls = 0

        def scarce(*arguments: object, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls == part:
                raise MemoryError
            return encode_frame(*arguments, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(writer, "encode_frame", scarce)
        waiting = asyncio.ensure_future(second.append(said("one")))
        await a_moment()
        with pytest.raises(MemoryError):
            await waiting
        store.open.set()
        await asyncio.gather(held, second.append(said("two")))
        assert await texts(store, "b") == ["one", "two"]
        assert (await Thread.verify(store, "b")).sound


async def test_what_comes_while_an_append_waits_for_its_turn_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch, "a", "b") as (store, (first, second)):
        store.open.clear()
        held = asyncio.ensure_future(first.append(said("held")))
        await a_moment()
        more = [asyncio.ensure_future(second.append(said(text))) for text in ("one", "two", "three")]
        await asyncio.sleep(0)
        second.hold(said("four"))
        store.open.set()
        await asyncio.gather(held, *more)
        assert store.diary.count("append b") == 1
        assert await texts(store, "b") == ["one", "two", "three", "four"]


async def test_a_turn_that_a_signal_cancels_in_the_middle_of_its_work_takes_no_other_one_away() -> None:
    done = []
    together = Round()

    def interrupted() -> None:
        done.append("interrupted")
        turn.cancel()

    def broken() -> None:
        failing.cancel()
        raise ZeroDivisionError

    turn = together.join(interrupted)
    failing = together.join(broken)
    last = together.join(lambda: done.append("last"))
    async with asyncio.timeout(PATIENCE):
        await last
    assert done == ["interrupted", "last"]
    assert turn.cancelled()
    assert failing.cancelled()


async def test_work_that_fails_is_told_to_whoever_asked_for_it_and_to_nobody_else() -> None:
    done = []
    together = Round()
    first = together.join(lambda: done.append("first"))
    wrong = together.join(lambda: 1 // 0)  # type: ignore[arg-type]
    gone = together.join(lambda: done.append("gone"))
    last = together.join(lambda: done.append("last"))
    gone.cancel()
    assert done == []
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ZeroDivisionError):
            await wrong
        await asyncio.gather(first, last)
    assert done == ["first", "last"]


def test_a_loop_that_ended_in_the_middle_of_a_round_is_let_go_and_troubles_no_other() -> None:
    done = []

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: round_of(loop).join(lambda: done.append("too late")))

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert round_of(loop) is round_of(loop)
        await round_of(loop).join(lambda: done.append("in time"))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    left = weakref.ref(loop)
    del loop
    asyncio.run(asyncio.wait_for(work(), PATIENCE))
    assert done == ["in time"]
    gc.collect()
    assert left() is None


def test_loops_of_many_threads_each_have_a_round_of_their_own() -> None:
    wrong: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(100):
                loop = asyncio.new_event_loop()
                assert round_of(loop) is round_of(loop)
                loop.close()
        except BaseException as error:  # noqa: BLE001 - told below
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


async def test_appends_that_wait_for_one_that_is_unavailable_fail_with_it_and_are_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would else wait for the store by itself, one after the other."""
    async with gated(monkeypatch, "a") as (store, [thread]):
        store.open.clear()
        appends = [asyncio.ensure_future(thread.append(said(f"{number}"))) for number in range(5)]
        await a_moment()
        store.away = True
        store.open.set()
        results = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), PATIENCE)
        assert [type(result) for result in results] == [Unavailable] * 5
        assert store.diary.count("append a") == 1
        assert thread.unreachable_since is not None
        store.away = False
        await thread.flush()
        assert thread.unreachable_since is None
        assert await texts(store, "a") == ["0", "1", "2", "3", "4"]
