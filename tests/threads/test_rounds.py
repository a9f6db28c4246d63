"""Frames of many threads made in a row: each is written once and whole, whatever becomes of whoever waits for its turn."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from clew.checkpointers import Head, MemoryCheckpointer
from clew.log import MessageAdded, encode_frame
from clew.messages import plain_text, user
from clew.threads import Thread, writer
from clew.threads.rounds import Round, round_of

pytestmark = pytest.mark.anyio


class Gate(MemoryCheckpointer):
    """Appends wait while it is shut. It keeps a diary of what was asked of it, and of the frames made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.diary: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self.diary.append(f"append {thread_id}")
        await self.open.wait()
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


async def test_an_append_cancelled_before_its_turn_goes_out_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch, "a", "b") as (store, (first, second)):
        store.open.clear()
        held = asyncio.ensure_future(first.append(said("held")))
        await a_moment()
        waiting = asyncio.ensure_future(second.append(said("one")))
        await asyncio.sleep(0)
        assert store.diary == ["frame a", "append a"], "it waits for its turn"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert store.diary == ["frame a", "append a"], "nothing was made for it"
        store.open.set()
        await second.append(said("two"))
        await held
        assert await texts(store, "b") == ["one", "two"]


async def test_what_is_dropped_before_its_turn_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch, "a", "b") as (store, (first, second)):
        store.open.clear()
        held = asyncio.ensure_future(first.append(said("held")))
        await a_moment()
        waiting = asyncio.ensure_future(second.append(said("one")))
        await asyncio.sleep(0)
        second.abandon()
        store.open.set()
        await asyncio.gather(held, waiting)
        assert store.diary == ["frame a", "append a"]
        assert await texts(store, "b") == []


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


async def test_work_that_fails_is_told_to_whoever_asked_for_it_and_to_nobody_else() -> None:
    done = []
    together = Round()
    first = together.join(lambda: done.append("first"))
    wrong = together.join(lambda: 1 // 0)  # type: ignore[arg-type]
    gone = together.join(lambda: done.append("gone"))
    last = together.join(lambda: done.append("last"))
    gone.cancel()
    assert done == []
    async with asyncio.timeout(10):
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
    asyncio.run(asyncio.wait_for(work(), 10))
    assert done == ["in time"]
    gc.collect()
    assert left() is None
