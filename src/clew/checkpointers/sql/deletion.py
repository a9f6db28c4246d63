"""Deletes a thread of an SQL server, whose network can lose an answer or hold a statement back for long."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["MOST_ATTEMPTS", "delete_thread"]

T = TypeVar("T")

MOST_ATTEMPTS = 20
"""The attempt that deletes the log whatever was appended to it meanwhile. Those before it are only for a log that is as
it was read."""


async def delete_thread(
    look: Callable[[], Awaitable[tuple[T, bytes] | None]], delete: Callable[[T, bytes | None], Awaitable[bool]]
) -> None:
    """Delete the log that a thread has now, and no log that is created later under the same id.

    `look` returns the database's number of the log and the stored head, or None if there is no thread. `delete` gets
    both and deletes the thread if it still has them, else it returns False. If the head is None, only the number counts.

    Two things make these conditions necessary. A statement is sent again if its answer was lost, and by then another
    process may have created the thread anew. And a server that was frozen may run a statement long after its caller has
    stopped waiting: it must not take appends with it that were acknowledged meanwhile.
    """
    first: T | None = None
    for attempt in itertools.count(1):
        found = await look()
        if found is None or (first is not None and found[0] != first):
            return
        first, head = found
        # a thread that is written all the time is deleted in the end, whatever its newest head is
        if await delete(first, head if attempt < MOST_ATTEMPTS else None):
            return
