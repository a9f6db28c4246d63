"""Deletes a thread from a store on an SQL server. A statement that is sent twice or runs late deletes nothing newer."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["MOST_ATTEMPTS", "delete_thread"]

T = TypeVar("T")

MOST_ATTEMPTS = 20
"""The number of the attempt that deletes the log even if somebody has appended to it since it was read. Earlier
attempts delete only an unchanged log."""


async def delete_thread(
    look: Callable[[], Awaitable[tuple[T, bytes] | None]], delete: Callable[[T, bytes | None], Awaitable[bool]]
) -> None:
    """Delete the log that a thread has now, and no log that is created later under the same id.

    `look` returns the database's number for the log and the stored head, or None if there is no thread. `delete` gets
    both, deletes the thread if both are still the same, and returns whether it was deleted. If the head given to
    `delete` is None, only the number has to be the same.

    There are two reasons for these conditions. A statement is sent again if its answer was lost, and by then another
    process may have created the thread anew. And a server that was frozen may run a statement long after its caller has
    stopped waiting: then the statement must not delete appends that were acknowledged meanwhile.
    """
    first: T | None = None
    for attempt in itertools.count(1):
        found = await look()
        if found is None or (first is not None and found[0] != first):
            return
        first, head = found
        # The last attempt ignores the head: otherwise a thread that is written all the time would never be deleted.
        if await delete(first, head if attempt < MOST_ATTEMPTS else None):
            return
