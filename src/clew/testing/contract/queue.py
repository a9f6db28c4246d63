"""Tests that every store has to pass for listing the threads that a worker should take: those that are due, earliest
first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import STATUSES, Head, HeadQuery, QueuePlace
from clew.testing.contract.builders import OpenStore, append, heads, listed, minute


class QueueContract:
    """Tests that a query with the order `due` lists exactly the threads whose head has `due` set, each once, and the
    earliest first."""

    async def test_only_threads_that_are_due_are_in_the_queue_earliest_first(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        made = await _population(store, 60)
        for query in (HeadQuery(order="due"), HeadQuery(order="due", limit=2**70)):
            found = await heads(other, query)
            assert found == _expected(made, query)
            assert len(found) == 40
            times = [head.due for head in found if head.due is not None]
            assert times == sorted(times)
            assert len(times) == 40

    async def test_a_queued_head_comes_back_with_its_place_in_the_queue(self, open_store: OpenStore) -> None:
        store = open_store()
        place = QueuePlace(queued_at=minute(1), priority=-3, tries=2)
        head = await append(store, "t", b"frame", status="queued", due=minute(2), queue=place)
        assert await heads(open_store(), HeadQuery(order="due")) == [head] == [await store.head("t")]

    async def test_conditions_select_queued_threads(self, open_store: OpenStore) -> None:
        store = open_store()
        made = await _population(store, 60)
        queries: list[dict[str, Any]] = [
            {"status": "queued"},
            {"status": ("queued", "running"), "limit": 4},
            {"status": ()},
            {"agent": "planner"},
            {"agent": "planner", "tags": {"team": "blue"}},
            {"tags": {"team": "red"}, "limit": 3},
            {"prefix": "user/", "limit": 5},
            {"parent": "user/3"},
            {"title": "TRIP", "updated_after": minute(3)},
            {"updated_before": minute(6), "status": "done"},
            {"limit": 0},
        ]
        found = 0
        for conditions in queries:
            query = HeadQuery(order="due", **conditions)
            assert await heads(store, query) == _expected(made, query), conditions
            found += len(_expected(made, query))
        assert found > 40, "the queries find too little to mean anything"

    async def test_pages_of_the_queue_hold_every_queued_thread_once(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        made = await _population(store, 120)
        for conditions in ({}, {"status": "queued"}, {"tags": {"team": "blue"}}):
            query = HeadQuery(order="due", **conditions)
            expected = _expected(made, query)
            assert await _pages(other, query, 7) == expected
            for place in (0, len(expected) // 2, len(expected) - 1):
                assert await heads(store, query.after(expected[place])) == expected[place + 1 :]

    async def test_a_thread_moves_in_the_queue_leaves_it_and_comes_back(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        for number, thread_id in enumerate("abc"):
            await append(store, thread_id, b"frame", status="queued", due=minute(number))
        assert await listed(other, order="due") == ["a", "b", "c"]
        await append(store, "a", b"taken", at=1, status="running", due=minute(9))
        assert await listed(other, order="due") == ["b", "c", "a"]
        await append(other, "c", at=1, status="queued", due=minute(-5))  # the head alone
        assert await listed(store, order="due") == ["c", "b", "a"]
        await append(other, "b", b"ended", at=1, status="done")
        assert await listed(store, order="due") == ["c", "a"]
        await append(store, "c", at=1, status="interrupted")
        assert await listed(other, order="due") == ["a"]
        await append(store, "b", b"again", at=2, status="queued", due=minute(20))
        assert await listed(other, order="due") == ["a", "b"]
        await append(other, "c", at=1, status="queued", due=minute(30))
        assert await listed(store, order="due") == ["a", "b", "c"]
        assert await listed(other, order="due", limit=1) == ["a"]
        assert sorted(await listed(other)) == ["a", "b", "c"]

    async def test_a_thread_with_an_earlier_time_is_first_at_once(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        await append(store, "late", b"frame", status="queued", due=minute(50))
        for number in range(20, 0, -1):
            await append(store, f"t{number}", b"frame", status="queued", due=minute(number))
            assert await listed(other, order="due", limit=1) == [f"t{number}"]

    async def test_a_deleted_thread_is_not_in_the_queue(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        for thread_id in ("a", "b"):
            await append(store, thread_id, b"frame", status="queued", due=minute(1))
        await other.delete("a")
        assert await listed(store, order="due") == await listed(other, order="due") == ["b"]
        await append(store, "a", b"anew", log_id="log-2")
        assert await listed(other, order="due") == ["b"]
        await append(store, "a", b"queued", at=1, log_id="log-2", status="queued", due=minute(0))
        assert await listed(other, order="due") == ["a", "b"]

    async def test_a_refused_append_changes_nothing_in_the_queue(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "queued", b"frame", status="queued", due=minute(1))
        await append(store, "done", b"frame", status="done")
        for thread_id, fields in (("queued", {"status": "done"}), ("done", {"status": "queued", "due": minute(0)})):
            for at, log_id in ((0, "log-1"), (2, "log-1"), (1, "another")):
                await asyncio.gather(
                    append(store, thread_id, b"refused", at=at, log_id=log_id, **fields), return_exceptions=True
                )
        await asyncio.gather(append(store, "absent", b"x", at=1, due=minute(0)), return_exceptions=True)
        assert await listed(open_store(), order="due") == ["queued"]

    async def test_namespaces_share_no_queue(self, open_store: OpenStore) -> None:
        here, there = open_store("here"), open_store("there")
        await append(here, "t", b"frame", status="queued", due=minute(1))
        await append(there, "t", b"frame", status="done")
        await append(there, "u", b"frame", status="queued", due=minute(0))
        assert await listed(here, order="due") == ["t"]
        assert await listed(there, order="due") == ["u"]

    async def test_a_queue_holds_waiting_threads_once_while_others_come_and_go(self, open_store: OpenStore) -> None:
        store, writer = open_store(), open_store()
        still = [f"still {number:02}" for number in range(40)]
        for number, thread_id in enumerate(still):
            await append(store, thread_id, b"frame", status="queued", due=minute(number))
        listing = True

        async def churn(lane: int) -> None:
            moment = 0
            while listing:
                moment += 1
                thread_id = f"moving {lane} {moment % 3}"
                head = await writer.head(thread_id)
                if moment % 7 == 0:
                    await writer.delete(thread_id)
                else:
                    at = 0 if head is None else head.frames
                    fields: dict[str, Any] = {"status": "queued", "due": minute(moment % 60)} if moment % 2 else {}
                    await append(writer, thread_id, b"frame", at=at, updated_at=minute(moment), **fields)
                await asyncio.sleep(0)

        async def watch() -> None:
            nonlocal listing
            try:
                for _ in range(6):
                    whole = [head.thread_id async for head in _slowly(store, HeadQuery(order="due"))]
                    assert len(whole) == len(set(whole))
                    paged = [head.thread_id for head in await _pages(store, HeadQuery(order="due"), 7)]
                    for found in (whole, paged):
                        assert [thread_id for thread_id in found if thread_id in still] == still
            finally:
                listing = False

        await asyncio.wait_for(asyncio.gather(watch(), *(churn(lane) for lane in range(3))), timeout=60)
        everything = await heads(store)
        assert await heads(store, HeadQuery(order="due")) == _expected(everything, HeadQuery(order="due"))

    async def test_a_long_queue_is_listed_whole_and_in_order(self, open_store: OpenStore) -> None:
        store = open_store()
        made: list[Head] = []
        for start in range(0, 640, 64):
            made += await asyncio.gather(
                *(
                    append(store, f"t{number}", b"frame", status="queued", due=minute(number * 7 % 97))
                    for number in range(start, start + 64)
                )
            )
        query = HeadQuery(order="due")
        assert await heads(store, query) == _expected(made, query)
        assert await _pages(store, query, 100) == _expected(made, query)


async def _population(store: Checkpointer, size: int) -> list[Head]:
    """Make `size` threads, two thirds of them queued, whose heads have different statuses, agents, titles, tags and
    times. Return these heads. Several are due at the same time, so that the order of threads with equal times is
    tested."""
    agents, titles = ["planner", "writer", ""], ["Plan a trip", "Trip report", "Plan nothing", ""]
    return await asyncio.gather(
        *(
            append(
                store,
                f"user/{number}" if number % 4 else f"job_{number}",
                b"frame",
                status="queued" if number % 2 else STATUSES[number % len(STATUSES)],
                agent=agents[number % 7 % 3],
                title=titles[number % 5 % 4],
                tags={"team": "blue" if number % 5 % 2 else "red", "n": str(number)},
                parent=("user/3", number) if number % 5 < 2 else None,
                created_at=minute(number % 6),
                updated_at=minute(number * 7 % 10),
                due=minute(number * 11 % 13 - 6) if number % 3 else None,
            )
            for number in range(size)
        )
    )


def _expected(made: list[Head], query: HeadQuery) -> list[Head]:
    return sorted(filter(query.matches, made), key=query.position, reverse=True)[: query.limit]


async def _slowly(store: Checkpointer, query: HeadQuery) -> AsyncIterator[Head]:
    async for head in store.heads(query):
        yield head
        await asyncio.sleep(0)


async def _pages(store: Checkpointer, query: HeadQuery, size: int) -> list[Head]:
    """Return all heads that the query lists, fetched in pages of at most `size` heads."""
    found: list[Head] = []
    query = msgspec.structs.replace(query, limit=size)
    while page := await heads(store, query):
        assert len(page) <= size
        found += page
        query = query.after(page[-1])
    return found
