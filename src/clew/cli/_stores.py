"""The store that a command works on, and the threads that are meant in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer

__all__ = ["find_thread", "on_store", "opened", "store_option"]

T = TypeVar("T")
_SHOWN = 8


@asynccontextmanager
async def opened(url: str | None) -> AsyncIterator[Checkpointer]:
    from clew.checkpointers import open_checkpointer

    async with open_checkpointer(url) as store:
        yield store


def on_store(url: str | None, work: Callable[[Checkpointer], Awaitable[T]]) -> T:
    """Do this with the store open, and close it."""

    async def run() -> T:
        async with opened(url) as store:
            return await work(store)

    return asyncio.run(run())


async def find_thread(store: Checkpointer, given: str) -> str:
    """The id of the thread that is meant: by its id, by any beginning of it that no other has, or by a handle."""
    from clew.agent.handles import read_handle
    from clew.checkpointers import HeadQuery
    from clew.errors import InvalidInput, ThreadNotFound

    wanted = read_handle(given).session_id
    if await store.head(wanted) is not None:
        return wanted
    found = [head.thread_id async for head in store.heads(HeadQuery(prefix=wanted, limit=_SHOWN + 1))]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
        raise InvalidInput(f"{wanted!r} is the beginning of several threads: {listed}. Give more of it.")
    raise ThreadNotFound(wanted)


def store_option(url: str | None) -> str:
    """What to add to a command that is shown to the user, so that it finds the same store."""
    import shlex

    return f" --store {shlex.quote(url)}" if url else ""
