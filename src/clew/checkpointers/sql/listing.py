"""Lists heads (small summaries of threads) for the SQL stores on a server. A listing is right even while others write.

A listing begins with one SQL statement, which sees the state of the database at one moment. Most listings end there: a
query with a limit takes one statement, and so does every listing of fewer than `FIRST` heads. A longer listing reads
the keys of all matching threads in a second statement, and then the heads of the threads with these keys in parts.
It does not read on from the last head that it has seen: a thread that is updated meanwhile moves to the front of the
listing, and would be missed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import msgspec
from blake3 import blake3

from clew._runtime.batches import batches
from clew.checkpointers.heads import Head, HeadQuery
from clew.checkpointers.sql.heads import Listing

__all__ = ["FIRST", "PART", "is_stale", "list_heads", "sorted_part"]

FIRST = 5000
"""The most heads that a listing without a limit reads in its first statement."""
PART = 500
"""The most heads that each further statement of a long listing reads."""

Rows = Sequence[Sequence[object]]
"""Rows of a query result, each with a stored head and the id of its thread."""


async def list_heads(
    query: HeadQuery,
    where: str,
    *,
    select: Callable[[HeadQuery], Awaitable[Rows]],
    select_keys: Callable[[HeadQuery], Awaitable[Iterable[bytes]]],
    select_by_keys: Callable[[Sequence[bytes]], Awaitable[Rows]],
) -> AsyncIterator[Head]:
    """Yield the heads that match the query, in its order, each thread once. A thread that is updated meanwhile is not
    missed, but may come later than its place in this order. If heads are damaged, raises `Corrupt` after all others.
    `where` names the store in errors.

    The other arguments are functions that each run a single SQL statement. `select` returns the rows that match a
    query, in its order; a row is a stored head and its thread's id. `select_keys` returns only the threads' keys, in
    the same order. `select_by_keys` returns the rows of the threads with the given keys, in any order.
    """
    listing = Listing(where)
    first = query if query.limit is not None else msgspec.structs.replace(query, limit=FIRST)
    rows = await select(first)
    for head in listing.sound(rows):
        if not is_stale(query, head):
            yield head
    if query.limit is None and len(rows) == FIRST:
        given = {blake3(_bytes(thread_id)).digest() for _, thread_id in rows}
        del rows
        rest = [key for key in await select_keys(query) if key not in given]
        for part in batches(rest, PART):
            for head in sorted_part(listing.sound(await select_by_keys(part)), query):
                yield head
    listing.end()


def is_stale(query: HeadQuery, head: Head) -> bool:
    """Return whether a row that was found in the queue of the workers has a head that is not in the queue. That happens
    if a process with an older Clew, which does not know the column `due`, has written the head since."""
    return query.order == "due" and head.due is None


def sorted_part(heads: Iterable[Head], query: HeadQuery) -> list[Head]:
    """Return the given heads that match the query, in its order. A listing that first selects the keys of threads and
    then reads the heads needs this: meanwhile a head may have moved in the listing, or no longer match."""
    return sorted(filter(query.matches, heads), key=query.position, reverse=True)


def _bytes(thread_id: object) -> bytes:
    return thread_id if isinstance(thread_id, bytes) else str(thread_id).encode()
