"""Tests that every store has to pass for listing heads: every condition of a query, the orders by time of change and of
creation, reading page by page, and listing while others write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import STATUSES, Head, HeadQuery, Status
from clew.testing.contract.builders import OpenStore, a_head, append, heads, listed, minute


class ListingContract:
    """Tests that a listing by the checkpointer's method `heads` has all threads that match the query, each once and in
    the order that the query asks for."""

    # Conditions

    async def test_the_empty_query_lists_all_newest_first(self, open_store: OpenStore) -> None:
        store = open_store()
        for number in (2, 0, 3, 1):
            await append(store, f"thread {number}", b"frame", updated_at=minute(number))
        assert await heads(store) == await heads(store, HeadQuery())
        assert await listed(store) == ["thread 3", "thread 2", "thread 1", "thread 0"]

    async def test_a_listing_shows_the_heads_as_of_the_last_append(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        await append(store, "a", b"one", updated_at=minute(1))
        await append(store, "b", b"one", updated_at=minute(2))
        head = await append(store, "a", b"two", at=1, updated_at=minute(3), title="moved")
        assert (await heads(other))[0] == head
        assert await listed(other) == ["a", "b"]

    async def test_a_prefix_is_compared_letter_for_letter(self, open_store: OpenStore) -> None:
        ids = [
            "user/1",
            "user/10",
            "User/1",
            "user_1",
            "user%1",
            "user*",
            "us",
            "\U0001f9f5 a",
            "\U0001f9f5 b",
            "e\u0301",
            "é",
        ]
        store = await _with_threads(open_store, *({"thread_id": thread_id} for thread_id in ids))
        for prefix in ["", "u", "user", "user/", "user/1", "User", "user_", "user%", "user*", "%", "*", "_", "?", "[",
                       "\\", "USER", "\U0001f9f5", "\U0001f9f5 b", "e", "é", "user/1/", "'", "\0"]:  # fmt: skip
            expected = sorted(thread_id for thread_id in ids if thread_id.startswith(prefix))
            assert sorted(await listed(store, prefix=prefix)) == expected, prefix

    async def test_a_prefix_may_be_as_long_as_an_id_and_longer(self, open_store: OpenStore) -> None:
        thread, smile = "\U0001f9f5", "\U0001f642"
        ids = ["p" * 1024, "p" * 1023 + "q", "p" * 1000 + "q", "p" * 1000, thread * 256, thread * 255 + smile]
        store = await _with_threads(open_store, *({"thread_id": thread_id} for thread_id in ids))
        prefixes = ["p" * 1000, "p" * 1001, "p" * 1023, "p" * 1024, "p" * 1025, "p" * 50_000]
        prefixes += [thread * 250, thread * 255, thread * 256, thread * 300]
        for prefix in prefixes:
            expected = sorted(thread_id for thread_id in ids if thread_id.startswith(prefix))
            assert sorted(await listed(store, prefix=prefix)) == expected, len(prefix)
            assert await listed(store, prefix=prefix, limit=1) == (await listed(store, prefix=prefix))[:1]

    async def test_text_in_the_title_is_found_in_upper_and_lower_case(self, open_store: OpenStore) -> None:
        titles = [
            "Plan a trip",
            "plan b",
            "100% done",
            "100 done",
            "a_b",
            "aXb",
            "Élan",
            "",
            "back\\slash",
            "it's [ok]*",
        ]
        store = await _with_threads(open_store, *({"thread_id": f"t {t}", "title": t} for t in titles))
        for text in [
            "",
            "plan",
            "PLAN",
            "a TRIP",
            "%",
            "0%",
            "_",
            "a_b",
            "élan",
            "ÉLAN",
            "\\",
            "*",
            "[OK]",
            "'",
            "none",
        ]:
            expected = sorted(f"t {title}" for title in titles if text.casefold() in title.casefold())
            assert sorted(await listed(store, title=text)) == expected, text

    async def test_a_status_or_several_select_threads(self, open_store: OpenStore) -> None:
        store = await _with_threads(open_store, *({"thread_id": status, "status": status} for status in STATUSES))
        for status in STATUSES:
            assert await listed(store, status=status) == [status]
            assert await listed(store, status=(status,)) == [status]
        assert sorted(await listed(store, status=("done", "failed"))) == ["done", "failed"]
        assert sorted(await listed(store, status=STATUSES)) == sorted(STATUSES)
        assert await listed(store, status=()) == []

    async def test_an_agent_selects_its_threads_and_no_others(self, open_store: OpenStore) -> None:
        agents = ["planner", "Planner", "planner 2", "", "%"]
        store = await _with_threads(open_store, *({"thread_id": f"of {agent}", "agent": agent} for agent in agents))
        for agent in agents:
            assert await listed(store, agent=agent) == [f"of {agent}"]
        assert await listed(store, agent="plan") == []
        assert len(await listed(store, agent=None)) == len(agents)

    async def test_every_given_tag_must_have_its_value(self, open_store: OpenStore) -> None:
        store = await _with_threads(
            open_store,
            {"thread_id": "none"},
            {"thread_id": "a1", "tags": {"a": "1"}},
            {"thread_id": "a2", "tags": {"a": "2"}},
            {"thread_id": "a1 b1", "tags": {"a": "1", "b": "1"}},
            {"thread_id": "odd", "tags": {"a.b": "x", "$.a": "1", "": ""}},
        )
        assert sorted(await listed(store, tags={"a": "1"})) == ["a1", "a1 b1"]
        assert await listed(store, tags={"a": "1", "b": "1"}) == ["a1 b1"]
        assert await listed(store, tags={"a": "1", "b": "2"}) == []
        assert await listed(store, tags={"A": "1"}) == []
        assert await listed(store, tags={"a.b": "x"}) == await listed(store, tags={"$.a": "1"}) == ["odd"]
        assert await listed(store, tags={"": ""}) == ["odd"]
        assert len(await listed(store, tags={})) == 5

    async def test_a_parent_selects_its_forks_and_children(self, open_store: OpenStore) -> None:
        store = await _with_threads(
            open_store,
            {"thread_id": "p"},
            {"thread_id": "fork 1", "parent": ("p", 0)},
            {"thread_id": "fork 2", "parent": ("p", 7)},
            {"thread_id": "of another", "parent": ("P", 0)},
            {"thread_id": "grandchild", "parent": ("fork 1", 1)},
        )
        assert sorted(await listed(store, parent="p")) == ["fork 1", "fork 2"]
        assert await listed(store, parent="P") == ["of another"]
        assert await listed(store, parent="absent") == []

    async def test_moments_of_change_bound_a_listing(self, open_store: OpenStore) -> None:
        store = await _with_threads(
            open_store, *({"thread_id": f"{n}", "updated_at": minute(n), "created_at": minute(-n)} for n in range(5))
        )
        assert await listed(store, updated_after=minute(2)) == ["4", "3", "2"]
        assert await listed(store, updated_before=minute(2)) == ["1", "0"]
        assert await listed(store, updated_after=minute(1), updated_before=minute(3)) == ["2", "1"]
        assert await listed(store, updated_after=minute(3), updated_before=minute(3)) == []
        assert await listed(store, updated_after=minute(2) + timedelta(microseconds=1)) == ["4", "3"]
        assert await listed(store, updated_before=minute(2) + timedelta(microseconds=1)) == ["2", "1", "0"]

    async def test_conditions_combined_must_all_hold(self, open_store: OpenStore) -> None:
        store = open_store()
        made = await _population(store, 60)
        queries: list[dict[str, Any]] = [
            {"prefix": "user/", "status": "done"},
            {"status": ("done", "failed"), "agent": "planner", "title": "TRIP"},
            {"tags": {"team": "blue"}, "parent": "user/3", "updated_after": minute(2)},
            {"prefix": "job_", "tags": {"team": "red"}, "updated_before": minute(6), "order": "created"},
            {"title": "plan", "agent": "", "updated_after": minute(1), "updated_before": minute(8), "limit": 4},
            {"prefix": "user/", "tags": {"team": "blue"}, "title": "t", "limit": 3, "order": "created"},
            {"prefix": "user/", "limit": 5},
            {"agent": "planner", "limit": 6, "order": "created"},
        ]
        found = 0
        for conditions in queries:
            query = HeadQuery(**conditions)
            assert await heads(store, query) == _expected(made, query), conditions
            found += len(_expected(made, query))
        assert found > 20, "the queries find too little to mean anything"

    # Order, limits and pages

    async def test_both_orders_are_newest_first_and_break_ties_the_same_way_each_time(
        self, open_store: OpenStore
    ) -> None:
        store, other = open_store(), open_store()
        made = await _population(store, 40)
        for order in _ORDERS:
            query = HeadQuery(order=order)
            assert await heads(store, query) == await heads(other, query) == _expected(made, query)

    async def test_a_limit_gives_the_newest(self, open_store: OpenStore) -> None:
        store = open_store()
        made = await _population(store, 10)
        for limit in (0, 1, 9, 10, 11, 2**70):
            query = HeadQuery(limit=limit)
            assert await heads(store, query) == _expected(made, query)

    async def test_pages_hold_every_thread_once(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store()
        made = await _population(store, 250)
        for query in (HeadQuery(limit=7), HeadQuery(limit=7, order="created")):
            paged = await _pages(other, query)
            assert len(paged) == 250
            assert paged == _expected(made, HeadQuery(order=query.order))

    async def test_pages_of_a_selection_hold_every_match_once(self, open_store: OpenStore) -> None:
        store = open_store()
        made = await _population(store, 60)
        for conditions in [
            {"tags": {"team": "blue"}},
            {"title": "trip"},
            {"prefix": "user/"},
            {"status": ("done", "running")},
        ]:
            for order in _ORDERS:
                query = HeadQuery(order=order, **conditions)  # type: ignore[arg-type]
                expected = _expected(made, query)
                assert len(expected) > 8
                assert await _pages(store, HeadQuery(order=order, limit=4, **conditions)) == expected  # type: ignore[arg-type]

    async def test_a_cursor_holds_when_its_thread_is_gone(self, open_store: OpenStore) -> None:
        store = open_store()
        made = await _population(store, 12)
        query = HeadQuery(limit=5)
        first = await heads(store, query)
        await store.delete(first[-1].thread_id)
        assert await heads(store, query.after(first[-1])) == _expected(made, HeadQuery())[5:10]

    async def test_a_cursor_beyond_the_last_head_gives_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        made = await _population(store, 5)
        last = _expected(made, HeadQuery())[-1]
        assert await heads(store, HeadQuery().after(last)) == []
        for moment in (-(10**17), 10**17):
            found = await heads(store, HeadQuery(cursor=f"{moment}:{'0' * 64}"))
            assert len(found) == (5 if moment > 0 else 0)

    # While others write

    async def test_a_listing_holds_untouched_threads_once_while_others_come_and_go(self, open_store: OpenStore) -> None:
        store, writer = open_store(), open_store()
        still = {f"still {n}" for n in range(60)}
        for n, thread_id in enumerate(sorted(still)):
            await append(store, thread_id, b"frame", updated_at=minute(n), created_at=minute(n))
        listing = True

        async def churn(lane: int) -> None:
            moment = 0
            while listing:
                moment += 1
                thread_id = f"moving {lane} {moment % 3}"
                head = await writer.head(thread_id)
                if moment % 5 == 0:
                    await writer.delete(thread_id)
                else:
                    at = 0 if head is None else head.frames
                    created = minute(moment % 60) if head is None else head.created_at
                    await append(writer, thread_id, b"frame", at=at, updated_at=minute(moment), created_at=created)
                await asyncio.sleep(0)

        async def watch() -> None:
            nonlocal listing
            try:
                for order in _ORDERS * 3:
                    whole = [head.thread_id async for head in _slowly(store, HeadQuery(order=order))]
                    _each_once(whole, still)
                    paged = [head.thread_id for head in await _pages(store, HeadQuery(order=order, limit=7))]
                    _each_once([thread_id for thread_id in paged if thread_id in still], still)
            finally:
                listing = False

        await asyncio.wait_for(asyncio.gather(watch(), *(churn(lane) for lane in range(3))), timeout=60)

    async def test_a_long_listing_is_right_while_its_threads_are_written(self, open_store: OpenStore) -> None:
        """Test that a listing is right even if threads are written while it is read. As soon as the first head of the
        listing has come, the test writes to the threads at the listing's end. Being changed last, these threads move to
        the front if the listing is ordered by time of change, and some of them no longer match the query."""
        threads = _Changing(open_store(), open_store())
        await threads.make(_MANY)
        for order in _ORDERS:
            query = HeadQuery(status="done", order=order)
            found, moved = await threads.list_and_write(query)
            threads.check(query, found, moved, all_of_one_moment=False)

    async def test_long_pages_are_right_while_their_threads_are_written(self, open_store: OpenStore) -> None:
        """Test that reading a listing page by page is right even if threads are written while each page is read. A page
        must show all threads as they were at one moment. No thread may be on two pages, even if the last thread of a
        page moves to another position before the next page is read."""
        threads = _Changing(open_store(), open_store())
        await threads.make(_MANY)
        for order in _ORDERS:
            query = first = HeadQuery(status="done", order=order, limit=_MANY * 9 // 10)
            found, moved = await threads.list_and_write(query)
            whole = found
            while found:
                threads.check(query, found, moved, all_of_one_moment=True)
                query = query.after(found[-1])
                found, more = await threads.list_and_write(query)
                whole, moved = whole + found, moved | more
            threads.check_once(first, whole, moved)

    async def test_a_listing_that_is_given_up_does_no_harm(self, open_store: OpenStore) -> None:
        store = open_store()
        await _population(store, 10)
        for _ in range(5):
            async for head in store.heads():
                assert head.frames == 1
                break
        assert len(await listed(store)) == 10


class _Changing:
    """Makes threads in a store, writes to some of them while the threads are being listed, and checks that the listing
    is right. Lists through `store` and writes through `writer`, two checkpointers of the same store."""

    def __init__(self, store: Checkpointer, writer: Checkpointer) -> None:
        self._store = store
        self._writer = writer
        self._versions: dict[str, list[Head]] = {}
        """Every head that each thread has had, the newest last."""
        self._now = 0

    async def make(self, count: int) -> None:
        for start in range(0, count, _AT_ONCE):
            await asyncio.gather(
                *(self._write(f"thread {number}", "done") for number in range(start, min(start + _AT_ONCE, count)))
            )

    async def list_and_write(self, query: HeadQuery) -> tuple[list[Head], set[str]]:
        """List the heads that match the query. When the first head has come, write to the `_MOVED` (96) threads that
        come last in the order of the query. Return the listed heads, and the ids of the threads that were written."""
        newest = [versions[-1] for versions in self._versions.values()]
        moved = {head.thread_id for head in sorted(newest, key=query.position)[:_MOVED]}
        found: list[Head] = []
        async for head in self._store.heads(query):
            found.append(head)
            if len(found) == 1:
                await asyncio.gather(*(self._write_again(number, name) for number, name in enumerate(sorted(moved))))
        return found, moved

    async def _write_again(self, number: int, thread_id: str) -> None:
        status = self._versions[thread_id][-1].status
        flipped: Status = "running" if status == "done" else "done"
        await self._write(thread_id, flipped if number % 3 == 0 else status)

    async def _write(self, thread_id: str, status: Status) -> None:
        versions = self._versions.setdefault(thread_id, [])
        self._now += 1
        made = versions[0].created_at if versions else minute(self._now)
        versions.append(
            a_head(thread_id, len(versions) + 1, status=status, created_at=made, updated_at=minute(self._now))
        )
        await self._writer.append(thread_id, [b"frame"], at=len(versions) - 1, head=versions[-1])

    def check(self, query: HeadQuery, found: list[Head], moved: set[str], *, all_of_one_moment: bool) -> None:
        """Assert that `found`, the heads of one listing or page, is a right result of `query`: each head was written at
        some time and matches the query, and the heads are in order. `moved` has the ids of the threads that were
        written while the listing or page was read.

        Pass `all_of_one_moment=True` for a page, which must show all threads as they were at one moment.

        Pass False for a listing. Its threads in `moved` may be out of order if the query orders by time of change. But
        no thread may be listed twice. None may be missing that matches the query with its newest head and also with the
        head before it.
        """
        for head in found:
            assert head in self._versions[head.thread_id], f"never written: {head}"
            assert query.matches(head), f"does not match: {head}"
        in_order = found
        if not all_of_one_moment:
            self.check_once(query, found, moved if query.order == "updated" else set())
            assert self._always_matching(query, moved) <= {head.thread_id for head in found}
            in_order = [head for head in found if query.order == "created" or head.thread_id not in moved]
        assert in_order == sorted(in_order, key=query.position, reverse=True), "not in order"

    def check_once(self, query: HeadQuery, found: list[Head], moved: set[str]) -> None:
        """Assert that no thread is in `found`, the heads of a listing, twice. Assert also that `found` has all threads
        that match the query and are not in `moved`, the ids of the threads that were written during the listing."""
        _each_once([head.thread_id for head in found], self._always_matching(query, self._versions.keys() - moved))

    def _always_matching(self, query: HeadQuery, thread_ids: Iterable[str]) -> set[str]:
        """Return the ids among `thread_ids` whose threads matched the query before and after their last change: with
        their newest head and with the head before it. A listing that is read during the change must have them."""
        return {name for name in thread_ids if all(map(query.matches, self._versions[name][-2:]))}


_MANY, _MOVED, _AT_ONCE = 640, 96, 64
"""`_MANY`: how many threads a long listing has. `_MOVED`: how many of them are written while it is read. `_AT_ONCE`:
how many are made at the same time. A long listing has more than 500 threads, because some stores read heads in parts of
up to 500."""
_ORDERS: tuple[Literal["updated"], Literal["created"]] = ("updated", "created")


async def _with_threads(open_store: OpenStore, *threads: dict[str, Any]) -> Checkpointer:
    """Open a store, and make one thread in it for each of these dicts. A dict holds the thread's id and fields of its
    head. Return the store."""
    store = open_store()
    await asyncio.gather(*(append(store, thread.pop("thread_id"), b"frame", **thread) for thread in threads))
    return store


async def _population(store: Checkpointer, size: int) -> list[Head]:
    """Make `size` threads whose heads have different statuses, agents, titles, tags and times, and return these heads.
    Several have the same time, so that the order of threads with equal times is tested."""
    agents, titles = ["planner", "writer", ""], ["Plan a trip", "Trip report", "Plan nothing", ""]
    return await asyncio.gather(
        *(
            append(
                store,
                f"user/{number}" if number % 3 else f"job_{number}",
                b"frame",
                status=STATUSES[number % len(STATUSES)],
                agent=agents[number % 7 % 3],
                title=titles[number % 4],
                tags={"team": "blue" if number % 2 else "red", "n": str(number)},
                parent=("user/3", number) if number % 2 else None,
                created_at=minute(number % 6),
                updated_at=minute(number * 7 % 10),
            )
            for number in range(size)
        )
    )


def _expected(made: list[Head], query: HeadQuery) -> list[Head]:
    return sorted(filter(query.matches, made), key=query.position, reverse=True)[: query.limit]


async def _pages(store: Checkpointer, query: HeadQuery) -> list[Head]:
    """Return all heads that the query lists, fetched page by page. A page has at most `query.limit` heads."""
    found: list[Head] = []
    while page := await heads(store, query):
        assert query.limit is not None
        assert len(page) <= query.limit
        found += page
        query = query.after(page[-1])
    return found


async def _slowly(store: Checkpointer, query: HeadQuery) -> Any:
    async for head in store.heads(query):
        yield head
        await asyncio.sleep(0)


def _each_once(seen: list[str], wanted: set[str]) -> None:
    assert len(seen) == len(set(seen)), f"listed twice: {sorted(name for name in seen if seen.count(name) > 1)}"
    assert wanted <= set(seen), f"left out: {sorted(wanted - set(seen))}"
