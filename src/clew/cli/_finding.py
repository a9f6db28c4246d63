"""Threads that are meant, damaged ones included: whoever verifies, repairs or deletes needs no whole head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer

__all__ = ["find_any", "free_id"]


async def find_any(store: Checkpointer, given: Sequence[str]) -> list[str]:
    """The ids of the threads that are meant, each once. One whose head is damaged is found by its whole id."""
    from clew.cli._stores import find_thread
    from clew.errors import Corrupt

    found = []
    for text in given:
        try:
            found.append(await find_thread(store, text))
        except Corrupt:
            if not await _is_damaged(store, text):
                raise
            found.append(text)
    return list(dict.fromkeys(found))


async def _is_damaged(store: Checkpointer, thread_id: str) -> bool:
    """Whether it is this very thread that cannot be read, and not another one that a listing came across."""
    from clew.errors import Corrupt

    try:
        await store.head(thread_id)
    except Corrupt:
        return True
    return False


async def free_id(store: Checkpointer, wanted: str) -> str:
    """This name, or if a thread has it, the next one that is free: `trip-2`, `trip-3`."""
    number, name = 1, wanted
    while await store.head(name) is not None:
        number += 1
        name = f"{wanted}-{number}"
    return name
