"""Lists heads (small summaries of threads): first reads the places of each shard, then the heads at these places.

A place is a thread's position in a listing, as sortable bytes; a shard is one of the parts into which a namespace is
divided. The places of a shard are read at one moment and name every thread that exists then, because an append moves a
thread's place together with its head. So a thread that exists throughout is found, even if it moves while the listing
goes on. It is yielded once, with its new head if it moved. Heads are sorted again after they were read: a page (a query
with a limit) as a whole, a listing without a limit in parts.

An expired thread leaves its place behind, because the server removes the thread's keys and knows nothing of listings.
If a query finds such a place, it removes the place, in one step that first checks that no thread has this place again.
If the listing of a shard is lost, the query first makes it again from the Redis keys of the threads.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import AsyncIterator, Callable, Sequence

from clew.checkpointers.heads import Head, HeadQuery, micros, unlisted
from clew.checkpointers.redis.engine import Call, Engine
from clew.checkpointers.redis.keys import KEY, SHARDS, Layout, created_place, moment_bytes, queue_place, updated_place
from clew.checkpointers.redis.recovery import Recovery, in_part
from clew.checkpointers.redis.scripts import HEADS, PLACES, REPAIR
from clew.errors import Corrupt, Unavailable

__all__ = ["Listing"]

_MOMENT = 8
_POSITION = _MOMENT + KEY
_BATCH = 4096
"""The most heads that are read at once. A listing without a limit yields the heads in such parts, each in order."""
_ALL = 2**31
_TRIES = 3
_LEAST, _GROWTH = 64, 8
"""For a query with a limit, each shard (a part of the namespace) is first asked for a few places (positions of threads
in a listing). If a place does not show whether its thread matches, so that the head has to be read, these are at least
`_LEAST`. If too few threads match, the shards are asked for `_GROWTH` times as many."""

_PLACES = {"updated": updated_place, "created": created_place, "due": queue_place}
"""For each order of a query, the function that returns a thread's place in the listing with this order."""

Decode = Callable[[object, str], Head]


