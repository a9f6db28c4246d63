"""What a listing says of a store that is damaged in places."""

from __future__ import annotations

import pytest

from clew.checkpointers import Checkpointer, HeadQuery
from clew.errors import Corrupt

__all__ = ["sound_and_damaged"]


async def sound_and_damaged(store: Checkpointer, query: HeadQuery = HeadQuery()) -> tuple[list[str], str]:
    """The ids of the threads that it lists, sorted, and what it then says of those that it cannot."""
    found: list[str] = []

    async def collect() -> None:
        async for head in store.heads(query):
            found.append(head.thread_id)

    with pytest.raises(Corrupt) as error:
        await collect()
    return sorted(found), str(error.value)
