"""Tests that every store has to pass for concurrent use. If several writers append at one position, exactly one
succeeds; a half-written append is never visible; and a cancelled append is written as a whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from clew.checkpointers.base import Checkpointer
from clew.errors import Conflict
from clew.testing.contract.builders import OpenStore, append, listed, put, state


class ConcurrencyContract:
    """Tests of a store that several asyncio tasks use at the same time, through one checkpointer or through several
    that are open on the same store."""

    async def test_of_concurrent_appends_at_one_position_exactly_one_wins(self, open_store: OpenStore) -> None:
        stores = [open_store() for _ in range(4)]
        await append(stores[0], "thread", b"first")
        for at in range(1, 4):
            results = await _at_once(
                *(append(stores[n % 4], "thread", b"writer %d" % n, at=at, title=f"writer {n}") for n in range(20))
            )
            winner = _only_winner(results)
            head = await stores[0].head("thread")
            assert head is not None
            assert head.title == f"writer {winner}"
            assert (await stores[1].read("thread"))[at:] == [b"writer %d" % winner]

    async def test_of_concurrent_makers_of_a_thread_exactly_one_wins(self, open_store: OpenStore) -> None:
        stores = [open_store() for _ in range(4)]
        results = await _at_once(
            *(append(stores[n % 4], "thread", b"%d" % n, b"more", log_id=f"log-{n}") for n in range(20))
        )
        winner = _only_winner(results)
        assert await stores[0].read("thread") == [b"%d" % winner, b"more"]
        head = await stores[0].head("thread")
        assert head is not None
        assert head.log_id == f"log-{winner}"
        assert await listed(stores[0]) == ["thread"]

    async def test_one_append_made_many_times_at_once_is_written_once(self, open_store: OpenStore) -> None:
        stores = [open_store() for _ in range(3)]
        results = await _at_once(*(append(stores[n % 3], "thread", b"one", b"two") for n in range(12)))
        assert [result for result in results if isinstance(result, Exception)] == []
        assert await stores[0].read("thread") == [b"one", b"two"]

    async def test_a_conflict_does_not_harm_its_neighbours(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        await append(store, "contended", b"first")
        good = [append(store, f"thread {n}", b"frame", b"%d" % n) for n in range(30)]
        bad = [append(store, "contended", b"late", at=5 + n) for n in range(10)]
        mixed = [
            call for n, call in enumerate(good) for call in (bad[n // 3 : n // 3 + 1] if n % 3 == 0 else []) + [call]
        ]
        results = await _at_once(*mixed)
        assert [type(result) for result in results if isinstance(result, Exception)] == [Conflict] * 10
        for n in range(30):
            assert await other.read(f"thread {n}") == [b"frame", b"%d" % n]
        assert await other.read("contended") == [b"first"]

    async def test_half_an_append_is_never_visible(self, open_store: OpenStore) -> None:
        store, watcher = open_store(), open_store()
        rounds = 25
        blobs = await put(store, *(b"%d" % number for number in range(rounds)))
        writing = True

        async def write() -> None:
            nonlocal writing
            try:
                for number in range(rounds):
                    frames = [b"%d.%d" % (number, part) for part in range(3)]
                    await append(store, "thread", *frames, at=3 * number, refs=[blobs[number]], turns=number + 1)
                    await asyncio.sleep(0)
            finally:
                writing = False

        async def watch() -> None:
            while writing:
                before = await _counts(watcher)
                refs = len(await watcher.refs("thread"))
                frames = len(await watcher.read("thread"))
                after = await _counts(watcher)
                assert frames % 3 == 0, "an append of three frames was seen in part"
                for seen in (refs, frames // 3):
                    assert before <= seen <= after, "frames, refs and head of one append were seen apart"
                await asyncio.sleep(0)

        await asyncio.gather(write(), watch(), watch())
        assert await watcher.refs("thread") == set(blobs)

    async def test_a_cancelled_append_settles_before_the_cancellation_goes_on(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        [blob] = await put(store, b"blob")
        for steps in (0, 1, 2, 3, 5, 10, 30):
            thread_id = f"cancelled after {steps}"
            task = asyncio.create_task(append(store, thread_id, b"one", b"two", refs=[blob]))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await _ends(task)
            settled = await state(other, thread_id)
            await asyncio.sleep(0.05)
            assert await state(other, thread_id) == settled, (
                "the append went on after it had been reported as cancelled"
            )
            assert settled[0] in ([], [b"one", b"two"]), "a cancelled append was written in part"
            assert (settled[1] is None, settled[2] == set()) == (settled[0] == [], settled[0] == [])
            head = await append(store, thread_id, b"one", b"two", refs=[blob])
            assert await state(other, thread_id) == ([b"one", b"two"], head, {blob})

    async def test_a_cancelled_append_does_not_harm_its_neighbours(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        tasks = [asyncio.create_task(append(store, f"thread {n}", b"%d" % n)) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        for task in tasks:
            await _ends(task)
        for n, task in enumerate(tasks):
            frames = await other.read(f"thread {n}")
            assert frames == [b"%d" % n] if not task.cancelled() else frames in ([], [b"%d" % n])
            assert n % 2 == 0 or not task.cancelled()

    async def test_a_cancelled_reader_leaves_the_store_in_order(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"frame")
        for steps in (0, 1, 3):
            tasks = [asyncio.create_task(store.read("thread")) for _ in range(10)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            for task in tasks:
                await _ends(task)
        assert await store.read("thread") == [b"frame"]

    async def test_threads_of_work_go_on_side_by_side(self, open_store: OpenStore) -> None:
        stores = [open_store() for _ in range(3)]

        async def work(number: int) -> None:
            for at in range(5):
                await append(stores[number % 3], f"thread {number}", b"%d.%d" % (number, at), at=at)

        await asyncio.gather(*(work(number) for number in range(12)))
        for number in range(12):
            assert await stores[0].read(f"thread {number}") == [b"%d.%d" % (number, at) for at in range(5)]

    async def test_a_thread_deleted_while_it_is_appended_to_is_whole_or_absent(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        for number in range(8):
            thread_id = f"thread {number}"
            await append(store, thread_id, b"one")
            result, _ = await _at_once(append(store, thread_id, b"two", at=1), other.delete(thread_id))
            assert not isinstance(result, Exception) or isinstance(result, Conflict)
            frames, head, _ = await state(store, thread_id)
            assert (frames, head) == ([], None), "the delete was acknowledged last or made the append a conflict"


async def _counts(store: Checkpointer) -> int:
    """Return how many appends have been made, by the number of turns in the head of the thread "thread"; 0 if the
    thread does not exist. In these tests, each append adds one turn and three frames. So this fails the test unless the
    head has exactly three times as many frames as turns."""
    head = await store.head("thread")
    if head is None:
        return 0
    assert head.frames == 3 * head.turns
    return head.turns


async def _at_once(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all calls at the same time and return their results in order. The result of a call that failed is its error."""
    return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), timeout=60)


def _only_winner(results: list[Any]) -> int:
    """Return the index of the only call that succeeded, among calls of which only one could. `results` are their
    results, or the errors that they raised. Fails the test if not exactly one call succeeded, or if one failed with
    another error than `Conflict`."""
    winners = [n for n, result in enumerate(results) if not isinstance(result, Exception)]
    assert len(winners) == 1, f"{len(winners)} of {len(results)} writers at one position were told that they had won"
    assert {type(result) for n, result in enumerate(results) if n != winners[0]} == {Conflict}
    return winners[0]


async def _ends(task: asyncio.Task[Any]) -> None:
    """Wait until the asyncio task of a cancelled call ends. Fails the test if it does not end within 30 seconds, or if
    it ended with an error other than cancellation."""
    done, _ = await asyncio.wait([task], timeout=30)
    if not done:
        pytest.fail("a cancelled call never ended")
    if not task.cancelled():
        task.result()