class Listing:
    """Runs one query for heads (small summaries of threads); its method `heads` yields those that match. First reads
    places (the positions of threads in a listing, as sortable bytes), then the heads of the threads at these places."""

    def __init__(
        self, engine: Engine, layout: Layout, recovery: Recovery, decode: Decode, query: HeadQuery, where: str
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._recovery = recovery
        self._where = where
        self._broken: dict[bytes, Corrupt] = {}
        self._decode = decode
        self._query = query
        self._length = _POSITION + _MOMENT if query.order == "updated" else _POSITION

    async def heads(self) -> AsyncIterator[Head]:
        limit = self._query.limit
        if limit is None:
            places, _ = await self._places(_ALL)
            async for head in self._follow(places, b"", _BATCH):
                yield head
        else:
            for head in await self._first(limit):
                yield head
        if self._broken:
            raise unlisted(list(self._broken.values()))

    async def _first(self, limit: int) -> list[Head]:
        """Return the newest heads that match the query, at most `limit`. The store lists its threads by time. First
        reads the heads of a few of the newest threads in this list. If fewer than `limit` of them match and the list
        has more threads, starts again with more of them."""
        size = limit // 16 + (4 if _decided_by_place(self._query) else _LEAST)
        found: list[Head] = []
        complete_to: bytes | None = None
        while len(found) < limit and complete_to != b"":
            places, complete_to = await self._places(min(size, _ALL))
            found = []
            async for head in self._follow(places, complete_to, min(limit + 1, _BATCH)):
                found.append(head)
                if len(found) == limit:
                    break
            size *= _GROWTH
        return sorted(found, key=self._query.position, reverse=True)

    async def _places(self, size: int) -> tuple[list[bytes], bytes]:
        """Return the places (positions in the listing, as sortable bytes) of the newest threads, from the oldest of
        them to the newest, and a bound, which is a place too. At most `size` places are read from each shard (part of
        the namespace).

        The result has every place of the namespace from the bound up to the newest, and no older one. The bound is
        empty if the result has all places of the namespace.
        """
        shards = await self._ask_shards(size)
        places: list[bytes] = []
        complete_to = b""
        length = self._length
        for found in shards:
            places += [found[at : at + length] for at in range(0, len(found), length)]
            if len(found) == size * length:
                complete_to = max(complete_to, found[-length:])
        return sorted(place for place in places if place >= complete_to), complete_to

    async def _ask_shards(self, size: int) -> list[bytes]:
        """Return one value for each shard (part of the namespace): its newest places (positions in the listing), at
        most `size`, joined from the newest to the oldest.

        Listings that were lost are made again from the keys of the threads, then all shards are asked again. A store
        that lost every listing looks like a new one. So if the store looks new, threads are looked for too, but only
        once for a checkpointer. Raises `Unavailable` if listings are lost again each time.
        """
        newest, oldest = self._bounds()
        calls = []
        for number in range(SHARDS):
            updated, created, threads, due = self._layout.listings(number)
            listed = {"updated": updated, "created": created, "due": due}[self._query.order]
            others = [name for name in (updated, created, due, threads) if name != listed]
            calls.append(Call(PLACES, [listed, *others], [newest, oldest, size]))
        for _ in range(_TRIES):
            with self._engine.use():
                shards: list[bytes | None] = await self._engine.run_all(calls)
                whole = [found for found in shards if found is not None]
                if len(whole) == SHARDS and (any(whole) or self._recovery.has_scanned or not await self._is_new()):
                    return whole
                _, broken = await self._recovery.run()
                self._broken |= {bytes.fromhex(key): in_part(key, self._where) for key in broken}
        raise Unavailable(f"{self._where}: listings of threads are lost again as soon as they are made. Try again.")

    async def _is_new(self) -> bool:
        """Return True if no shard (part of the namespace) has any of these Redis keys: the two lists of its threads,
        and the key that says that the shard has had threads. This is so in a new store, and in a store that lost all
        these keys."""
        return not any(
            await self._engine.commands([("EXISTS", *self._layout.listings(number)) for number in range(SHARDS)])
        )

    def _bounds(self) -> tuple[bytes, bytes]:
        """Return the newest and the oldest place (position in the listing) that a matching thread can have, as bounds
        of a Redis range query."""
        query = self._query
        below: list[bytes] = []
        oldest = b"-"
        if (start := query.start()) is not None:
            below.append(moment_bytes(start[0]) + bytes.fromhex(start[1]))
        if query.order == "updated":
            if query.updated_before is not None:
                below.append(moment_bytes(micros(query.updated_before)))
            if query.updated_after is not None:
                oldest = b"[" + moment_bytes(micros(query.updated_after))
        return (b"(" + min(below) if below else b"+"), oldest

    async def _follow(self, places: list[bytes], complete_to: bytes, batch: int) -> AsyncIterator[Head]:
        """Yield the heads of the threads at these places (positions in the listing) that match the query, each thread
        once. `places` are sorted from the oldest to the newest; the heads are read from the newest on. `places` has
        the places of all threads from the newest down to `complete_to`; of older places it may lack some.

        Heads are read in batches: `batch` of them first, then more each time, up to a limit. Each batch is sorted by
        the places that its threads have when their heads are read. A thread that has moved to an older place meanwhile
        is yielded when that place is reached, or not at all if it is older than `complete_to`. Places that threads have
        left are removed from the store's listings.
        """
        start = self._query.start()
        given: set[bytes] = set()
        while places:
            now, places = places[: -batch - 1 : -1], places[:-batch]
            batch = min(2 * batch, _BATCH)
            heads = await self._heads(now)
            left: list[bytes] = []
            found: list[Head] = []
            for place, head in zip(now, heads, strict=True):
                if head is None:
                    left.append(place)
                    continue
                current = self._place(head)
                if current != place:
                    left.append(place)
                if not current:
                    continue
                if current[:_POSITION] < place[:_POSITION]:
                    if current >= complete_to:
                        insort(places, current)
                elif place[_MOMENT:_POSITION] not in given and (start is None or self._query.position(head) < start):
                    given.add(place[_MOMENT:_POSITION])
                    if self._query.matches(head):
                        found.append(head)
            if left:
                await self._repair(left)
            for head in sorted(found, key=self._query.position, reverse=True):
                yield head

    def _place(self, head: Head) -> bytes:
        return _PLACES[self._query.order](head)

    async def _heads(self, places: Sequence[bytes]) -> list[Head | None]:
        keys = [place[_MOMENT:_POSITION].hex() for place in places]
        shards = self._layout.by_shard(keys)
        calls = [Call(HEADS, [self._layout.thread(key)[0] for key in members]) for members in shards.values()]
        with self._engine.use():
            results = await self._engine.run_all(calls)
        found: dict[str, Head | None] = {}
        for members, datas in zip(shards.values(), results, strict=True):
            for key, data in zip(members, datas, strict=True):
                found[key] = None if data is None else self._decode(data, f"the thread with the key {key}")
        return [found[key] for key in keys]

    async def _repair(self, places: Sequence[bytes]) -> None:
        """Remove these places from the listings. A place is a thread's position in a listing, as sortable bytes; these
        belong to threads that have moved or are gone. A place at which there is a thread again meanwhile stays. For
        each thread whose head is missing while other data of it is there, remembers an error, which `heads` raises at
        the end."""
        calls = []
        for place in places:
            *thread, updated, created, _, due = self._layout.thread(place[_MOMENT:_POSITION].hex())
            moved = {
                "updated": (place, place[_POSITION:] + place[_MOMENT:_POSITION], b""),
                "created": (b"", place, b""),
                "due": (b"", b"", place),
            }
            calls.append(Call(REPAIR, [*thread, updated, created, due], moved[self._query.order]))
        with self._engine.use():
            removed = await self._engine.run_all(calls)
        for place, done in zip(places, removed, strict=True):
            if not done:
                key = place[_MOMENT:_POSITION]
                self._broken[key] = in_part(key.hex(), self._where)


def _decided_by_place(query: HeadQuery) -> bool:
    bounded = query.updated_after is not None or query.updated_before is not None
    return not (
        query.prefix
        or query.status is not None
        or query.agent is not None
        or query.tags
        or query.parent is not None
        or query.title
        or (bounded and query.order != "updated")
    )
